"""Elimination without pivoting, as one small compiled loop."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gauss_jordan(
    matrix: Float[Array, "n n"], rhs: Float[Array, "n k"], positive: int
) -> Float[Array, "n k"]:
    """Solve a symmetric quasi-definite system by Gauss-Jordan elimination on the diagonal.

    A symmetric matrix `[[E, B^T], [B, -F]]` with `E` and `F` positive definite is eliminated in any
    order without pivoting (Vanderbei 1995). `F = 0` is allowed when `E` comes first and `B` has
    full row rank: the later pivots are those of `-B E^-1 B^T`.

    Args:
        matrix: shape `(n, n)`, symmetric.
        rhs: shape `(n, k)`.
        positive: size of `E`; the pivots after it are negative.

    Returns:
        Solution, shape `(n, k)`; not a single entry is finite after a pivot that is zero or of the
        wrong sign.
    """
    n, k = rhs.shape

    # Each step moves the pivot's row and column to the end. Every step then has the same shapes and
    # constant indices, which compiles to a loop of a few instructions; n unrolled steps take longer
    # to compile and to run, because each becomes several kernels.
    def eliminate(step, table):
        pivot = table[0, 0]
        right_sign = (pivot > 0) == (step < positive)
        row = table[0] / jnp.where(right_sign & (pivot != 0), pivot, jnp.nan)
        rest = table[1:] - table[1:, :1] * row
        table = jnp.concatenate([rest, row[None]])
        return jnp.concatenate([table[:, 1:], table[:, :1]], axis=1)

    table = jnp.concatenate([matrix, rhs], axis=1)
    return jax.lax.fori_loop(0, n, eliminate, table)[:, :k]
