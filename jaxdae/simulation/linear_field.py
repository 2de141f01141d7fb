"""The vector field of a run, linearized at states of it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.simulation.field import field

# Power of a filter that takes away what is faster than half the fastest root.
_SHARP = 32
_SWEEPS = 30


class LinearField(NamedTuple):
    """`dy/dt = f(t, y)` at some rows, `y` a formulation's own state as a vector.

    Args:
        ts: times [s], shape `(rows,)`.
        states: `y`, shape `(rows, states)`.
        rates: `f`, shape `(rows, states)`.
        jacobians: `df/dy`, shape `(rows, states, states)`.
        slopes: `df/dt`, shape `(rows, states)`.
    """

    ts: np.ndarray
    states: np.ndarray
    rates: np.ndarray
    jacobians: np.ndarray
    slopes: np.ndarray

    @property
    def fastest(self) -> np.ndarray:
        """The roots of largest size [1/s], complex, shape `(rows,)`."""
        roots = np.linalg.eigvals(self.jacobians)
        return roots[np.arange(len(roots)), np.argmax(np.abs(roots), axis=1)]


def linear_field(parts, ts, ys) -> LinearField | None:
    """The vector field and its derivatives at some rows, by one compiled program.

    Args:
        parts: `(system, formulation, controller)`.
        ts: times [s], shape `(rows,)`.
        ys: the formulation's own states, rows along a first axis of each leaf.

    Returns:
        `LinearField` of the rows at which all is finite, in double precision; `None` without any,
        and for functions of the user that have no derivatives in forward mode.
    """
    try:
        found = jax.device_get(_rows(parts, ts, ys))
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        return None
    finite = np.isfinite(found[2]).all(axis=(1, 2)) & np.isfinite(found[3]).all(axis=1)
    if not finite.any():
        return None
    return LinearField(np.asarray(ts)[finite], *(np.asarray(x, float)[finite] for x in found))


class Scaled(NamedTuple):
    """A vector field with the time as its last state, in units of the fastest root.

    Args:
        ahead: rates over the root, shape `(rows, states + 1)`.
        matrix: their derivatives, likewise, `(rows, states + 1, states + 1)`.
    """

    ahead: np.ndarray
    matrix: np.ndarray

    def largest(self, x, scale) -> np.ndarray:
        """Of entries of states over their scale, shape `(rows,)`."""
        return np.abs(x[:, :-1] / scale).max(axis=1)

    def times(self, x) -> np.ndarray:
        """The matrix times vectors."""
        return np.einsum("rij,rj->ri", self.matrix, x)

    def is_slow(self, scale, part: float) -> np.ndarray:
        """Whether the motion without its fastest modes is slower than the root by a factor.

        Args:
            scale: of states, shape `(rows, states)`.
            part: the factor.

        Returns:
            Shape `(rows,)`.
        """
        # In units in which powers of the matrix lose no digits.
        units = _balance(self.matrix)
        matrix = 2 * self.matrix * units[:, None, :] / units[..., None]
        filtered = np.linalg.matrix_power(matrix, _SHARP) + np.eye(matrix.shape[1])
        slow = units * np.linalg.solve(filtered, (self.ahead / units)[..., None])[..., 0]
        bend = self.largest(self.times(self.times(slow)), scale)
        return bend <= part**2 * self.largest(slow, scale)


def _balance(matrix) -> np.ndarray:
    """Units of states in which rows and columns of matrices are of about even size.

    Shape `(rows, states)`.
    """
    sizes = np.abs(matrix) * (1 - np.eye(matrix.shape[1]))
    units = np.ones(sizes.shape[:2])
    for _ in range(_SWEEPS):
        now = sizes * units[:, None, :] / units[..., None]
        row, column = now.sum(axis=2), now.sum(axis=1)
        both = (row > 0) & (column > 0)
        units = units * np.where(both, row / np.where(both, column, 1.0), 1.0) ** 0.25
    return units


def scaled(field: LinearField, sizes) -> Scaled:
    """The vector field in units of the sizes of its fastest roots, shape `(rows,)`."""
    ahead = np.concatenate([field.rates, np.ones_like(field.rates[:, :1])], axis=1)
    matrix = np.concatenate([field.jacobians, field.slopes[..., None]], axis=2)
    matrix = np.concatenate([matrix, np.zeros_like(matrix[:, :1])], axis=1)
    return Scaled(ahead / sizes[:, None], matrix / sizes[:, None, None])


@jit(options=BRIEFLY)
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
