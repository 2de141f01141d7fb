"""One run as a compiled program, by one of the backends."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.formulations.held_rank import holding_rank
from jaxdae.simulation import backends
from jaxdae.simulation.assumptions import DEPENDENT_START
from jaxdae.simulation.native import native_reading, NativeBackend
from jaxdae.simulation.plain import PlainBackend
from jaxdae.simulation.problem import Method, Problem, Solution
from jaxdae.simulation.saving import is_plain, is_sub
from jaxdae.simulation.starts import depends_on_rank, Start
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.solvers.projected import parts_of
from jaxdae.systems import Power
from jaxdae.systems.independence import are_dependent

PLAIN, NATIVE = PlainBackend(), NativeBackend()


def run(problem: Problem, method: Method, declared) -> Trajectory:
    """Integrate a problem: one compiled program for all that are of one kind.

    Args:
        problem: what is simulated.
        method: how.
        declared: kinds of the plain numbers in the problem.
    """
    del declared  # programs of 1, 1.0 and True are different ones
    system, formulation, _, state, times = problem
    formulation = holding_rank(formulation, system, times.start, state)
    problem = problem._replace(formulation=formulation)
    zero = jnp.zeros((), state.q.dtype)
    work = Power(zero, zero, zero, zero) if method.work else None
    y0 = (formulation.init(system, times.start, state), work)
    solution, backend = _solved(
        problem, method, y0 if method.judged else _judged(problem, method, y0)
    )
    solution = _on_constraints(solution, method, problem, y0)
    trajectory = _trajectory(solution, method, problem, y0[0], backend)
    if not method.throw:
        return trajectory
    # All of it, so that whatever is read of a failed run inside a transformation raises.
    return trajectory.result_code.error_if(trajectory, ~trajectory.success)


def _judged(problem: Problem, method: Method, y0):
    """A start, NaN where constraints are dependent and the formulation cannot take that."""
    system, formulation, _, state, times = problem
    assumed = formulation.capabilities.independent_constraints
    if not (assumed and depends_on_rank(formulation, Start(system, state, times.start))):
        return y0
    kernel = native_reading if method.backend == NATIVE.name else None
    bad = are_dependent(system, times.start, state, kernel)
    y0 = eqx.error_if(y0, bad, DEPENDENT_START) if method.throw else y0
    return jax.tree.map(lambda x: jnp.where(bad, jnp.nan, x), y0)


def _solved(problem: Problem, method: Method, y0) -> tuple[Solution, backends.AbstractBackend]:
    """What a run gives, and by which backend."""
    if method.backend == NATIVE.name:
        try:
            return NATIVE.solve(problem, method, y0), NATIVE
        except backends.UnsuitedError as reason:
            if method.strict:
                raise backends.refused(reason) from None
            method = method._replace(why_not=str(reason))
    return PLAIN.solve(problem, method, y0), PLAIN


def _on_constraints(solution: Solution, method: Method, problem: Problem, y0) -> Solution:
    """Saved states between the steps of a projected solver go to the constraints as well."""
    saveat, projection = method.saveat, parts_of(method.solver).projection
    between = saveat is None or (is_sub(saveat.subs) and saveat.subs.ts is not None)
    if method.only_end or projection is None or not (between and is_plain(saveat)):
        return solution
    # Rows that were not reached stay as they are, and their derivatives zero.
    reached = jnp.isfinite(_mark(solution.ts, solution.rows))
    pick = lambda row, safe: jax.tree.map(  # noqa: E731
        lambda a, b: jnp.where(_column(reached, a), a, b), row, safe
    )
    safe = pick((solution.ts, solution.rows), (problem.times.start, y0))
    moved = jax.vmap(lambda t, y: projection.project(t, y, problem.parts))(*safe)
    return solution._replace(rows=pick(moved, solution.rows))


def _trajectory(solution: Solution, method: Method, problem: Problem, y0, backend) -> Trajectory:
    """Mark what was not reached, and separate the final state from what the user saves."""
    ts, saved, end_time, end = solution.ts, solution.rows, solution.end_time, solution.end
    start = (problem.times.start, y0)
    watched = None if method.picked is None and not method.only_end else (ts, *saved)
    if method.only_end:
        one_row = lambda tree: jax.tree.map(lambda x: x[None], tree)  # noqa: E731
        # A run that failed has no work at its end.
        work = jax.tree.map(lambda x: x[-1:], saved[1])
        ts, saved = end_time[None], (one_row(end), work)
    # A fixed-step run goes on through NaN; diffrax calls that success.
    broken = ~_all_finite(end) & (solution.result == diffrax.RESULTS.successful)
    nonfinite: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix
    result = diffrax.RESULTS.where(broken, nonfinite, solution.result)
    plain = is_plain(method.saveat) and ts is not None
    work, last = None, start
    if plain:
        ts = _mark(ts, saved)
        saved, work = _reached(saved, jnp.isfinite(ts))
        work = jax.tree.map(lambda x: jnp.where(jnp.isfinite(ts), x, jnp.nan), work)
        # The last state that was still finite is the last row that is, or else the start.
        rows = jnp.sum(jnp.isfinite(ts))
        row = jax.tree.map(lambda x: x[jnp.maximum(rows - 1, 0)], (ts, saved))
        last = jax.tree.map(lambda a, b: jnp.where(rows > 0, a, b), row, start)
    if method.picked is not None:
        ts, saved, work = jax.tree.map(lambda x: x[method.picked], (ts, saved, work))
    pick = lambda a, b: jnp.where(broken, a, b)  # noqa: E731
    end_time, end = jax.tree.map(pick, last, (end_time, end))
    arrays, skeleton = eqx.partition(problem.parts, eqx.is_array)
    projection = parts_of(method.solver).projection
    projections = 0 if projection is None else projection.iterations
    return Trajectory(
        ts, saved, end_time, end, result, solution.stats, solution.interpolation, work, plain,
        arrays, skeleton, backend, solution.why_not, projections, start, watched,
    )  # fmt: skip


@jax.custom_jvp
def _reached(rows, reached):
    """Rows as they are; those that were not reached depend on nothing."""
    del reached
    return rows


@_reached.defjvp
def _reached_jvp(primals, tangents):
    (rows, reached), (moves, _) = primals, tangents
    return rows, jax.tree.map(lambda x: jnp.where(_column(reached, x), x, jnp.zeros_like(x)), moves)


def _all_finite(tree):
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _mark(ts, saved):
    """`inf` for the times at which the saved state is not finite."""
    rows = [jnp.isfinite(x).reshape(ts.size, -1).all(axis=1) for x in jax.tree.leaves(saved[0])]
    good = jnp.stack(rows).all(axis=0)
    return jnp.where(good, ts, jnp.inf)


def _column(mask, x):
    return mask.reshape(-1, *[1] * (x.ndim - 1))
