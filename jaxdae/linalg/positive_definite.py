"""Linear systems with a symmetric positive definite matrix."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from jaxdae.linalg.solve_primitive import solve_primitive

# Name of the primitive.
POSITIVE_DEFINITE = "solve_positive_definite"

# Up to this size a call to LAPACK costs more than the arithmetic (benchmarks/right_hand_side.py).
ELIMINATION_LIMIT = 16


def solve_positive_definite(
    matrix: Float[Array, "n n"], rhs: Float[Array, " n"] | Float[Array, "n k"]
) -> Float[Array, " n"] | Float[Array, "n k"]:
    """Solve `A x = b` for a symmetric positive definite `A`.

    Gauss-Jordan elimination without pivoting, which is stable for such matrices, up to
    `ELIMINATION_LIMIT` unknowns; Cholesky factorization beyond. Derivatives of every order are
    those of the solution, `A dx = db - dA x`, not of the algorithm.

    Args:
        matrix: `A`, shape `(n, n)`, symmetric positive definite. Symmetry is assumed: the solution
            of the nonsymmetric matrix may be returned, or that of one of its triangles.
        rhs: `b`, shape `(n,)` or `(n, k)`.

    Returns:
        `x`, of the shape of `rhs`. Where a pivot is zero or negative the matrix is not positive
        definite and every entry is `nan`. A matrix that is singular only up to round-off may pass;
        its solution is then of the order of the inverse of the round-off.

    Raises:
        ValueError: for shapes that do not fit.
    """
    _check_shapes(matrix, rhs)
    if rhs.size == 0:
        return rhs
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, rhs, lambda _, b: _solve(matrix, b)[0], symmetric=True
    )


def _by_size(matrix, rhs):
    small = matrix.shape[0] <= ELIMINATION_LIMIT
    return [_eliminate(matrix, rhs) if small else _cholesky(matrix, rhs)]


_solve = solve_primitive(POSITIVE_DEFINITE, _by_size, 1)


def _eliminate(matrix, rhs):
    """Gauss-Jordan elimination on the diagonal, as one small loop."""
    n = matrix.shape[0]
    table = jnp.concatenate([matrix, rhs.reshape(n, -1)], axis=1)
    table = jax.lax.fori_loop(0, n, lambda _, table: _eliminate_first(table), table)
    return table[:, : table.shape[1] - n].reshape(rhs.shape)


def _eliminate_first(table):
    """Eliminate the first unknown, and move its row and column to the end.

    By the rotation all steps have the same shapes and constant indices, and the loop compiles to a
    few instructions. Unrolled, the n steps become several kernels each, which take longer to
    compile and to run.
    """
    pivot = table[0, 0]
    row = table[0] / jnp.where(pivot > 0, pivot, jnp.nan)
    table = jnp.concatenate([table[1:] - table[1:, :1] * row, row[None]])
    return jnp.concatenate([table[:, 1:], table[:, :1]], axis=1)


def _cholesky(matrix, rhs):
    return cho_solve(cho_factor(matrix, lower=True), rhs)


def _check_shapes(matrix, rhs) -> None:
    n = matrix.shape[0] if matrix.ndim else 0
    if matrix.shape != (n, n):
        raise ValueError(
            f"matrix must be square, with shape (n, n); got {matrix.shape}. For a batch of "
            "matrices use jax.vmap."
        )
    if rhs.ndim not in (1, 2) or rhs.shape[0] != n:
        raise ValueError(f"rhs must have shape ({n},) or ({n}, k) as the matrix; got {rhs.shape}.")
