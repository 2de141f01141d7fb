"""Linear equations of any square matrix, factored once for many right-hand sides."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Float

from jaxdae.linalg.solve_primitive import solve_primitive

# Also on devices whose usual products have fewer digits.
product = partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)

# In kernels more unknowns than this are eliminated in an order known beforehand, unless pivots are
# asked for; few are written out.
MOST_PIVOTED, _FEW = 16, 6
FACTORS, PIVOTED_FACTORS = "inverse_factors", "pivoted_inverse_factors"
COMPLEX_FACTORS = "complex_inverse_factors"


def factored(matrix: Float[Array, "n n"]) -> Callable:
    """The solution of linear equations with one matrix, which is factored here.

    `x = U^-1 (L^-1 P b)` by the inverses of both factors, which are as accurate as substitution and
    make the stages and their transposes products. Derivatives are those of the equations: none of
    the factorization are needed.
    """
    factors = Factors.of(matrix)

    def solve(right):
        return jax.lax.custom_linear_solve(
            partial(product, matrix),
            right,
            lambda _, b: factors.solved(b),
            lambda _, b: factors.transposed(b),
        )

    return solve


class Factors(NamedTuple):
    """A matrix `A` by inverse factors, `A^-1 = G F`.

    They are kept transposed: kernels then go along rows that lie in memory.

    Args:
        first: `F^T`.
        then: `G^T`.
    """

    first: Any
    then: Any

    @classmethod
    def of(cls, matrix, added=None, *, pivots: bool = False) -> "Factors":
        """From `A` and what is added to its diagonal, see `inverse_factors`."""
        first, then = inverse_factors(matrix, added, pivots=pivots)
        return cls(first.T, then.T)

    @classmethod
    def of_pair(cls, real, imaginary) -> "Factors":
        """Of `[[A, -B], [B, A]]`, by those of the complex matrix `A + i B`, of half its size."""
        first, then = complex_inverse_factors(real, imaginary)
        return cls(first.T, then.T)

    def solved(self, right):
        """`A^-1 b`."""
        return product(product(right, self.first), self.then)

    def transposed(self, right):
        """`A^-T b`."""
        return product(self.first, product(self.then, right))


def inverse_factors(
    matrix: Float[Array, "n n"],
    added: Float[Array, " n"] | None = None,
    *,
    pivots: bool = False,
) -> list:
    """Matrices `F` and `G` with `A^-1 = G F`, without derivatives.

    By LU decomposition with partial pivoting; in kernels of more than `MOST_PIVOTED` unknowns
    without it, and NaN where that costs digits.

    Args:
        matrix: `A`, but for `added`.
        added: to its diagonal, small: where this is zero by structure kernels take no pivot before
            all beside it are eliminated.
        pivots: whether kernels choose pivots of any number of unknowns, and use no zeros.
    """
    n, matrix = len(matrix), jax.lax.stop_gradient(matrix)
    eye = jnp.eye(n, dtype=matrix.dtype)
    more = jnp.zeros_like(matrix[0]) if added is None else jax.lax.stop_gradient(added)
    if n <= _FEW:
        return _pivoted(matrix, more, eye, eye)
    if n <= MOST_PIVOTED or pivots:
        return _pivoted_operation(matrix + jnp.diag(more), eye, eye)
    return _one_operation(matrix, more, eye, eye)


def refined(matrix: Float[Array, "n n"], right: Float[Array, " n"], added: Float[Array, " n"]):
    """The solution of linear equations by factors of a matrix nearby, and what that lacks.

    Where the matrix is singular and the equations have solutions, one of them. Derivatives are
    those of the equations.

    Args:
        matrix: `A`.
        right: `b`.
        added: to the diagonal of `A` for the factors, small.
    """
    factors = Factors.of(matrix, added)

    def solve(forward: Callable, by: Callable, b):
        x = by(b)
        for _ in range(_REFINEMENTS):
            x = x + by(b - forward(x))
        return x

    return jax.lax.custom_linear_solve(
        partial(product, matrix),
        right,
        lambda forward, b: solve(forward, factors.solved, b),
        lambda forward, b: solve(forward, factors.transposed, b),
    )


# Each leaves the product of what is added and the largest entry of the inverse.
_REFINEMENTS = 2


# As a function of its own in compiled programs: where it stands in them twice, XLA's importer can
# lose by which interface LAPACK is called, and the program does not compile.
@jax.jit
def _pivoted(matrix, added, eye, same) -> list:
    """`L^-1 P` and `U^-1` of `P A = L U`, shaped as the right sides."""
    factors, _, order = jax.lax.linalg.lu(matrix + jnp.diag(added))
    inverse = partial(jax.lax.linalg.triangular_solve, factors, left_side=True)
    return [inverse(eye[order], lower=True, unit_diagonal=True), inverse(same)]


def complex_inverse_factors(real: Float[Array, "n n"], imaginary: Float[Array, "n n"]) -> list:
    """`F` and `G` of `inverse_factors` for `[[A, -B], [B, A]]`, by those of `A + i B`.

    With pivots, in kernels too, which have no complex numbers otherwise.

    Args:
        real: `A`.
        imaginary: `B`.
    """
    both = jnp.zeros((2 * len(real),) * 2, real.dtype)
    return _complex_operation(*jax.lax.stop_gradient((real, imaginary)), both, both)


def _complex_pivoted(real, imaginary, *sides) -> list:
    del sides
    matrix, eye = jax.lax.complex(real, imaginary), jnp.eye(len(real), dtype=real.dtype)
    eye = jax.lax.complex(eye, jnp.zeros_like(eye))
    factors = _pivoted(matrix, jnp.zeros_like(matrix[0]), eye, eye)
    return [jnp.block([[x.real, -x.imag], [x.imag, x.real]]) for x in factors]


_complex_operation = solve_primitive(COMPLEX_FACTORS, _complex_pivoted, sides=2)
_one_operation = solve_primitive(FACTORS, _pivoted, sides=2)
_pivoted_operation = solve_primitive(
    PIVOTED_FACTORS,
    lambda matrix, *sides: _pivoted(matrix, jnp.zeros_like(matrix[0]), *sides),
    sides=2,
)


class FactoredSolver(lx.AbstractLinearSolver):
    """`factored` as a linear solver of lineax, for square matrices."""

    def init(self, operator, options: dict[str, Any]):
        del options
        return Factors.of(operator.as_matrix())

    def compute(self, state, vector, options: dict[str, Any]):
        del options
        return state.solved(vector), lx.RESULTS.successful, {}

    def transpose(self, state, options: dict[str, Any]):
        return Factors(state.then.T, state.first.T), options

    def conj(self, state, options: dict[str, Any]):
        return state, options

    def assume_full_rank(self) -> bool:
        return True
