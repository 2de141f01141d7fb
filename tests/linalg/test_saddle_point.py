"""Theorems about the saddle-point solve with full rank; the other policies are tested by motion."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT
from jaxdae.linalg.saddle_point import (
    FullRankSolve,
    MinimumNormSolve,
    SingularMassSolve,
    ZeroRowsSolve,
)

SOLVE = FullRankSolve()
# Elimination and Cholesky, with fewer constraints than coordinates and with as many.
SIZES = [(1, 1), (4, 2), (3, 3), (ELIMINATION_LIMIT + 1, 3)]


def parts(n, c, seed=0):
    """`M` of condition below 10, `J` with independent rows, `f` and `s`."""
    rng = np.random.default_rng(seed)
    root = 0.3 * rng.normal(size=(n, n)) / np.sqrt(n)
    jac = np.eye(c, n) + 0.2 * rng.normal(size=(c, n))
    numbers = np.eye(n) + root @ root.T, rng.normal(size=n), jac, rng.normal(size=c)
    return tuple(jnp.asarray(x) for x in numbers)


def residuals(mass, force, jac, rhs, a, lam):
    return mass @ a + jac.T @ lam - force, jac @ a - rhs


@pytest.mark.parametrize(("n", "c"), SIZES)
def test_both_equations_hold(n, c):
    mass, force, jac, rhs = parts(n, c)
    for residual in residuals(mass, force, jac, rhs, *SOLVE(mass, force, jac, rhs)):
        # Two solves of condition below 1e2 with numbers of order one.
        assert np.abs(residual).max() < 1e-13


@pytest.mark.parametrize("which", range(4), ids=["mass", "force", "jac", "rhs"])
def test_one_argument_alone_has_derivatives(which):
    """The others' are then zero without being numbers."""
    given = parts(4, 2)
    tangent = parts(4, 2, seed=1)[which]

    def alone(x):
        mass, force, jac, rhs = (*given[:which], x, *given[which + 1 :])
        return SOLVE(mass, force, jac, rhs)

    zeros = [jnp.zeros_like(x) for x in given]
    zeros[which] = tangent
    wanted = jax.jvp(SOLVE, given, tuple(zeros))[1]
    for one, other in zip(jax.jvp(alone, (given[which],), (tangent,))[1], wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)
    # The same number in reverse: of the sum of all results.
    gradient = jax.grad(lambda x: sum(map(jnp.sum, alone(x))))(given[which])
    total = sum(map(jnp.sum, wanted))
    np.testing.assert_allclose(jnp.sum(gradient * tangent), total, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "c"), SIZES[1::2])
def test_derivatives_of_both_modes_agree_with_differences_to_second_order(n, c):
    def solve(root, force, jac, rhs):
        return SOLVE(root @ root.T + jnp.eye(n), force, jac, rhs)

    _, force, jac, rhs = parts(n, c)
    root = 0.1 * jnp.asarray(np.random.default_rng(5).normal(size=(n, n)))
    # Truncation and round-off of central differences of step 1e-4 are both near 1e-8, once more
    # for the second order.
    check_grads(solve, (root, force, jac, rhs), 2, ["fwd", "rev"], eps=1e-4, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("batched", [(0, 0, 0, 0), (None, 0, None, None), (None, None, 0, None)])
@pytest.mark.parametrize(("n", "c"), [(4, 2), (ELIMINATION_LIMIT + 1, 3)])
def test_a_batch_gives_what_its_members_give(n, c, batched):
    members = [parts(n, c, seed) for seed in range(3)]
    given = [
        members[0][i] if axis is None else jnp.stack([m[i] for m in members])
        for i, axis in enumerate(batched)
    ]
    found = jax.jit(jax.vmap(SOLVE, batched))(*given)
    for k in range(3):
        own = [x if axis is None else x[k] for x, axis in zip(given, batched, strict=True)]
        for one, other in zip(SOLVE(*own), found, strict=True):
            np.testing.assert_allclose(other[k], one, rtol=0, atol=1e-13)  # other orders of sums


def test_without_constraints_it_is_the_free_motion():
    mass, force, _, _ = parts(3, 1)
    a, lam = SOLVE(mass, force, jnp.zeros((0, 3)), jnp.zeros(0))
    assert lam.shape == (0,)
    np.testing.assert_allclose(a, np.linalg.solve(mass, force), rtol=1e-13)


@pytest.mark.parametrize("what", ["mass", "constraints"])
def test_no_entry_is_finite_where_the_solution_is_not_determined(what):
    mass, force, jac, rhs = parts(4, 2)
    if what == "mass":
        mass = mass.at[2, 2].set(-1.0)
    else:
        jac = jac.at[1].set(0.0)
    assert not any(np.isfinite(x).any() for x in SOLVE(mass, force, jac, rhs))


@pytest.mark.parametrize("which", range(4))
def test_shapes_that_do_not_fit_are_refused(which):
    mass, force, jac, rhs = [x[:-1] if i == which else x for i, x in enumerate(parts(4, 2))]
    with pytest.raises(ValueError, match=r"mass, force, jac and rhs must have .*; got \("):
        SOLVE(mass, force, jac, rhs)


@pytest.mark.parametrize("mapped", [False, True], ids=["one system", "a batch"])
def test_a_solve_is_one_operation_of_its_own(mapped):
    """With the axes of its batch; the other is for all tangents."""
    mass, force, jac, rhs = parts(4, 2)

    def slope(force):
        return jax.jacfwd(lambda x: SOLVE(mass, x, jac, rhs))(force)

    given = jnp.stack([force] * 3) if mapped else force
    operations = str(jax.make_jaxpr(jax.vmap(slope) if mapped else slope)(given))
    assert operations.count("= solve_saddle_point[") == 2 * 2  # and each transposed
    for size, has in ((4, True), (3, mapped)):
        # Matrices are the same for all.
        axes = f"sizes=({size},), present=((False,), (False,), (True,), (True,))"
        assert (axes in operations) is has


@pytest.mark.slow
def test_devices_solve_systems_of_their_own():
    automatic = (jax.sharding.AxisType.Auto,)
    mesh, own = jax.sharding.AbstractMesh((2,), ("members",), automatic), jax.P("members")
    mass, force, jac, rhs = parts(4, 2)

    def solve(force):
        found = jax.vmap(lambda x: SOLVE(mass, x, jac, rhs)[0])
        return jax.shard_map(found, mesh=mesh, in_specs=own, out_specs=own)(force)

    operations = str(jax.make_jaxpr(solve)(jnp.stack([force] * 4)))
    assert re.search(r"f64\[2,4\]\{V:members\}.* = solve_saddle_point\[", operations)


@pytest.mark.slow
@pytest.mark.parametrize("inner", [SOLVE, MinimumNormSolve(rcond=1e-9)])
def test_rows_that_are_zero_are_left_out(inner):
    """What remains is as without them, derivatives as well; their multipliers are zero exactly."""
    mass, force, jac, rhs = parts(4, 3)
    kept = np.array([0, 2])
    solve = ZeroRowsSolve(inner)

    def some(mass, force, jac, rhs):
        return inner(mass, force, jac[kept], rhs[kept])

    def switched(mass, force, jac, rhs):
        a, lam = solve(mass, force, jac.at[1].set(0.0), rhs)
        return a, lam[kept]

    # Round-off of condition below 1e2 with numbers of order one.
    for found, expected in zip(
        (*switched(mass, force, jac, rhs), *jax.jacfwd(switched)(mass, force, jac, rhs)),
        (*some(mass, force, jac, rhs), *jax.jacfwd(some)(mass, force, jac, rhs)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    assert solve(mass, force, jac.at[1].set(0.0), rhs)[1][1] == 0
    a, lam = solve(mass, force, jnp.zeros_like(jac), rhs)
    np.testing.assert_allclose(a, jnp.linalg.solve(mass, force), rtol=0, atol=1e-13)
    assert (lam == 0).all()


def test_equations_at_round_off_are_no_pivots(rng):
    """Beside others a row of round-off says nothing, whatever its direction."""
    jac = rng.normal(size=(2, 5))
    rows = np.stack([jac[0], 1e-17 * rng.normal(size=5), jac[1]])
    mass = np.diag(rng.uniform(0.5, 2.0, 5))
    force, rhs = rng.normal(size=5), rng.normal(size=2)
    a, lam = MinimumNormSolve(rank=2.0)(mass, force, rows, np.array([rhs[0], 0.0, rhs[1]]))
    alone, among = FullRankSolve()(mass, force, jac, rhs)
    np.testing.assert_allclose(a, alone, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(lam, [among[0], 0.0, among[1]], rtol=1e-10, atol=1e-12)


def test_small_equations_that_the_rank_counts_are_pivots():
    """In single precision too: the motion does not depend on units of equations."""
    jac = np.array([[1.0, 0.0, 0.3, 0.0], [0.2, 1.0, 0.0, -0.4]])
    sizes, mass = np.array([1.0, 1e-6]), np.diag([1.0, 0.7, 1.4, 1.2])
    force, rhs = np.array([0.5, -1.0, 0.3, 0.8]), np.array([1.0, -0.6])
    single = [np.asarray(x, np.float32) for x in (mass, force, sizes[:, None] * jac, sizes * rhs)]
    a, _ = MinimumNormSolve(rank=2.0)(*single)
    exact, _ = FullRankSolve()(mass, force, jac, rhs)
    # Thousand times the round-off of single precision.
    np.testing.assert_allclose(a, exact, rtol=1e-4, atol=1e-4)


def test_a_policy_that_asks_for_the_mass_matrix_says_so():
    free, jac = jnp.ones(2), jnp.ones((1, 2))
    product = jnp.concatenate([jac @ jac.T, (jac @ free)[:, None]], axis=1)
    solve = SingularMassSolve()
    assert not solve.takes_free_dynamics
    with pytest.raises(TypeError, match="SingularMassSolve asks for the mass matrix: call it with"):
        solve.from_free(free, jac.T, product, jnp.zeros(1))
