"""The result of a simulation."""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.compiled import jit
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.held_rank import solves
from jaxdae.kernels.launch.derivatives import shielded
from jaxdae.simulation import diagnostics
from jaxdae.simulation.backends import native_reading
from jaxdae.solvers.projected import nearest
from jaxdae.systems import (
    constraint_residuals,
    generalized_energy,
    Power,
    State,
    System,
    Violation,
)
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.independence import constraint_rank


class Trajectory(eqx.Module):
    """A simulated motion. Arrays have time first; batches made by `vmap` come before it.

    Only times and states are stored. Everything else is computed when it is asked for, by compiled
    code, from the stored states. Rows that were not reached, and rows whose state is not
    finite, have `ts = inf` and NaN values.

    Attributes:
        ts: times [s], shape `(times,)`.
        final_time: the last time reached with a finite state [s]; where fixed steps went on through
            NaN, the last such time that was saved, or else `t0`.
        result: diffrax's result code; see `success`.
        stats: solver statistics (`num_steps`, `num_accepted_steps`, `num_rejected_steps`, …).
        saved: what `saveat` asked for, when it is not plain states.
        backend: `"native"` or `"plain"`: which backend made the run.
        why_not_native: what kept the native backend from serving, in words, or what of a native
            run's derivatives is left to the plain program; `None` where nothing is.
        projections: Newton iterations that take states between steps onto the constraints.
    """

    ts: Any
    saved: PyTree
    final_time: Float[Array, "*batch"]
    final: PyTree
    result: diffrax.RESULTS
    stats: dict[str, Any]
    interpolation: Any
    work_integrals: Power | None
    plain: bool = eqx.field(static=True)
    # The arrays of (system, formulation, controller) apart from the rest, functions among it, so
    # that a trajectory may leave any JAX transformation.
    arrays: PyTree
    skeleton: PyTree = eqx.field(static=True)
    backend: str = eqx.field(static=True, default="plain")
    why_not_native: str | None = eqx.field(static=True, default=None)
    projections: int = eqx.field(static=True, default=0)
    # Start `(t0, y0)`; and, of a run that saves only its end, times and states on the way.
    start: Any = None
    watched: Any = None

    @property
    def system(self) -> System:
        """The system that was simulated."""
        return eqx.combine(self.arrays, self.skeleton)[0]

    @property
    def formulation(self) -> AbstractFormulation:
        """The formulation that was used."""
        return eqx.combine(self.arrays, self.skeleton)[1]

    @property
    def controller(self) -> Callable | None:
        """The controller, or `None`."""
        return eqx.combine(self.arrays, self.skeleton)[2]

    @property
    def success(self) -> Bool[Array, "*batch"]:
        """Whether the run reached its end; one value for each lane of a batch."""
        return self.result == diffrax.RESULTS.successful

    @property
    def states(self) -> State:
        """States `(q, v, w)` at the saved times, leading axis `times`."""
        return _each(self, _state)

    @property
    def q(self) -> Float[Array, "*batch times n"]:
        """Coordinates [m or rad], shape `(times, n)`."""
        return self.states.q

    @property
    def v(self) -> Float[Array, "*batch times n"]:
        """Velocities, shape `(times, n)`."""
        return self.states.v

    @property
    def w(self) -> Float[Array, "*batch times k"]:
        """Actuator states, shape `(times, k)`."""
        return self.states.w

    @property
    def u(self) -> Any:
        """Control inputs at the saved times; `None` without a controller."""
        return None if self.controller is None else _each(self, _control)

    @property
    def final_state(self) -> State:
        """State at `final_time`; after a failure, the last that was accepted and finite."""
        return _final(self)

    @property
    def multipliers(self) -> Float[Array, "*batch times c"]:
        """Multipliers `lam`, shape `(times, m+r)`; the constraint reaction is `-J^T lam`."""
        return _each(self, _multipliers, by_kernel=self.controller is None)

    @property
    def violation(self) -> Violation:
        """Constraint residuals: `phi (times, m)` and `phi_dot (times, m+r)`."""
        return _each(self, _violation, by_kernel=True)

    @property
    def jacobian(self) -> Float[Array, "*batch times c n"]:
        """Constraint Jacobians, shape `(times, m+r, n)`."""
        return _each(self, _jacobian, by_kernel=True)

    @property
    def constraint_rank(self) -> Float[Array, "*batch times"]:
        """Number of independent constraints next to each saved state, on the constraints."""
        return _each(self, _rank)

    @property
    def held_rank(self) -> Float[Array, "*batch"] | None:
        """The rank of the constraints that the run held; `None` where it held none.

        It does for dependent constraints; `constraint_rank` says whether it was that of the motion.
        """
        policies = solves(self.formulation)
        return policies[0].held_rank if policies else None

    @property
    def kinetic_energy(self) -> Float[Array, "*batch times"]:
        """Kinetic energy `T` [J], shape `(times,)`."""
        return _each(self, _kinetic, by_kernel=True)

    @property
    def potential_energy(self) -> Float[Array, "*batch times"]:
        """Potential energy `V` [J], shape `(times,)`."""
        return _each(self, _potential, by_kernel=True)

    @property
    def energy(self) -> Float[Array, "*batch times"]:
        """Generalized energy `v . dT/dv - T + V` [J], shape `(times,)`.

        It is `T + V` whenever `T` is a quadratic form in the velocities.
        """
        return _each(self, _energy, by_kernel=True)

    @property
    def work(self) -> Power:
        """Work since `t0` of what changes the generalized energy [J], each of shape `(times,)`.

        `energy(t) - energy(t0) = force + dissipation + constraint + explicit`, to integration
        accuracy: each part is integrated along with the motion.

        Raises:
            ValueError: unless the run was made with `work=True`.
        """
        if self.work_integrals is None:
            raise ValueError("work was not integrated; run simulate(..., work=True).")
        return self.work_integrals

    @property
    def least_singular_value(self) -> Float[Array, "*batch"]:
        """Least singular value of the constraint Jacobian met: zero at a singular position.

        Rows of the Jacobian are scaled by their largest lengths along the run. Of a mechanism whose
        constraints have rank `r` at best it is the r-th singular value. Between saved rows, which
        must follow the motion, it is searched on the cubic Hermite curve of `q` and `v`. Infinite
        without constraints.
        """
        return _over_run(self, _least_singular_value)

    @property
    def energy_error(self) -> Float[Array, "*batch"]:
        """Largest error of the energy balance at the saved rows [J].

        The largest of `|h(t) - h(t0) - work|`, `h` being the generalized energy. The work is that
        of `simulate(..., work=True)`, exact to integration accuracy; without it, that of forces and
        dissipation by the trapezoidal rule over the rows, which is exact for conservative systems.
        NaN where it is not known so: where constraints do work, forces depend on the multipliers or
        stand in place of constraints, or after a start off them.
        """
        return _over_run(self, _energy_error)

    def lane(self, index: int) -> "Trajectory":
        """One run of a batch.

        Args:
            index: its position along the first batch axis.

        Returns:
            A `Trajectory` with one batch axis less.
        """
        arrays, rest = eqx.partition(self, eqx.is_array)
        return eqx.combine(jax.tree.map(lambda x: x[index], arrays), rest)

    def evaluate(self, t) -> State:
        """State at any time of a run made with `SaveAt(dense=True)`.

        Args:
            t: time [s], scalar or `(times,)`; the same for all lanes of a batch.

        Raises:
            ValueError: for a run without dense output.
        """
        if self.interpolation is None:
            raise ValueError("no dense output; run simulate(..., saveat=SaveAt(dense=True)).")
        return _dense(self, jnp.asarray(t, self.final_time.dtype))


def read_rows(trajectory: Trajectory, function: Callable) -> Any:
    """Anything of every saved state, NaN in rows that were not reached.

    Args:
        trajectory: a run that saved states.
        function: `function(trajectory, t, y)` of a time and the formulation's own state, floats in
            any pytree; not one defined anew for each call.
    """
    return _each(trajectory, function, by_kernel=trajectory.controller is None)


@jit
def _each(trajectory: Trajectory, function, by_kernel: bool = False):
    """`function(trajectory, t, y)` at every saved time of every lane.

    What a native run has saved is read by a native kernel, too, where `by_kernel` says that the
    function depends on the system and the formulation alone.
    """
    if not trajectory.plain:
        raise ValueError(
            "this run saved no states at times, but what its SaveAt(fn=…), SaveAt(subs=…) or "
            "SaveAt(dense=True) asked for: read `saved` or call `evaluate`, or simulate with "
            "SaveAt(ts=…), SaveAt(steps=True) or SaveAt(t1=True)."
        )
    if trajectory.ts.ndim > 1:
        return eqx.filter_vmap(lambda run: _each(run, function, by_kernel))(trajectory)
    reached = jnp.isfinite(trajectory.ts)
    # Rows that were not reached are computed at the final state, which is finite, and masked
    # afterwards, so that neither their values nor their derivatives can spoil the others.
    last = (trajectory.final_time, trajectory.final)
    rows = (trajectory.ts, trajectory.saved)
    safe = jax.tree.map(lambda x, x1: jnp.where(_column(reached, x), x, x1), rows, last)
    values = jax.vmap(_of_row(trajectory, function, by_kernel))(*safe)
    positive = jax.tree.map(_with_positive_zeros, values)
    return jax.tree.map(lambda x: jnp.where(_column(reached, x), x, jnp.nan), positive)


def _with_positive_zeros(x):
    """The same: the sign of a zero depends on the order of a sum, which backends choose."""
    return x - jax.lax.stop_gradient(jnp.where(x == 0, x, jnp.zeros_like(x)))  # -0 - (-0) = 0


def _of_row(run: Trajectory, function, by_kernel: bool):
    """The same as a function of `(t, y)`."""
    row = (run.ts[0], jax.tree.map(lambda x: x[0], run.saved))
    if by_kernel and run.backend == "native":
        # Of three, the controller's arrays are not read.
        *own, rest = run.arrays

        def of_arrays(t, y, arrays):
            return function(dataclasses.replace(run, arrays=(*arrays, rest)), t, y)

        kernel = native_reading(of_arrays, *row, tuple(own))
        if kernel is not None:
            return lambda t, y: kernel(t, y, tuple(own))

    def shown(t, y, arrays):
        return function(dataclasses.replace(run, arrays=arrays), t, y)

    # A start that is not finite is the final state as well.
    result = jax.eval_shape(shown, *row, run.arrays)
    return lambda t, y: shielded(shown, result, t, y, run.arrays)


@jit
def _over_run(trajectory: Trajectory, function):
    """`function(trajectory, ts, ys, work)` of all rows reached, the start first, of each lane."""
    if not trajectory.plain:
        raise ValueError("this run saved no states at times: simulate with SaveAt(ts=…).")
    if trajectory.final_time.ndim > 0:
        return eqx.filter_vmap(lambda run: _over_run(run, function))(trajectory)
    # Rows that were not reached repeat the last that was, or the start.
    reached = jnp.isfinite(trajectory.ts)
    last = jax.lax.cummax(jnp.where(reached, jnp.arange(1, reached.size + 1), 0))
    rows = jnp.concatenate([jnp.zeros(1, last.dtype), last])
    t0, y0 = trajectory.start
    work = trajectory.work_integrals
    none = jax.tree.map(lambda x: jnp.zeros((), x.dtype), work)
    every = jax.tree.map(
        lambda first, x: jnp.concatenate([first[None], x])[rows],
        (t0, y0, none),
        (trajectory.ts, trajectory.saved, work),
    )
    return function(trajectory, *every)


def _least_singular_value(run, ts, ys, work):
    del work
    states = jax.vmap(lambda t, y: _state(run, t, y))(ts, ys)
    return diagnostics.least_singular_value(run.system, ts, states, run.held_rank)


def _energy_error(run, ts, ys, work):
    states = jax.vmap(lambda t, y: _state(run, t, y))(ts, ys)
    total = None if work is None else sum(work)
    if not diagnostics.balance_is_known(run.formulation, total):
        return jnp.full((), jnp.nan, ts.dtype)
    return diagnostics.energy_error(run.system, run.controller, ts, states, total)


@jit
def _dense(trajectory: Trajectory, t) -> State:
    if trajectory.final_time.ndim > 0:
        return eqx.filter_vmap(_dense, in_axes=(eqx.if_array(0), None))(trajectory, t)
    if t.ndim > 0:
        return jax.vmap(lambda one: _dense(trajectory, one))(t)
    y, _ = trajectory.interpolation.evaluate(t)
    if trajectory.projections:
        y = nearest(trajectory.system, trajectory.formulation, t, y, trajectory.projections)
    return trajectory.formulation.recover(trajectory.system, t, y)


@jit
def _final(trajectory: Trajectory) -> State:
    if trajectory.final_time.ndim > 0:
        return eqx.filter_vmap(_final)(trajectory)
    recover = trajectory.formulation.recover
    state = recover(trajectory.system, trajectory.final_time, trajectory.final)
    return jax.tree.map(_with_positive_zeros, state)


def _column(mask, x):
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


def _state(run, t, y):
    return run.formulation.recover(run.system, t, y)


def _control(run, t, y):
    state = _state(run, t, y)
    return control_input(run.controller, t, state)


def _multipliers(run, t, y):
    u = control_input(run.controller, t, _state(run, t, y))
    return run.formulation.multipliers(run.system, t, y, u)


def _violation(run, t, y):
    state = _state(run, t, y)
    return constraint_residuals(run.system, t, state.q, state.v)


def _jacobian(run, t, y):
    state = _state(run, t, y)
    return mass_and_jacobian(run.system, t, state.q, state.v)[1]


def _rank(run, t, y):
    return constraint_rank(run.system, t, _state(run, t, y)).rank


def _kinetic(run, t, y):
    state = _state(run, t, y)
    return run.system.kinetic_energy(t, state.q, state.v)


def _potential(run, t, y):
    return run.system.potential_energy(t, _state(run, t, y).q)


def _energy(run, t, y):
    state = _state(run, t, y)
    return generalized_energy(run.system, t, state.q, state.v)


def control_input(controller, t, state: State):
    """`u = controller(t, q, v, w)`, or `None` without a controller."""
    return None if controller is None else controller(t, state.q, state.v, state.w)
