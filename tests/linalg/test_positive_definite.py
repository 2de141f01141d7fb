"""Theorems about the solve for symmetric positive definite matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT, solve_positive_definite

# Both branches: elimination, up to its limit, and Cholesky.
SIZES = [1, ELIMINATION_LIMIT, ELIMINATION_LIMIT + 1]


def spd(n, seed=0, condition=1e2, dtype=np.float64):
    """Random symmetric positive definite matrix of a given condition number."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    matrix = q @ np.diag(np.geomspace(1.0, condition, n)) @ q.T
    return jnp.asarray((matrix + matrix.T) / 2, dtype)


def vector(*shape, seed=1, dtype=np.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("columns", "dtype"), [((), np.float32), ((3,), np.float64)])
def test_the_residual_is_at_round_off(n, columns, dtype):
    matrix, rhs = spd(n, dtype=dtype), vector(n, *columns, dtype=dtype)
    x = solve_positive_definite(matrix, rhs)
    assert x.shape == rhs.shape
    assert x.dtype == dtype
    # Elimination without pivoting of an SPD matrix is normwise backward stable, Gauss-Jordan with
    # one more factor of the condition number (1e2) at worst; 10 n covers the constants.
    bound = 10 * n * 1e2 * np.finfo(dtype).eps * np.linalg.norm(matrix) * np.linalg.norm(x)
    assert np.linalg.norm(matrix @ x - rhs) < bound


def test_solution_does_not_depend_on_the_scale_of_the_unknowns():
    # Masses of kg beside inertias of 1e-6 kg m^2: D A D has the pivots of A times D^2, and powers
    # of two do not round, so the two solutions agree to the last bit.
    matrix, rhs = spd(6), vector(6)
    scale = jnp.asarray(2.0 ** np.array([0, -20, 3, -10, 15, -1]))
    scaled = solve_positive_definite(matrix * scale[:, None] * scale, rhs * scale)
    np.testing.assert_array_equal(scaled * scale, solve_positive_definite(matrix, rhs))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "columns"), [(3, ()), (ELIMINATION_LIMIT + 1, (2,))])
def test_derivatives_of_both_modes_agree_with_differences_to_second_order(n, columns):
    def solve(root, rhs):
        return solve_positive_definite(root @ root.T + jnp.eye(n), rhs)

    root, rhs = 0.3 * vector(n, n), vector(n, *columns)
    # Central differences of step 1e-4: truncation and round-off both near 1e-8, once more for the
    # second order; 1e-5 relative leaves room for the norms.
    check_grads(solve, (root, rhs), order=2, modes=["fwd", "rev"], eps=1e-4, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n", [4, ELIMINATION_LIMIT + 1])
def test_a_batch_gives_what_its_members_give(n):
    matrices = jnp.stack([spd(n, seed=s) for s in range(3)])
    rhs = vector(3, n, 2)
    batch = jax.vmap(solve_positive_definite)(matrices, rhs)
    single = jnp.stack([solve_positive_definite(a, b) for a, b in zip(matrices, rhs, strict=True)])
    # The order of sums may differ between the two programs: round-off times condition.
    np.testing.assert_allclose(batch, single, rtol=0, atol=1e-12)


SINGULAR = {
    "zero": np.zeros((3, 3)),
    "zero first pivot": np.diag([0.0, 1.0, 1.0]),
    "zero last pivot": np.diag([1.0, 1.0, 0.0]),
    "equal rows": np.ones((3, 3)),
    "indefinite": np.array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    "negative": -np.eye(3),
    "not a number": np.diag([1.0, np.nan, 1.0]),
}


@pytest.mark.parametrize("name", SINGULAR)
@pytest.mark.parametrize("padding", [0, ELIMINATION_LIMIT])
def test_no_entry_is_finite_for_a_matrix_that_is_not_positive_definite(name, padding):
    n = 3 + padding
    matrix = np.eye(n)
    matrix[:3, :3] = SINGULAR[name]
    x = solve_positive_definite(jnp.asarray(matrix), jnp.ones(n))
    assert np.isnan(x).all()


def test_nothing_to_solve_is_returned_as_it_is():
    assert solve_positive_definite(jnp.zeros((0, 0)), jnp.zeros((0, 2))).shape == (0, 2)
    assert solve_positive_definite(spd(3), jnp.zeros((3, 0))).shape == (3, 0)


@pytest.mark.slow
def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"must be square.*\(2, 3\).*vmap"):
        solve_positive_definite(jnp.ones((2, 3)), jnp.ones(2))
    with pytest.raises(ValueError, match=r"must be square.*\(5, 3, 3\).*vmap"):
        solve_positive_definite(jnp.ones((5, 3, 3)), jnp.ones((5, 3)))
    with pytest.raises(ValueError, match=r"shape \(2,\) or \(2, k\).*\(3,\)"):
        solve_positive_definite(jnp.eye(2), jnp.ones(3))
