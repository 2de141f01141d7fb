"""Least squares of many rows in as few as there are columns, and one more."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

# Rows of a block in a factorization, by columns. Linear algebra libraries share larger ones among
# threads, whose waiting for each other takes longer than the work.
_BLOCK = 8


class Short(NamedTuple):
    """Residuals and Jacobian in `k = min(m, p + 1)` rows, for `m` residuals of `p` parameters."""

    value: Float[Array, " k"]  # shape `(k,)`
    slope: Float[Array, "k p"]  # shape `(k, p)`


def shortened(residuals: Float[Array, " m"], jacobian: Float[Array, "m p"]) -> Short:
    """Both multiplied by the transpose of `Q`, with `Q R = (J, r)`.

    They have the norm, the gradient, and the linearization's norm after every step of `r` and `J`.
    """
    factor = triangle(jnp.concatenate([jacobian, residuals[:, None]], axis=1))
    return Short(factor[:, -1], factor[:, :-1])


def triangle(matrix: Float[Array, "m n"]) -> Array:
    """`R` of a factorization `Q R` of a matrix, found block by block [DemmelEtAl2012]."""
    (rows, columns), high = matrix.shape, _BLOCK * matrix.shape[1]
    while rows > 2 * high > 0:
        padded = jnp.pad(matrix, ((0, -rows % high), (0, 0)))
        factors = jnp.linalg.qr(padded.reshape(-1, high, columns), mode="r")
        matrix = factors.reshape(-1, columns)
        rows = matrix.shape[0]
    return jnp.linalg.qr(matrix, mode="r")
