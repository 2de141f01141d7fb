"""Equations of square matrices, factored once: by LAPACK, and in kernels of any size."""

from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest

from jaxdae.kernels import native
from jaxdae.kernels.integration.arguments import Saving
from jaxdae.kernels.integration.initial_value import InitialValueProblem
from jaxdae.kernels.integration.run import integrate, KernelRun
from jaxdae.linalg.lu import (
    complex_inverse_factors,
    factored,
    FactoredSolver,
    Factors,
    inverse_factors,
    MOST_PIVOTED,
)
from jaxdae.solvers.base import AbstractStatelessSolver
from jaxdae.solvers.kernel_steps import step_method


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


@pytest.mark.slow
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


class Solving(AbstractStatelessSolver, diffrax.Euler):
    """A step solves `A x = b`, both of them its state, and has the solution in the place of `b`.

    A complex matrix `A + i B` has its parts one after the other, and stands for a real one.
    """

    parts: int = 1

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        n = unknowns(y0.size, self.parts)
        *matrices, right = jnp.split(y0, np.arange(1, self.parts + 1) * n * n)
        made = Factors.of_pair if self.parts == 2 else partial(Factors.of, pivots=True)
        solution = made(*(x.reshape(n, n) for x in matrices)).solved(right)
        y1 = y0.at[-right.size :].set(solution)
        return y1, y1, {"y0": y0, "y1": y1}, None, diffrax.RESULTS.successful


def unknowns(size: int, parts: int) -> int:
    """`n` of `parts n^2 + parts n` numbers."""
    return round((size / parts + 0.25) ** 0.5 - 0.5)


def stepped(solver, dtype=np.float64):
    """A step of it in a kernel, from its state."""

    def function(state):
        problem = InitialValueProblem(
            jnp.multiply, state.size, (), step_method(solver), None, lambda y: y, dtype
        )
        run = KernelRun(problem, Saving(start=False, every=0, times=False), 0, 1, False)
        return integrate(run, state, [], [jnp.array([0.0, 1.0], dtype)])[1]

    return function


@pytest.mark.parametrize(("n", "dtype"), [(2, np.float64), (7, np.float32), (21, np.float64)])
def test_kernels_pivot_as_many_unknowns_as_they_are_asked_to(rng, n, dtype):
    """Beside zeros where the first pivots would be, and beside a member that has no solution."""
    matrix, right = rng.normal(size=(n, n)), rng.normal(size=n)
    matrix[: n // 2, : n // 2] = 0.0
    state = np.concatenate([matrix.ravel(), right]).astype(dtype)
    exact = np.linalg.solve(matrix, right)
    close = partial(np.testing.assert_allclose, rtol=1e4 * np.finfo(dtype).eps)  # a condition
    function = stepped(Solving(), dtype)
    close(
        function(jnp.asarray(state))[-n:], exact, atol=np.abs(exact).max() * close.keywords["rtol"]
    )
    batch = jnp.stack([state, 0 * state, state, *[-state] * 6])
    found = jax.jit(jax.vmap(function))(batch)
    np.testing.assert_allclose(
        found[0], function(batch[0]), rtol=1e3 * np.finfo(dtype).eps, atol=1e-6
    )
    assert np.isnan(found[1, -n:]).any()
    assert np.isfinite(found[2:]).all()


@pytest.mark.parametrize("n", [1, 2, 7])
def test_factors_of_complex_matrices_need_pivots_and_have_them(rng, n):
    """In kernels and by LAPACK, beside a zero where the first pivot would be."""
    matrix = rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n))
    if n > 1:
        matrix[0, 0] = 0.0
    right = rng.normal(size=n) + 1j * rng.normal(size=n)
    exact = np.linalg.solve(matrix, right)
    given, rights = (matrix.real, matrix.imag), np.concatenate([right.real, right.imag])
    first, then = complex_inverse_factors(*map(jnp.asarray, given))
    function = stepped(Solving(parts=2))
    state = jnp.asarray(np.concatenate([*(x.ravel() for x in given), rights]))
    for found in (then @ (first @ rights), function(state)[-2 * n :]):
        # Round-off of n products, of matrices of a condition of some tens.
        np.testing.assert_allclose(found[:n] + 1j * found[n:], exact, rtol=1e-11)
    both = jax.vmap(function)(jnp.stack([state, jnp.full_like(state, jnp.nan)]))
    np.testing.assert_allclose(both[0], function(state), rtol=1e-12)
    assert np.isnan(both[1, -2 * n :]).all()
