"""The vector field of a run, with the power of forces beside it where works are asked for."""

import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.control.base import control_input
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.systems import power_balance


# Compiled apart, it is traced once however often solver and derivatives ask for it.
@jit
def vector_field(t, y, args):
    """`field`, whose derivatives in reverse mode leave members of a batch that failed alone."""
    return with_nan_safe_derivative(field, y, t, y, args)


def field(t, y, args):
    """`dy/dt` of a formulation's own state, and of the works.

    Args:
        t: time [s].
        y: the formulation's own state, and works [J] or `None`.
        args: `(system, formulation, controller)`.
    """
    y, work = y
    system, formulation, controller = args
    state = formulation.recover(system, t, y)
    u = control_input(controller, t, state)
    # At a singularity, infinities become NaN: step controllers reject NaN, but a trial state with
    # infinities makes their scaled error, and then the step itself, NaN.
    clean = lambda rate: jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), rate)  # noqa: E731
    if work is None:
        return clean(formulation.vector_field(system, t, y, u)), None
    rate, lam = formulation.rate_and_multipliers(system, t, y, u)
    return clean(rate), power_balance(system, t, state.q, state.v, state.w, u, lam)
