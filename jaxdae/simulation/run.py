"""One run: the only engine, a pure function that JAX may trace, differentiate and batch."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.formulations.base import holding_rank, solves
from jaxdae.simulation import backends, segments
from jaxdae.simulation.plain import PlainBackend
from jaxdae.simulation.problem import as_examined, Integration, Method, Problem, Solution
from jaxdae.simulation.saving import column, is_plain, is_sub
from jaxdae.solvers.projected import between_steps
from jaxdae.systems import Power, State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.independence import are_dependent

PLAIN = PlainBackend()


def backend_of(name: str) -> backends.AbstractBackend:
    """The backend of a name; the native one, and the compiler below it, is loaded for it alone."""
    if name == PLAIN.name:
        return PLAIN
    from jaxdae.simulation.native import NativeBackend

    return NativeBackend()


def run(problem: Problem, method: Method) -> Solution:
    """Integrate a problem.

    Nothing is checked and nothing said: a run that fails is a value. See `jaxdae.simulate`.

    Args:
        problem: what is simulated.
        method: how.

    Returns:
        `Solution`.

    Raises:
        BackendError: when the native backend is asked for by name and cannot serve.
    """
    method = as_examined(method)
    system, formulation, _, state, times, _, _ = problem
    formulation = holding_rank(formulation, system, times.start, state, _kernel(method))
    begun = problem._replace(formulation=formulation)
    zero = jnp.zeros((), state.q.dtype)
    work = Power(zero, zero, zero, zero) if method.work else None
    y0 = (formulation.init(system, times.start, state), work)
    dependent = None if method.start_is_known else _dependence(begun, method)
    begin = y0
    if dependent is not None:
        begin = jax.tree.map(lambda x: jnp.where(dependent, jnp.nan, x), y0)
    backend, events = backend_of(method.backend), None
    try:
        if problem.events:
            integration, events = segments.integrate(begun, method, begin, _part(backend, begin))
        else:
            integration = backend.solve(begun, method, begin)
            integration = _on_constraints(integration, method, begun, begin)
    except backends.UnsuitedError as reason:
        if method.strict:
            raise backends.refused(reason) from None
        return run(problem, method._replace(why_not=str(reason), backend=PLAIN.name))
    result = solution(integration, method, begun, y0)
    return result._replace(dependent=dependent, events=events)


def _part(backend: backends.AbstractBackend, y0) -> Callable[[Problem, Method, Any], Integration]:
    """A part of a run between two events; `y0`, where the run begins."""

    def solve(problem: Problem, method: Method, y) -> Integration:
        return _on_constraints(backend.solve(problem, method, y), method, problem, y0)

    return solve


def _dependence(problem: Problem, method: Method):
    """Whether constraints depend on each other at the start; `None` where that does not matter."""
    system, formulation, state = problem.system, problem.formulation, problem.state
    assumed = formulation.capabilities.independent_constraints
    if not (assumed and depends_on_rank(formulation, system, state)):
        return None
    return are_dependent(system, problem.times.start, state, _kernel(method))


def _kernel(method: Method) -> Callable | None:
    """What makes kernels for a start; `None` on the plain backend."""
    return None if method.backend == PLAIN.name else backend_of(method.backend).kernel


def depends_on_rank(formulation, system: System, state: State) -> bool:
    """Whether it matters to a formulation if the constraints are independent."""
    assumed = formulation.capabilities.independent_constraints
    if formulation.examination.holds is not None:
        return False
    asked = any(x.resolved(True).asks_for_rank for x in solves(formulation))
    # One by itself is independent but at singular positions, which no run can pass anyway.
    return (assumed or asked) and sum(constraint_counts(system, state)) > 1


def _on_constraints(integration: Integration, method: Method, problem: Problem, y0) -> Integration:
    """Saved states between the steps of a projected solver go to the constraints as well."""
    saveat, projection = method.saveat, between_steps(method.solver)
    between = saveat is None or (is_sub(saveat.subs) and saveat.subs.ts is not None)
    if method.only_end or projection is None or not (between and is_plain(saveat)):
        return integration
    # Rows that were not reached stay as they are, and their derivatives zero.
    reached = jnp.isfinite(marked(integration.ts, integration.rows))
    pick = lambda row, safe: jax.tree.map(  # noqa: E731
        lambda a, b: jnp.where(column(reached, a), a, b), row, safe
    )
    safe = pick((integration.ts, integration.rows), (problem.times.start, y0))
    parts, rest = eqx.partition(problem.parts, eqx.is_array)

    def project(t, y, parts):
        return projection.project(t, y, eqx.combine(parts, rest))

    row = jax.tree.map(lambda x: x[0], safe)
    moved = jax.vmap(integration.backend.reader(project, row, parts, by_system=True))(*safe)
    return integration._replace(rows=pick(moved, integration.rows))


def solution(integration: Integration, method: Method, problem: Any, y0) -> Solution:
    """Mark what was not reached, and separate the final state from what the user saves."""
    ts, saved = integration.ts, integration.rows
    end_time, end = integration.end_time, integration.end
    start = (problem.times.start, y0[0])
    monitored = None if method.picked is None and not method.only_end else (ts, *saved)
    if method.only_end:
        one_row = lambda tree: jax.tree.map(lambda x: x[None], tree)  # noqa: E731
        # A run that failed has no work at its end.
        work = jax.tree.map(lambda x: x[-1:], saved[1])
        ts, saved = end_time[None], (one_row(end), work)
    # A fixed-step run goes on through NaN; diffrax calls that success.
    broken = ~all_finite(end) & diffrax.is_okay(integration.result)
    nonfinite: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix
    result = diffrax.RESULTS.where(broken, nonfinite, integration.result)
    plain = is_plain(method.saveat) and ts is not None
    work, last = None, start
    if plain:
        ts = marked(ts, saved)
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
    return Solution(
        ts, saved, end_time, end, result, integration.stats, integration.interpolation, work,
        plain, start, monitored, problem.formulation, integration.backend, integration.why_not,
    )  # fmt: skip


@jax.custom_jvp
def _reached(rows, reached):
    """Rows as they are; those that were not reached depend on nothing."""
    return rows


@_reached.defjvp
def _reached_jvp(primals, tangents):
    (rows, reached), (moves, _) = primals, tangents
    return rows, jax.tree.map(lambda x: jnp.where(column(reached, x), x, jnp.zeros_like(x)), moves)


def all_finite(tree):
    """Whether all numbers of a pytree are finite."""
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def marked(ts, saved):
    """`inf` for the times at which the saved state is not finite."""
    rows = [jnp.isfinite(x).reshape(ts.size, -1).all(axis=1) for x in jax.tree.leaves(saved[0])]
    good = jnp.stack(rows).all(axis=0)
    return jnp.where(good, ts, jnp.inf)
