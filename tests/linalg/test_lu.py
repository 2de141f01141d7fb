"""Equations of square matrices, factored once: by LAPACK, and in kernels of any size."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from jaxdae.kernels import native
from jaxdae.linalg.lu import (
    complex_inverse_factors,
    factored,
    FactoredSolver,
    inverse_factors,
    MOST_PIVOTED,
)


def solution(matrix, right):
    return factored(matrix)(right)


def in_kernel(matrix, right):
    return native(solution, matrix, right)(matrix, right)


def chained(rng, n, pattern):
    """A matrix whose symmetric part is positive definite."""
    matrix = rng.normal(size=(n, n)) * pattern
    return matrix + (0.6 * np.abs(matrix).sum(axis=1).max()) * np.eye(n)


PATTERNS = {
    "dense": lambda n: np.ones((n, n)),
    "band": lambda n: np.tri(n, k=2) - np.tri(n, k=-2),
    "arrow": lambda n: np.eye(n) + np.eye(n)[:, :1] + np.eye(n)[:1],
    "one-sided": np.tri,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_kernels_solve_equations_of_more_unknowns_than_they_pivot(rng, pattern):
    n = MOST_PIVOTED + 3
    matrix, right = chained(rng, n, PATTERNS[pattern](n)), rng.normal(size=n)
    expected = np.linalg.solve(matrix, right)
    for found in (in_kernel(matrix, right), solution(jnp.asarray(matrix), right)):
        # Round-off of some n products, of matrices of a condition of some tens.
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_what_loses_digits_without_pivots_is_not_a_number(rng):
    """A pivot that vanishes, or is small: all of the solution is NaN, and LAPACK has it."""
    n = MOST_PIVOTED + 2
    right = rng.normal(size=n)
    for small, known in ((0.0, False), (1e-14, False), (1e-2, True)):
        matrix = np.eye(n)
        matrix[:2, :2] = [[small, 1.0], [1.0, 1.0]]
        found = in_kernel(matrix, right)
        assert np.isfinite(found).tolist() == [known] * n
        np.testing.assert_allclose(
            solution(jnp.asarray(matrix), right), np.linalg.solve(matrix, right), rtol=1e-12
        )


@pytest.mark.slow
def test_derivatives_are_those_of_the_equations(rng):
    """In forward and in reverse mode, beside a member of a batch that has no solution."""
    n = MOST_PIVOTED + 1
    matrix, right = jnp.asarray(chained(rng, n, np.ones((n, n)))), jnp.asarray(rng.normal(size=n))
    value = lambda matrix, right: jnp.sum(solution(matrix, right) ** 2)  # noqa: E731
    exact = lambda matrix, right: jnp.sum(jnp.linalg.solve(matrix, right) ** 2)  # noqa: E731
    for one, other in zip(
        jax.grad(value, (0, 1))(matrix, right), jax.grad(exact, (0, 1))(matrix, right), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
    direction = jnp.asarray(rng.normal(size=n))
    pushed = jax.jvp(lambda b: solution(matrix, b), (right,), (direction,))[1]
    np.testing.assert_allclose(pushed, np.linalg.solve(matrix, direction), rtol=1e-10)
    both = jnp.stack([matrix, jnp.full((n, n), jnp.nan)])
    found = jax.vmap(native(solution, matrix, right), (0, None))(both, right)
    np.testing.assert_allclose(found[0], np.linalg.solve(matrix, right), rtol=1e-10)
    assert np.isnan(found[1]).all()


def test_it_is_a_linear_solver_of_lineax(rng):
    """For the iterations of optimistix: the matrix, and its transpose."""
    matrix, right = jnp.asarray(chained(rng, 4, np.ones((4, 4)))), jnp.asarray(rng.normal(size=4))
    operator = lx.MatrixLinearOperator(matrix)
    for one, expected in ((operator, matrix), (operator.T, matrix.T)):
        found = lx.linear_solve(one, right, FactoredSolver()).value
        np.testing.assert_allclose(found, np.linalg.solve(expected, right), rtol=1e-12)


def test_a_zero_on_the_diagonal_waits_for_what_is_beside_it(rng):
    """Of saddle-point systems, also with a small diagonal that is added to the zeros."""
    n, c = MOST_PIVOTED, 3
    mass, jac = chained(rng, n, np.eye(n)), np.zeros((c, n))
    jac[np.arange(c), 4 * np.arange(c)] = 1.0  # each beside a single one: pivots of least degree
    right = rng.normal(size=n + c)
    small = np.repeat([0.0, -1e-11], [n, c])

    def solved(mass, jac, right, added):
        matrix = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c))]])
        first, then = inverse_factors(matrix, added)
        return then @ (first @ right)

    arguments = mass, jac, right, small
    matrix = np.block([[mass, jac.T], [jac, np.zeros((c, c))]])
    for added in (small, np.zeros(n + c)):
        found = native(solved, *arguments)(mass, jac, right, added)
        expected = np.linalg.solve(matrix + np.diag(added), right)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)  # some ten products


@pytest.mark.parametrize("n", [1, 2, 7])
def test_factors_of_complex_matrices_need_pivots_and_have_them(rng, n):
    """In kernels and by LAPACK, beside a zero where the first pivot would be."""
    matrix = rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n))
    if n > 1:
        matrix[0, 0] = 0.0
    right = rng.normal(size=n) + 1j * rng.normal(size=n)
    function = lambda real, imaginary: jnp.stack(complex_inverse_factors(real, imaginary))  # noqa: E731
    given = jnp.asarray(matrix.real), jnp.asarray(matrix.imag)
    for factors in (function(*given), native(function, *given)(*given)):
        first, then = (factors[i] + 1j * factors[i + 1] for i in (0, 2))
        # Round-off of n products, of matrices of a condition of some tens.
        np.testing.assert_allclose(
            then @ (first @ right), np.linalg.solve(matrix, right), rtol=1e-11
        )
    batch = [jnp.stack([x, jnp.full_like(x, jnp.nan)]) for x in given]
    found = jax.vmap(native(function, *given))(*batch)
    np.testing.assert_allclose(found[0], native(function, *given)(*given), rtol=1e-12)
    assert np.isnan(found[1]).any()
