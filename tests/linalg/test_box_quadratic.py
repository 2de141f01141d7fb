"""Quadratic programs in a box against an independent solver, and their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

from jaxdae.linalg.box_quadratic import minimize_in_box


def in_box(matrix, linear, bound):
    return minimize_in_box(matrix, linear, -bound, bound)


solve = jax.jit(in_box)


def random_program(rng, size):
    """`A = L^T L`, `b = -L^T d`: the least-squares problem `min |L x - d|` in a box."""
    factor, target = rng.normal(size=(size, size)), 3 * rng.normal(size=size)
    return factor, target, rng.uniform(0.1, 1.5, size)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_minimizer_is_that_of_bounded_least_squares(size, rng):
    active = 0
    for _ in range(40):
        factor, target, bound = random_program(rng, size)
        x = np.asarray(solve(factor.T @ factor, -factor.T @ target, bound))
        # Bounded-variable least squares: an active-set method, exact to round-off.
        expected = lsq_linear(factor, target, (-bound, bound), method="bvls", tol=1e-14).x
        # The condition of A is the square of that of the random factor: digits beyond 1e-7 vary.
        np.testing.assert_allclose(x, expected, atol=1e-7)
        active += int((np.abs(x) == bound).sum())
    # Both kinds of unknowns were met.
    assert 0 < active < 40 * size


@pytest.mark.slow
def test_derivatives_are_those_of_the_minimizer(rng):
    factor, target, bound = random_program(rng, 3)
    args = tuple(map(jnp.asarray, (factor.T @ factor + np.eye(3), -factor.T @ target, bound)))
    direction = tuple(jnp.asarray(rng.normal(size=x.shape)) for x in args)
    direction = (direction[0] + direction[0].T, *direction[1:])
    x, forward = jax.jvp(in_box, args, direction)
    assert (np.abs(x) == bound).any()
    assert (np.abs(x) < bound).any()
    weights = jnp.asarray(rng.normal(size=3))
    gradient = jax.grad(lambda *args: in_box(*args) @ weights, argnums=(0, 1, 2))(*args)
    reverse = sum(jnp.vdot(g, d) for g, d in zip(gradient, direction, strict=True))
    h = 1e-6
    ends = [in_box(*(a + s * d for a, d in zip(args, direction, strict=True)))
            for s in (-h, h)]  # fmt: skip
    # Central differences of step 1e-6: truncation 1e-12 and round-off 1e-10 relative.
    np.testing.assert_allclose(forward, (ends[1] - ends[0]) / (2 * h), rtol=1e-7, atol=1e-8)
    assert float(reverse) == pytest.approx(float(forward @ weights), rel=1e-12)


@pytest.mark.slow
def test_batches_and_single_precision(rng):
    programs = [random_program(rng, 2) for _ in range(6)]
    stacked = [np.stack(x) for x in zip(*programs, strict=True)]
    matrix = np.einsum("bki,bkj->bij", stacked[0], stacked[0])
    linear = -np.einsum("bki,bk->bi", stacked[0], stacked[1])
    double = jax.vmap(in_box)(*map(jnp.asarray, (matrix, linear, stacked[2])))
    single = jax.vmap(in_box)(*(jnp.asarray(x, jnp.float32) for x in
                                         (matrix, linear, stacked[2])))  # fmt: skip
    assert single.dtype == jnp.float32
    # Conditions of about 1e3 times single round-off.
    np.testing.assert_allclose(single, double, atol=1e-3)


def test_no_unknowns_have_no_minimizer_to_find():
    none = jnp.zeros(0)
    assert minimize_in_box(jnp.zeros((0, 0)), none, none, none).shape == (0,)


def test_unknowns_with_one_bound_or_none_satisfy_the_complementarity_conditions(rng):
    """`w = A x + b` is zero for free unknowns; else `x >= 0`, `w >= 0`, and one of them zero."""
    free, both = np.array([True, False, False, False]), set()
    lower, upper = jnp.where(free, -jnp.inf, 0.0), jnp.full(4, jnp.inf)
    for _ in range(20):
        factor, linear = rng.normal(size=(4, 4)), rng.normal(size=4)
        matrix = factor.T @ factor + np.eye(4)
        x = np.asarray(minimize_in_box(jnp.asarray(matrix), jnp.asarray(linear), lower, upper))
        w = matrix @ x + linear
        # Round-off of what the conditions are sums of.
        assert (np.abs(w[free]) < 1e-13).all()
        assert (x[~free] >= 0).all()
        assert (w[~free] > -1e-13).all()
        assert (np.abs(x * w) < 1e-13).all()
        both |= {*(x[~free] > 0)}
    assert both == {True, False}


@pytest.mark.slow
def test_what_is_not_finite_gives_what_is_not_finite():
    x = solve(jnp.full((2, 2), jnp.nan), jnp.ones(2), jnp.ones(2))
    assert np.isnan(x).all()
