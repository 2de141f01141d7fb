"""Everything of a run that is computed from its saved states, by compiled code."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.control.base import control_input
from jaxdae.diagnosis import backward, diagnose, singularities
from jaxdae.results.base import of_members
from jaxdae.simulation.invalid import invalidated
from jaxdae.solvers.projection import nearest
from jaxdae.systems import constraint_residuals, generalized_energy, State
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.independence import constraint_rank, unsatisfied
from jaxdae.systems.kinematics import coordinate_rate


def read_rows(trajectory: Any, function: Callable) -> Any:
    """`function(trajectory, t, y)` of every saved state, NaN in rows that were not reached.

    It returns floats in any pytree, and is not one defined anew for each call.
    """
    return at_rows(trajectory, function, trajectory.controller is None)


@of_members
def at_rows(trajectory: Any, function, by_system: bool = False):
    """`function(trajectory, t, y)` at every saved time of every batch member.

    `by_system` says that the function depends on the system and the formulation alone: what a
    native run has saved is read by a native kernel then, too.
    """
    if not trajectory.plain:
        raise ValueError(
            "this run saved no states at times, but what its SaveAt(fn=…), SaveAt(subs=…) or "
            "SaveAt(dense=True) asked for: read `saved` or call `evaluate`, or simulate with "
            "SaveAt(ts=…), SaveAt(steps=True) or SaveAt(t1=True)."
        )
    reached = jnp.isfinite(trajectory.ts)
    # Rows that were not reached are computed at the final state, which is finite, and masked
    # afterwards, so that neither their values nor their derivatives can spoil the others.
    last = (trajectory.final_time, trajectory.final)
    rows = (trajectory.ts, trajectory.saved)
    safe = jax.tree.map(lambda x, x1: jnp.where(_column(reached, x), x, x1), rows, last)
    values = jax.vmap(_of_row(trajectory, function, by_system))(*safe)
    positive = jax.tree.map(with_positive_zeros, values)
    return jax.tree.map(lambda x: jnp.where(_column(reached, x), x, jnp.nan), positive)


def states(trajectory: Any) -> State:
    """States `(q, v, w)` at every saved time."""
    if not (trajectory.plain and trajectory.formulation.capabilities.plain_state):
        return at_rows(trajectory, state_of)
    return _plain_rows(trajectory.final_time, trajectory.final, trajectory.ts, trajectory.saved)


def final_state(trajectory: Any) -> State:
    """State at the end; NaN where the run failed."""
    if not trajectory.formulation.capabilities.plain_state:
        return _recovered_end(trajectory)
    given = jax.tree.leaves(_given(trajectory))
    return _plain_end(trajectory.final_time, trajectory.final, trajectory.success, given)


def last_state(trajectory: Any) -> State:
    """The last state that was accepted and finite."""
    if not trajectory.formulation.capabilities.plain_state:
        return _recovered_last(trajectory)
    return _plain_last(trajectory.final_time, trajectory.final)


@of_members
def _recovered_end(trajectory: Any) -> State:
    return invalidated(_recovered_last(trajectory), ~trajectory.success, _given(trajectory))


@of_members
def _recovered_last(trajectory: Any) -> State:
    recover = trajectory.formulation.recover
    state = recover(trajectory.system, trajectory.final_time, trajectory.final)
    return jax.tree.map(with_positive_zeros, state)


def _of_numbers(function: Callable) -> Callable:
    """A function of arrays of a run, its final time first: one program for all systems."""

    @jit
    @functools.wraps(function)
    def each(final_time, *arrays):
        if final_time.ndim > 0:
            return jax.vmap(each)(final_time, *arrays)
        return function(final_time, *arrays)

    return each


@_of_numbers
def _plain_rows(final_time, final, ts, saved):
    del final_time
    reached = jnp.isfinite(ts)

    def masked(x, last):
        x = with_positive_zeros(jnp.where(_column(reached, x), x, last))
        return jnp.where(_column(reached, x), x, jnp.nan)

    return jax.tree.map(masked, saved, final)


@_of_numbers
def _plain_end(final_time, final, success, given):
    return invalidated(_plain_last(final_time, final), ~success, given)


@_of_numbers
def _plain_last(final_time, final):
    del final_time
    return jax.tree.map(with_positive_zeros, final)


def with_positive_zeros(x):
    """The same: the sign of a zero depends on the order of a sum, which backends choose."""
    return x - jax.lax.stop_gradient(jnp.where(x == 0, x, jnp.zeros_like(x)))  # -0 - (-0) = 0


def _of_row(run: Any, function, by_system: bool):
    """The same as a function of `(t, y)`, by the backend that made the run."""
    row = (run.ts[0], jax.tree.map(lambda x: x[0], run.saved))

    def of_arrays(t, y, arrays):
        return function(dataclasses.replace(run, arrays=arrays), t, y)

    return run.made_by.reader(of_arrays, row, run.arrays, by_system=by_system)


@of_members
def over_run(trajectory: Any, function):
    """`function(trajectory, ts, ys, work)` of all rows reached by each member, the start first."""
    if not trajectory.plain:
        raise ValueError("this run saved no states at times: simulate with SaveAt(ts=…).")
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


def least_singular_value(run, ts, ys, work):
    """Least singular value of the constraint Jacobian along the run."""
    del work
    states = jax.vmap(lambda t, y: state_of(run, t, y))(ts, ys)
    return singularities.least_singular_value(run.system, ts, states, run.held_rank)


def incompatibility(run, ts, ys, work):
    """Largest residual along the run that no motion can avoid."""
    del work
    states = jax.vmap(lambda t, y: state_of(run, t, y))(ts, ys)
    remain = jax.vmap(lambda t, s: unsatisfied(run.system, t, s))(ts, states)
    sizes = [jnp.max(jnp.abs(x), initial=0.0) for x in (remain.phi, remain.phi_dot)]
    return jnp.maximum(*sizes)


def backward_growth(run, ts, ys, work):
    """Factor by which damping lets deviations grow in a run backward in time."""
    del work
    parts = run.system, run.formulation, run.controller
    root = lambda t, y: backward.damping_root(*parts, t, state_of(run, t, y))  # noqa: E731
    return jnp.exp(backward.largest_growth(jnp, ts, jax.vmap(root)(ts, ys)))


def energy_error(run, ts, ys, work):
    """Largest error of the energy balance along the run [J]."""
    states = jax.vmap(lambda t, y: state_of(run, t, y))(ts, ys)
    total = None if work is None else sum(work)
    if not diagnose.balance_is_known(run.formulation, total):
        return jnp.full((), jnp.nan, ts.dtype)
    changes = _changes_by_events(run, ts)
    return diagnose.energy_error(run.system, run.controller, ts, states, total, changes)


def _changes_by_events(run, ts):
    """What resets of events have changed the energy by, before each of some times [J]."""
    if run.events is None:
        return jnp.zeros_like(ts)
    found, at = run.events, lambda t, s: generalized_energy(run.system, t, s.q, s.v)
    happened = found.indices >= 0
    times = jnp.where(happened, found.times, run.start[0])
    first = run.start[1]
    start = run.formulation.recover(run.system, run.start[0], first)
    before, after = (
        jax.tree.map(lambda x, y: jnp.where(_column(happened, x), x, y), states, start)
        for states in (found.before, found.after)
    )
    change = jax.vmap(at)(times, after) - jax.vmap(at)(times, before)
    sign = jnp.where(run.final_time >= run.start[0], 1.0, -1.0)
    passed = happened & (sign * found.times <= sign * ts[:, None])
    return jnp.sum(jnp.where(passed, change, 0.0), axis=1)


@of_members
def at_time(trajectory: Any, t) -> State:
    """State of dense output at a time, or at times."""
    if t.ndim > 0:
        return jax.vmap(lambda one: at_time(trajectory, one))(t)
    y, _ = trajectory.interpolation.evaluate(t)
    if trajectory.projections:
        y = nearest(trajectory.system, trajectory.formulation, t, y, trajectory.projections)
    state = trajectory.formulation.recover(trajectory.system, t, y)
    start = trajectory.start[0]
    beyond = jnp.abs(t - start) > jnp.abs(trajectory.final_time - start)
    return invalidated(state, ~trajectory.success & beyond, _given(trajectory))


def _given(trajectory: Any) -> tuple:
    """What a run depends on, also one that fails before its first step has an end."""
    return trajectory.arrays, trajectory.start, trajectory.given


def state_of(run, t, y):
    """State `(q, v, w)` of the formulation's own."""
    return run.formulation.recover(run.system, t, y)


def coordinate_rates(run, t, y):
    """Rates of the coordinates."""
    state = state_of(run, t, y)
    return coordinate_rate(run.system, t, state.q, state.v)


def control(run, t, y):
    """Control input."""
    return control_input(run.controller, t, state_of(run, t, y))


def multipliers(run, t, y):
    """Multipliers."""
    u = control_input(run.controller, t, state_of(run, t, y))
    return run.formulation.multipliers(run.system, t, y, u)


def violation(run, t, y):
    """Constraint residuals."""
    state = state_of(run, t, y)
    return constraint_residuals(run.system, t, state.q, state.v)


def jacobian(run, t, y):
    """Constraint Jacobian."""
    state = state_of(run, t, y)
    return mass_and_jacobian(run.system, t, state.q, state.v)[1]


def rank(run, t, y):
    """Number of independent constraints."""
    return constraint_rank(run.system, t, state_of(run, t, y)).rank


def kinetic_energy(run, t, y):
    """Kinetic energy [J]."""
    state = state_of(run, t, y)
    return run.system.kinetic_energy(t, state.q, state.v)


def potential_energy(run, t, y):
    """Potential energy [J]."""
    return run.system.potential_energy(t, state_of(run, t, y).q)


def energy(run, t, y):
    """Generalized energy [J]."""
    state = state_of(run, t, y)
    return generalized_energy(run.system, t, state.q, state.v)


def everything(run, t, y) -> dict[str, Any]:
    """All quantities of a row, by the names that files have for them."""
    system, state = run.system, state_of(run, t, y)
    u = control_input(run.controller, t, state)
    residual = constraint_residuals(system, t, state.q, state.v)
    results = {
        "q": state.q, "v": state.v, "w": state.w, "u": u,
        "multipliers": run.formulation.multipliers(system, t, y, u),
        "phi": residual.phi, "phi_dot": residual.phi_dot,
        "energy": generalized_energy(system, t, state.q, state.v),
        "kinetic_energy": system.kinetic_energy(t, state.q, state.v),
        "potential_energy": system.potential_energy(t, state.q),
    }  # fmt: skip
    if not run.velocities_are_rates:
        results["coordinate_rates"] = coordinate_rate(system, t, state.q, state.v)
    return results


def _column(mask, x):
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))
