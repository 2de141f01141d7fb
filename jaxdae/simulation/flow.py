"""Short moves along a motion: from a time to another one next to it, with exact derivatives."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.simulation.field import vector_field

# Of the classical Runge-Kutta method.
_NODES, _WEIGHTS = (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)


def moved(t, y, change, parts) -> Any:
    """The state at a time next to another, by one step of the classical Runge-Kutta method.

    Of a change that is zero it has the derivatives of the flow by that change up to the fourth.

    Args:
        t: time [s].
        y: what is integrated: the formulation's own state, and works or `None`.
        change: of the time [s].
        parts: `(system, formulation, controller)`.
    """

    def stage(carry, numbers):
        slope, total = carry
        node, weight = numbers
        at = jax.tree.map(lambda x, k: x + node * change * k, y, slope)
        slope = vector_field(t + node * change, at, parts)
        return (slope, jax.tree.map(lambda a, k: a + weight * k, total, slope)), None

    zero = jax.tree.map(jnp.zeros_like, y)
    numbers = tuple(jnp.asarray(x, t.dtype) for x in (_NODES, _WEIGHTS))
    (_, total), _ = jax.lax.scan(stage, (zero, zero), numbers)
    return jax.tree.map(lambda x, k: x + change * k, y, total)
