"""Theorems about elimination along chains and trees of blocks."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxdae.formulations.sparse_solve import Columns
from jaxdae.linalg.block_tree import connected_parts, solve_block_tree, tree_partition
from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT
from jaxdae.linalg.sparse_saddle_point import add_up, sums, take

# Two trees, one of them with a node of three children.
FOREST = (4, 4, 3, 7, 6, 6, -1, -1)
# One for each way to invert a block: written out, by a loop, by LAPACK.
SIZES = [1, 2, 5, ELIMINATION_LIMIT + 1]


def chain(size: int) -> tuple[int, ...]:
    """Each node the parent of the one before it."""
    return (*range(1, size), -1)[:size]


class Blocks(NamedTuple):
    """A matrix of blocks: `A_ii`, and `A_pi` of node i with its parent p."""

    tree: tuple[int, ...]
    diagonal: Any
    coupling: Any


def tridiagonal(diagonal, lower) -> Blocks:
    root = jnp.zeros((1, *diagonal.shape[1:]))
    return Blocks(chain(len(diagonal)), diagonal, jnp.concatenate([lower, root]))


def random_operator(tree, size, dtype=np.float64, seed=0):
    """Positive definite because diagonally dominant; condition below ten."""
    rng = np.random.default_rng(seed)
    coupling = rng.uniform(-1, 1, (len(tree), size, size))
    diagonal = rng.uniform(-1, 1, (len(tree), size, size))
    diagonal = (diagonal + diagonal.swapaxes(1, 2)) / 2 + 6 * size * np.eye(size)
    return Blocks(tree, jnp.asarray(diagonal, dtype), jnp.asarray(coupling, dtype))


def dense(operator):
    """The matrix, put together block by block."""
    n, b = operator.diagonal.shape[:2]
    matrix = np.zeros((n, b, n, b))
    for i, p in enumerate(operator.tree):
        matrix[i, :, i] = operator.diagonal[i]
        if p >= 0:
            matrix[p, :, i] = operator.coupling[i]
            matrix[i, :, p] = operator.coupling[i].T
    return matrix.reshape(n * b, n * b)


def vector(operator, seed=1):
    shape, dtype = operator.diagonal.shape[:2], operator.diagonal.dtype
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def solved(operator, rhs):
    return solve_block_tree(operator.tree, operator.diagonal, operator.coupling, rhs)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_solution_is_that_of_the_dense_matrix(size, dtype):
    operator = random_operator(FOREST, size, dtype)
    rhs = vector(operator)
    solution = solved(operator, rhs)
    expected = np.linalg.solve(dense(operator), np.asarray(rhs, float).ravel())
    assert solution.dtype == dtype
    # Backward stable without pivoting, condition below ten; a hundred covers the sums.
    np.testing.assert_allclose(solution.ravel(), expected, rtol=0, atol=100 * np.finfo(dtype).eps)


@pytest.mark.slow
def test_derivatives_of_both_modes_agree_with_differences_to_second_order():
    operator = random_operator(FOREST, 5)

    def solve(diagonal, coupling, rhs):
        diagonal = (diagonal + diagonal.swapaxes(1, 2)) / 2
        return solve_block_tree(FOREST, diagonal, coupling, rhs)

    args = operator.diagonal, operator.coupling, vector(operator)
    # Central differences of step 1e-4: truncation and round-off near 1e-8, once more for the
    # second order.
    check_grads(solve, args, order=2, modes=["fwd", "rev"], eps=1e-4, atol=1e-5, rtol=1e-5)


def test_a_batch_gives_what_its_members_give():
    members = [random_operator(FOREST, 2, seed=s) for s in range(3)]
    stacked = [jnp.stack([getattr(m, x) for m in members]) for x in ("diagonal", "coupling")]
    rhs = vector(members[0])
    batch = jax.vmap(lambda d, c: solve_block_tree(FOREST, d, c, rhs))(*stacked)
    for member, x in zip(members, batch, strict=True):
        # The order of sums may differ between the programs.
        np.testing.assert_allclose(x, solved(member, rhs), atol=1e-14)


def singular_matrices():
    path = tridiagonal(jnp.array([1.0, 2, 2, 2, 1])[:, None, None], -jnp.ones((4, 1, 1)))
    thirds = tridiagonal(path.diagonal / 3, path.coupling[:-1] / 3)
    negative = tridiagonal(-jnp.ones((2, 1, 1)), jnp.zeros((1, 1, 1)))
    block = tridiagonal(jnp.stack([jnp.eye(2), jnp.ones((2, 2))]), jnp.zeros((1, 2, 2)))
    large = ELIMINATION_LIMIT + 1
    lapack = tridiagonal(jnp.ones((1, large, large)), jnp.zeros((0, large, large)))
    unknown = tridiagonal(jnp.array([1.0, np.nan])[:, None, None], jnp.zeros((1, 1, 1)))
    return {
        "the free chain": path,
        "the free chain, up to round-off": thirds,
        "zero": tridiagonal(jnp.zeros((3, 1, 1)), jnp.zeros((2, 1, 1))),
        "negative": negative,
        "one singular block": block,
        "a large singular block": lapack,
        "not a number": unknown,
    }


@pytest.mark.parametrize("name", singular_matrices())
def test_no_entry_of_the_solution_of_a_singular_matrix_is_finite(name):
    operator = singular_matrices()[name]
    solution = solved(operator, jnp.ones(operator.diagonal.shape[:2]))
    assert np.isnan(solution).all()


def test_a_pivot_above_round_off_counts():
    diagonal = jnp.array([1.0, 1.0 + 1e-6])[:, None, None]
    operator = tridiagonal(diagonal, jnp.ones((1, 1, 1)))
    rhs = jnp.array([[1.0], [0.0]])
    x = solve_block_tree(*operator, rhs)
    # The second pivot is 1e-6, of which round-off leaves ten digits.
    np.testing.assert_allclose(x.ravel(), [1 + 1e6, -1e6], rtol=1e-9)


@pytest.mark.parametrize("size", [1, 3])
def test_the_program_calls_no_library_and_does_not_grow_with_the_chain(size):
    found = []
    for n in (10, 1000):
        operator = random_operator(chain(n), size)
        args = operator.diagonal, operator.coupling, vector(operator)
        solve = jax.jit(lambda d, c, r, n=n: solve_block_tree(chain(n), d, c, r))
        text = solve.lower(*args).compile().as_text()
        assert text is not None
        assert "custom_call_target" not in text
        found.append(text.count("\n"))
    # Entry by entry it would be a hundred times as long.
    assert found[1] < 1.5 * found[0]


def neighbours(n, pairs):
    near = [set() for _ in range(n)]
    for a, b in pairs:
        near[a].add(b)
        near[b].add(a)
    return near


@pytest.mark.parametrize("edges", [0, 10, 30, 120])
def test_groups_form_a_tree_whatever_the_graph(edges, rng):
    ends = rng.integers(0, 40, (edges, 2))
    near = neighbours(40, [(a, b) for a, b in ends if a != b])
    tree, groups = tree_partition(near)
    assert sorted(i for group in groups for i in group) == list(range(40))
    owner = {i: g for g, group in enumerate(groups) for i in group}
    for a in range(40):
        for b in near[a]:
            g, h = owner[a], owner[b]
            assert g == h or tree[g] == h or tree[h] == g
    assert all(p > i or p < 0 for i, p in enumerate(tree))


def test_groups_are_as_small_as_the_graph_allows():
    line = [(i, i + 1) for i in range(19)]
    largest = lambda *pairs: max(map(len, tree_partition(neighbours(20, pairs))[1]))  # noqa: E731
    assert largest(*line) == 1
    assert largest(*line, (0, 19)) == 2
    assert largest(*((i, (i - 1) // 2) for i in range(1, 20))) == 1
    # Joints of two constraints each, all coupled with those of the next.
    joints = [(i, j) for i in range(20) for j in range(i) if i // 2 - j // 2 <= 1]
    assert largest(*joints) == 2


def test_parts_are_what_a_pattern_connects():
    assert connected_parts(np.array([[0, 3, 4], [3, 1, 4]]), 6) == [[0, 1, 3], [2], [4], [5]]


def test_columns_of_one_colour_share_no_row(rng):
    found = Columns.of(rng.uniform(size=(30, 20)) < 0.15)
    colors = found.colors[found.columns]
    assert len(set(zip(found.rows, colors, strict=True))) == found.rows.size
    band = np.abs(np.subtract.outer(np.arange(50), np.arange(50))) <= 2
    assert Columns.of(band).colors.max() + 1 == 5


@pytest.mark.slow
@pytest.mark.parametrize("hub", [False, True])
def test_sums_are_added_up_where_they_belong(hub, rng):
    # With a hub most sums have one term and one has very many, and there is no table.
    targets = np.zeros(300, int) if hub else rng.integers(0, 60, 300)
    targets[:60] = np.arange(60)
    first, second = rng.integers(0, 9, (2, 300))
    x, y = rng.normal(size=(2, 9))
    found = sums(targets, [first, second], 60)
    assert (found.targets is None) != hub
    total = add_up(found, lambda i, j: take(jnp.asarray(x), i) * take(jnp.asarray(y), j))
    expected = np.zeros(60)
    np.add.at(expected, targets, x[first] * y[second])
    # Up to 241 terms of order one in another order.
    np.testing.assert_allclose(total, expected, atol=1e-12)
