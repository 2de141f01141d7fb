"""Linear equations of any square matrix, factored once for many right-hand sides."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

# Also on devices whose usual products have fewer digits.
product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def factored(matrix: Float[Array, "n n"]) -> Callable:
    """The solution of linear equations with one matrix, which is factored here.

    `x = U^-1 (L^-1 P b)` by the inverses of both factors, which are as accurate as substitution and
    make the stages and their transposes products. Derivatives are those of the equations: none of
    the factorization are needed.
    """
    factors, _, order = jax.lax.linalg.lu(jax.lax.stop_gradient(matrix))
    eye = jnp.eye(len(matrix), dtype=matrix.dtype)
    inverse = partial(jax.lax.linalg.triangular_solve, factors, left_side=True)
    first = inverse(eye[order], lower=True, unit_diagonal=True)
    then = inverse(eye)

    def solve(right):
        return jax.lax.custom_linear_solve(
            partial(product, matrix),
            right,
            lambda _, b: product(then, product(first, b)),
            lambda _, b: product(first.T, product(then.T, b)),
        )

    return solve
