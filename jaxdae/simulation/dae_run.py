"""One run of differential-algebraic equations: a pure function that JAX may trace and batch."""

from functools import partial

import jax
import jax.numpy as jnp

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.simulation import backends
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.problem import Integration, Method, Solution
from jaxdae.simulation.run import backend_of, marked, PLAIN, solution
from jaxdae.systems.dae import Variables
from jaxdae.systems.dae_equations import dtype_of
from jaxdae.systems.dae_start import consistent, violation


def run_dae(problem: DAEProblem, method: Method) -> Solution:
    """Integrate a problem.

    Nothing is checked and nothing said: a run that fails is a value. See `jaxdae.solve`.

    Args:
        problem: what is solved.
        method: how.

    Raises:
        BackendError: when the native backend is asked for by name and cannot serve.
    """
    begin = problem.state, None
    try:
        integration = backend_of(method.backend).solve(problem, method, begin)
    except backends.UnsuitedError as reason:
        if method.strict:
            raise backends.refused(reason) from None
        method = method._replace(why_not=str(reason))
        integration = PLAIN.solve(problem, method, begin)
    return solution(_consistent(integration, method, problem), method, problem, begin)


def _consistent(integration: Integration, method: Method, problem: DAEProblem) -> Integration:
    """Rows and the end satisfy the equations: those between steps, and `z`, anew from `y`."""
    times, start = problem.times, problem.state
    index = problem.equations.index(times.start, start)

    def one(t, variables: Variables, good):
        # What was not reached stays as it is, and its derivatives are zero.
        pick = lambda a, b: jax.tree.map(lambda x, y: jnp.where(good, x, y), a, b)  # noqa: E731
        t, safe = pick((t, variables), (times.start, start))
        function = partial(_nearest, index)
        return pick(with_nan_safe_derivative(function, safe, problem.equations, t, safe), variables)

    ends = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(integration.end)]))
    end = one(integration.end_time, integration.end, ends)
    integration = integration._replace(end=end)
    if integration.ts is None or (method.saveat is not None and method.saveat.dense):
        return integration
    rows, work = integration.rows
    reached = jnp.isfinite(marked(integration.ts, integration.rows))
    rows = jax.vmap(one)(integration.ts, rows, reached)
    return integration._replace(rows=(rows, work))


def _nearest(index: int, equations, t, variables: Variables) -> Variables:
    return nearest(equations, index, t, variables)


def nearest(equations, index: int, t, variables: Variables) -> Variables:
    """Consistent values next to those of a run; NaN where there are none."""
    found = consistent(equations, index, t, variables)
    limit = float(jnp.finfo(dtype_of(variables)).eps) ** 0.5
    good = jnp.all(violation(equations, index, t, found).distance <= limit)
    return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), found)
