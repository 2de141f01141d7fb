"""The vector field of a run, linearized at states of it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.compiled import jit
from jaxdae.simulation.field import field


class LinearField(NamedTuple):
    """`dy/dt = f(t, y)` at some rows, `y` a formulation's own state as a vector.

    Args:
        states: `y`, shape `(rows, states)`.
        rates: `f`, shape `(rows, states)`.
        jacobians: `df/dy`, shape `(rows, states, states)`.
        slopes: `df/dt`, shape `(rows, states)`.
    """

    states: np.ndarray
    rates: np.ndarray
    jacobians: np.ndarray
    slopes: np.ndarray


def linear_field(parts, ts, ys) -> LinearField:
    """The vector field and its Jacobian at some rows, as NumPy arrays, by one compiled program.

    Args:
        parts: `(system, formulation, controller)`.
        ts: times [s], shape `(rows,)`.
        ys: the formulation's own states, rows along a first axis of each leaf.
    """
    return LinearField(*jax.device_get(_rows(parts, ts, ys)))


# Run once or twice, as long as it compiles: no optimization.
@jit(compiler_options={"xla_backend_optimization_level": 0})
def _rows(parts: Any, ts, ys):
    def one(t, y):
        flat, unravel = ravel_pytree(y)

        def rate(x, t):
            found, _ = field(t, (unravel(x), None), parts)
            found = ravel_pytree(found)[0].astype(flat.dtype)
            return found, found

        (jacobian, slope), found = jax.jacfwd(rate, argnums=(0, 1), has_aux=True)(flat, t)
        return flat, found, jacobian, slope

    return jax.vmap(one)(jnp.asarray(ts), ys)
