"""What the derivatives of all kernels share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdae.derivatives.primitives import moving, replaced


def pushed(function: Callable, primals, tangents):
    """Values of a function and their derivative along the tangents that are not zero.

    Args:
        function: of arrays.
        primals: its arguments.
        tangents: of the arguments; some may be JAX's symbolic zeros.

    Returns:
        Values and tangents, as rules of JAX's primitives return them.
    """
    by = moving(tangents)
    varied = lambda *some: function(*replaced(primals, by, some))  # noqa: E731
    some, moves = (tuple(x[i] for i in by) for x in (primals, tangents))
    return jax.jvp(varied, some, moves)


def stacked(x, axis: int | None, at: int, size: int) -> jax.Array:
    """Directions along one axis.

    Args:
        x: an array.
        axis: where it has the directions; `None` where all are the same.
        at: where they are wanted.
        size: how many there are.
    """
    if axis is None:
        return jnp.repeat(jnp.expand_dims(x, at), size, at)
    return jnp.moveaxis(x, axis, at)
