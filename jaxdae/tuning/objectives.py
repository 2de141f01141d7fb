"""Objectives made of simulations: the mean cost over a batch of starts, at a stated budget."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PyTree

from jaxdae.formulations import AbstractFormulation
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.simulate import simulate
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.solvers.projected import parts_of
from jaxdae.systems import consistent_state, State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.checks import is_concrete


class SimulationObjective(eqx.Module):
    """Mean cost of the motions from a batch of starts, as a function of parameters.

    Gains have an optimum only for a given amount of work: larger ones are stiffer, and with ever
    smaller steps ever larger gains are better. The objective therefore has a definite budget,
    a fixed step or a largest number of adaptive steps, and states it (`budget`). A start whose
    run fails makes the objective NaN; `tune` does not take such a step.

    Args:
        cost: maps the `Trajectory` from one start to a scalar; see `jaxdae.tuning.costs`.
        states: batch of starts: a `State` whose arrays have a leading axis of starts.
        build: maps the resolved parameters to `(system, formulation, controller)`.
        system: instead of `build`, when the parameters are the formulation.
        controller: with `system`, the controller, if any.
        t0: start time [s].
        t1: end time [s].
        dt: step [s].
        solver: as for `simulate`.
        stepsize_controller: as for `simulate`; with one, or without `dt`, give `max_steps`.
        saveat: as for `simulate`; the times at which the cost sees the motion. By default every
            step of a fixed-step run, and 201 equally spaced times of an adaptive one.
        mode: "forward" for few parameters (`diffrax.ForwardMode`), "reverse" for many
            (`diffrax.RecursiveCheckpointAdjoint`).
        max_steps: work budget of adaptive runs: the largest number of steps of a start, rejected
            ones included. A run that needs more has failed.
        backend: as for `simulate`.

    Raises:
        ValueError: if not exactly one of `build` and `system` is given, the starts are not a
            batch, the mode is unknown, or an adaptive run has no budget.
    """

    cost: Callable
    states: State
    build: Callable | None = eqx.field(default=None, kw_only=True)
    system: System | None = eqx.field(default=None, kw_only=True)
    controller: Callable | None = eqx.field(default=None, kw_only=True)
    t0: float = eqx.field(default=0.0, kw_only=True)
    t1: float = eqx.field(kw_only=True)
    dt: float | None = eqx.field(default=None, kw_only=True)
    solver: diffrax.AbstractSolver | None = eqx.field(default=None, kw_only=True)
    stepsize_controller: diffrax.AbstractStepSizeController | None = eqx.field(
        default=None, kw_only=True
    )
    saveat: diffrax.SaveAt | None = eqx.field(default=None, kw_only=True)
    mode: Literal["forward", "reverse"] = eqx.field(default="forward", kw_only=True, static=True)
    max_steps: int | None = eqx.field(default=None, kw_only=True)
    backend: Backend = eqx.field(default="auto", kw_only=True, static=True)

    def __check_init__(self):
        if (self.build is None) == (self.system is None):
            raise ValueError("SimulationObjective: give exactly one of `build` and `system`.")
        if self.build is not None and self.controller is not None:
            raise ValueError(
                "SimulationObjective: `build` returns the controller; leave `controller` out."
            )
        if self.mode not in ("forward", "reverse"):
            raise ValueError(
                f'SimulationObjective: mode is "{self.mode}", must be "forward" or "reverse".'
            )
        check_instance("states", self.states, State, "perturbed_states(state, key, count)")
        if jnp.ndim(self.states.q) != 2:
            raise ValueError(
                f"SimulationObjective: states.q has shape {jnp.shape(self.states.q)}, needs "
                "(starts, n); make a batch with perturbed_states(state, key, count)."
            )
        if is_concrete(self.states) and not _all_finite(self.states):
            raise ValueError("SimulationObjective: a start is not finite.")
        times = (self.t0, self.t1, self.dt)
        if self.dt is not None and is_concrete(times) and not self.dt * (self.t1 - self.t0) > 0:
            raise ValueError(
                f"SimulationObjective: dt = {self.dt} does not lead from t0 = {self.t0} to "
                f"t1 = {self.t1}."
            )
        if self._adaptive and self.max_steps is None:
            raise ValueError(
                "SimulationObjective: an adaptive run has no work budget, and gains have an "
                "optimum only for one; give max_steps, or a fixed step dt."
            )

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """Mean cost over the starts; NaN if one of them fails.

        Args:
            params: resolved parameters.
        """
        return jnp.mean(jax.vmap(partial(self._cost, params))(self.states))

    def costs(self, params: PyTree) -> Float[Array, " starts"]:
        """Cost of every start, shape (starts,); NaN where the run failed.

        Args:
            params: resolved parameters.
        """
        return jax.vmap(partial(self._cost, params))(self.states)

    @property
    def residuals(self) -> Callable[[PyTree], Float[Array, " residuals"]]:
        """The function of parameters that gives numbers whose sum of squares is the objective.

        For least squares: the residuals of the cost of every start, divided by the root of their
        number; NaN for a start whose run fails.

        Raises:
            AttributeError: where the cost is no sum of squares.
        """
        if not hasattr(self.cost, "residuals"):
            raise AttributeError(
                f"SimulationObjective has no residuals: {_name_of(self.cost)} is no sum of squares."
            )
        return self._residuals

    def _residuals(self, params: PyTree) -> Float[Array, " residuals"]:
        def member(state):
            run = self._run(params, state)
            residuals = self.cost.residuals(run)  # pyright: ignore[reportFunctionMemberAccess]
            return jnp.where(run.success, residuals, jnp.nan)

        rows = jax.vmap(member)(self.states)
        return rows.ravel() / np.sqrt(rows.shape[0])

    def trajectories(self, params: PyTree) -> Trajectory:
        """The motions the cost judges.

        Args:
            params: resolved parameters.

        Returns:
            A `Trajectory` with leading axis `starts`.
        """
        return eqx.filter_vmap(partial(self._run, params))(self.states)

    def backend_of(self, params: PyTree) -> tuple[str, str | None]:
        """Which backend makes the runs, and what keeps the native one from it.

        Args:
            params: resolved parameters, or their shapes.

        Returns:
            `Trajectory.backend` and `Trajectory.why_not_native`.
        """
        state = jax.tree.map(lambda x: x[0], self.states)
        run = eqx.filter_eval_shape(self._run, params, state)
        return run.backend, run.why_not_native

    @property
    def budget(self) -> str:
        """Step or work budget the optimum belongs to, in words."""
        solver = "Dopri8" if self.solver is None else _named(self.solver)
        starts = f"{self.states.q.shape[0]} starts"
        if self._adaptive:
            work = f"adaptive, at most {self.max_steps} steps in {self.t1 - self.t0:g} s"
            return f"{solver}, {work}, {starts}"
        return f"{solver}, h = {self.dt:g} s, {self._fixed_steps} steps, {starts}"

    @property
    def _adaptive(self) -> bool:
        fixed = self.stepsize_controller is None or isinstance(
            self.stepsize_controller, diffrax.ConstantStepSize
        )
        return self.dt is None or not fixed

    @property
    def _fixed_steps(self) -> int:
        assert self.dt is not None  # of a fixed-step run, which __check_init__ made sure of
        # Not one step more for a quotient that is above an integer by round-off.
        return int(np.ceil((self.t1 - self.t0) / self.dt * (1 - 1e-9)))

    @property
    def _most_steps(self) -> int:
        if self._adaptive:
            assert self.max_steps is not None  # __check_init__ made sure of it
            return self.max_steps
        # Checkpoints are kept for so many: the known number saves memory. One more than the
        # quotient, whose round-off `simulate` may see differently in single precision.
        return self._fixed_steps + 1

    def _cost(self, params: PyTree, state: State) -> Float[Array, ""]:
        system, formulation, options = self._problem(params)
        run = simulate(system, formulation, state, **options)
        return jnp.where(run.success, self.cost(run), jnp.nan)

    def _run(self, params: PyTree, state: State) -> Trajectory:
        system, formulation, options = self._problem(params)
        return simulate(system, formulation, state, **options)

    def _problem(self, params: PyTree) -> tuple[System, AbstractFormulation, dict[str, Any]]:
        """What is simulated, and how: further arguments of `simulate`."""
        if self.build is not None:
            system, formulation, controller = self.build(params)
        else:
            assert self.system is not None  # __check_init__ made sure of one of the two
            system, formulation, controller = self.system, params, self.controller
        forward = self.mode == "forward"
        adjoint = diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint()
        options = {x: getattr(self, x) for x in _PASSED_ON}
        options |= {"controller": controller, "adjoint": adjoint, "max_steps": self._most_steps}
        return system, formulation, options | {"throw": False, "start_tolerance": None}


# Settings that `simulate` has by the same names.
_PASSED_ON = ("t0", "t1", "dt", "solver", "stepsize_controller", "saveat", "backend")


class Logarithm(eqx.Module):
    """Natural logarithm of a positive objective, with the same minima.

    Gradients become relative. A violation that falls by many powers of ten is then descended on
    at one pace; its budget and mode are those of the objective. Where the objective is not
    positive, the logarithm is not finite (NaN, or `-inf` at zero), and `tune` takes no such step.

    Args:
        objective: positive scalar function of the parameters.
    """

    objective: Callable

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """Logarithm of the objective.

        Args:
            params: resolved parameters.
        """
        return jnp.log(self.objective(params))

    @property
    def mode(self) -> str | None:
        """How to differentiate: as the objective says, if it does."""
        return getattr(self.objective, "mode", None)

    @property
    def budget(self) -> str:
        """Step or work budget of the objective, in words; "" if it states none."""
        return getattr(self.objective, "budget", "")


def perturbed_states(
    state: State,
    key: Array,
    count: int,
    position: Any = 1e-3,
    velocity: Any = 1e-3,
    *,
    system: System | None = None,
    t: float = 0.0,
) -> State:
    """A batch of normally perturbed starts, off the constraints unless a system is given.

    Off the constraints, as they are after round-off, truncation or an imprecise start, they are
    what stabilization has to work on.

    Args:
        state: the start to perturb.
        key: random key.
        count: number of starts.
        position: standard deviation of the coordinates [m or rad], scalar or (n,).
        velocity: standard deviation of the velocities [m/s or rad/s], scalar or (n,).
        system: if given, every start is projected onto its constraints.
        t: time of the projection [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or a perturbed start cannot be projected.
    """
    check_instance("state", state, State, "jaxdae.State(q, v)")
    check_instance("key", key, jax.Array | np.ndarray, "jax.random.key(0)")
    if not isinstance(count, int | np.integer):
        raise TypeError(f"perturbed_states: count is {count!r}, must be an integer.")
    if count < 1:
        raise ValueError(f"perturbed_states: count is {count}, must be at least 1.")
    first, second = jax.random.split(key)
    shape = (count, *state.q.shape)
    q = state.q + position * jax.random.normal(first, shape, state.q.dtype)
    v = state.v + velocity * jax.random.normal(second, shape, state.v.dtype)
    w = jnp.broadcast_to(state.w, (count, *state.w.shape))
    if system is None:
        return jax.vmap(State)(q, v, w)
    states = jax.vmap(lambda q, v, w: consistent_state(system, q, v, t, w=w))(q, v, w)
    if not isinstance(states.q, Tracer):
        _require_projected(np.asarray(states.q + states.v))
    return states


def _named(solver: diffrax.AbstractSolver) -> str:
    """A solver in words, with the one that it wraps."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractWrappedSolver):
        return name
    projection = parts_of(solver).projection
    more = "" if projection is None else f", {projection.iterations} iterations"
    return f"{name}({_named(solver.solver)}{more})"


def _name_of(cost: Callable) -> str:
    return getattr(cost, "__name__", type(cost).__name__)


def _all_finite(tree: PyTree) -> bool:
    return all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(tree))


def _require_projected(values: np.ndarray) -> None:
    failed = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if failed.size:
        raise ValueError(
            f"perturbed_states: {failed.size} of {values.shape[0]} starts (the first is number "
            f"{failed[0]}) could not be projected onto the constraints; perturb less, or leave "
            "`system` out to start off the constraints."
        )
