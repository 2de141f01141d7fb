"""Linear systems with a symmetric positive definite matrix."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from jaxdae.linalg.elimination import gauss_jordan

# Up to this size a call to LAPACK costs more than the arithmetic (benchmarks/right_hand_side.py).
ELIMINATION_LIMIT = 16


def solve_positive_definite(
    matrix: Float[Array, "n n"], rhs: Float[Array, " n"] | Float[Array, "n k"]
) -> Float[Array, " n"] | Float[Array, "n k"]:
    """Solve `A x = b` for a symmetric positive definite `A`.

    Elimination without pivoting, which is stable for such matrices, up to `ELIMINATION_LIMIT`
    unknowns; Cholesky factorization beyond. Derivatives of every order are those of the solution,
    `A dx = db - dA x`, not of the algorithm.

    Args:
        matrix: `A`, shape `(n, n)`, symmetric positive definite. Only the symmetric matrix has a
            meaning: what is returned for any other is not specified.
        rhs: `b`, shape `(n,)` or `(n, k)`.

    Returns:
        `x`, of the shape of `rhs`. Where a pivot is zero or negative, the matrix is not positive
        definite and every entry is `nan`. A matrix singular only up to round-off may
        pass; its solution is then as large as the inverse of the round-off.

    Raises:
        ValueError: for shapes that do not fit.
    """
    _check_shapes(matrix, rhs)
    if rhs.size == 0:
        return rhs
    solve = _eliminate if matrix.shape[0] <= ELIMINATION_LIMIT else _cholesky
    return jax.lax.custom_linear_solve(
        lambda x: matrix @ x, rhs, lambda _, b: solve(matrix, b), symmetric=True
    )


def _eliminate(matrix, rhs):
    n = matrix.shape[0]
    return gauss_jordan(matrix, rhs.reshape(n, -1), positive=n).reshape(rhs.shape)


def _cholesky(matrix, rhs):
    return cho_solve(cho_factor(matrix, lower=True), rhs)


def _check_shapes(matrix, rhs) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must be square; got shape {matrix.shape}. Batches: use jax.vmap.")
    if rhs.ndim not in (1, 2) or rhs.shape[0] != matrix.shape[0]:
        n = matrix.shape[0]
        raise ValueError(f"rhs must have shape ({n},) or ({n}, k); got {rhs.shape}.")
