"""One run of differential-algebraic equations: a pure function that JAX may trace and batch."""

import jax
import jax.numpy as jnp

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.simulation import backends, segments
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.problem import as_examined, Integration, Method, Solution
from jaxdae.simulation.run import all_finite, backend_of, marked, PLAIN, solution
from jaxdae.simulation.saving import column, is_end
from jaxdae.solvers.rodas5p import Rodas5P
from jaxdae.systems.dae import Variables
from jaxdae.systems.dae_start import nearest


def run_dae(problem: DAEProblem, method: Method) -> Solution:
    """Integrate a problem.

    Nothing is checked and nothing said: a run that fails is a value. See `jaxdae.solve`.

    Args:
        problem: what is solved.
        method: how.

    Raises:
        BackendError: when the native backend is asked for by name and cannot serve.
    """
    method = as_examined(method)
    backend, events = backend_of(method.backend), None
    start = problem.state
    if isinstance(method.solver, Rodas5P):
        # Its stages begin at z, which follows from y with its derivatives.
        start = _nearest(problem, problem.times.start, start, all_finite(start))
    begin = start, None

    def part(problem: DAEProblem, method: Method, y) -> Integration:
        """A part of a run between two events, with `z` at its end anew from `y`."""
        made = backend.solve(problem, method, y)
        end = _nearest(problem, made.end_time, made.end, all_finite(made.end))
        return made._replace(end=end)

    try:
        if problem.events:
            integration, events = segments.integrate(problem, method, begin, part)
        else:
            integration = part(problem, method, begin)
    except backends.UnsuitedError as reason:
        if method.strict:
            raise backends.refused(reason) from None
        return run_dae(problem, method._replace(why_not=str(reason), backend=PLAIN.name))
    found = solution(_consistent(integration, method, problem), method, problem, begin)
    return found._replace(events=events)


def _consistent(integration: Integration, method: Method, problem: DAEProblem) -> Integration:
    """Rows satisfy the equations: those between steps, and `z`, anew from `y`."""
    saveat = method.saveat
    if integration.ts is None or (saveat is not None and saveat.dense):
        return integration
    rows, work = integration.rows
    reached = jnp.isfinite(marked(integration.ts, integration.rows))
    if is_end(saveat):  # that is known
        pick = lambda x, end: jnp.where(column(reached, x), end, x)  # noqa: E731
        return integration._replace(rows=(jax.tree.map(pick, rows, integration.end), work))
    one = lambda t, row, good: _nearest(problem, t, row, good)  # noqa: E731
    return integration._replace(rows=(jax.vmap(one)(integration.ts, rows, reached), work))


def _nearest(problem: DAEProblem, t, variables: Variables, good) -> Variables:
    """Consistent values next to those of a run; the same, without derivatives, where not `good`."""
    times, start = problem.times, problem.state
    index = problem.equations.index(times.start, start)
    pick = lambda a, b: jax.tree.map(lambda x, y: jnp.where(good, x, y), a, b)  # noqa: E731
    t, safe = pick((t, variables), (times.start, start))
    found = with_nan_safe_derivative(nearest, safe, problem.equations, index, t, safe)
    return pick(found, variables)
