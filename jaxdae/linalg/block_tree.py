r"""Symmetric positive definite matrices of small blocks that couple along a chain or a tree.

Block `LDL^T` from the leaves to the roots, and substitution back: O(n) for n blocks, no fill.

    D_i = A_ii - sum over children c of  A_ic D_c^-1 A_ci

Which solve is taken where:

- a dense matrix of up to `ELIMINATION_LIMIT` unknowns: Gauss-Jordan elimination inside the compiled
  program, and LAPACK beyond (`solve_positive_definite`);
- a chain or a tree of blocks, found by `tree_partition`: one loop over the blocks. Each is inverted
  as a dense matrix is: written out up to 3 unknowns, by a loop up to `ELIMINATION_LIMIT`, by LAPACK
  beyond.

A tree is given by the parent of each node, which comes after it; -1 for a root.
"""

from collections.abc import Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT

Parents = tuple[int, ...]

# A larger block written out entry by entry takes long to compile.
_WRITTEN_OUT = 3


def solve_block_tree(
    parents: Parents,
    diagonal: Float[Array, "n b b"],
    coupling: Float[Array, "n b b"],
    rhs: Float[Array, "n b"],
) -> Float[Array, "n b"]:
    """Solve `A x = b` for a symmetric positive definite matrix of blocks along a tree.

    Derivatives of every order are those of the solution, `A dx = db - dA x`.

    Args:
        parents: of the nodes.
        diagonal: `A_ii`, symmetric, shape `(n, b, b)`.
        coupling: `A_pi` of node i with its parent p, shape `(n, b, b)`; that of a root must be
            finite and is not used.
        rhs: `b`, shape `(n, b)`.

    Returns:
        `x`, shape `(n, b)`; all `nan` where the matrix is not positive definite beyond round-off.
    """
    return jax.lax.custom_linear_solve(
        lambda x: multiply(parents, diagonal, coupling, x),
        rhs,
        lambda _, b: _eliminate(parents, diagonal, coupling, b),
        symmetric=True,
    )


def multiply(parents: Parents, diagonal, coupling, x: Float[Array, "n b"]) -> Float[Array, "n b"]:
    """`A x`, of the arguments of `solve_block_tree`."""
    parent = _above(parents)
    above = jnp.concatenate([x, jnp.zeros_like(x[:1])])[parent]
    product = jnp.einsum("nij,nj->ni", diagonal, x) + jnp.einsum("nji,nj->ni", coupling, above)
    onto_parents = jnp.einsum("nij,nj->ni", coupling, x)
    # The number after the last node, a root's parent, is dropped.
    return product.at[parent].add(onto_parents, mode="drop")


def _above(parents: Parents) -> np.ndarray:
    """Parents, with the number of nodes, which is none of them, for that of a root."""
    return np.where(np.array(parents, int) < 0, len(parents), parents).astype(int)


# As a function of its own, so that a program that calls it several times is traced once.
@partial(jax.jit, static_argnums=0)
def _eliminate(parents: Parents, diagonal, coupling, rhs):
    """Solve without a rule for derivatives; arguments as for `solve_block_tree`."""
    n, b = rhs.shape
    # A pivot below ten times the round-off of the diagonal entry it comes from counts as zero.
    least = 10 * float(jnp.finfo(rhs.dtype).eps) * jnp.diagonal(diagonal, axis1=1, axis2=2)
    parent = jnp.asarray(_above(parents))
    # One more node stands for the parent of the roots; its solution is zero.
    spare = jnp.zeros((1, b, b), rhs.dtype)
    blocks, known = jnp.concatenate([diagonal, spare]), jnp.concatenate([rhs, spare[0]])

    def forward(i, carry):
        blocks, known, inverses = carry
        inverse = inverse_of_block(blocks[i], least[i])
        factor = _product(coupling[i], inverse)
        blocks = _add_to(blocks, parent[i], -_product(factor, coupling[i].T))
        known = _add_to(known, parent[i], -_product(factor, known[i]))
        return blocks, known, inverses.at[i].set(inverse, mode="promise_in_bounds")

    start = (blocks, known, jnp.zeros((n, b, b), rhs.dtype))
    _, known, inverses = jax.lax.fori_loop(0, n, forward, start)

    def backward(k, x):
        i = n - 1 - k
        left = known[i] - _product(coupling[i].T, x[parent[i]])
        return x.at[i].set(_product(inverses[i], left), mode="promise_in_bounds")

    x = jax.lax.fori_loop(0, n, backward, jnp.zeros_like(known))[:n]
    return jnp.where(jnp.all(jnp.isfinite(inverses)), x, jnp.nan)


def inverse_of_block(block: Float[Array, "b b"], least: Float[Array, " b"]) -> Float[Array, "b b"]:
    """Inverse of a symmetric positive definite block; not finite with a pivot below `least`."""
    b = block.shape[0]
    if b > ELIMINATION_LIMIT:
        return _inverse_by_cholesky(block, least)
    if b > _WRITTEN_OUT:
        return jax.lax.fori_loop(0, b, lambda _, x: _sweep_first(x), (block, least))[0]
    return _inverse_written_out(block, least)


def _inverse_written_out(block, least):
    """Gauss-Jordan sweeps, entry by entry: the compiler joins them into one operation."""
    b = block.shape[0]
    entries = {(i, j): block[i, j] for i in range(b) for j in range(i, b)}
    for k in range(b):
        entries = _swept(entries, k, least[k])
    rows = [[-_entry(entries, i, j) for j in range(b)] for i in range(b)]
    return jnp.stack([jnp.stack(row) for row in rows])


def _swept(entries: dict, k: int, least) -> dict:
    """The sweep operator on pivot k of a symmetric matrix; over all pivots `-A^-1`."""
    pivot = _inverse_of_pivot(_entry(entries, k, k), least)
    swept = {}
    for i, j in entries:
        value = _entry(entries, i, j)
        if k not in (i, j):
            swept[i, j] = value - _entry(entries, i, k) * _entry(entries, k, j) * pivot
        else:
            swept[i, j] = -pivot if i == j else value * pivot
    return swept


def _entry(entries: dict, i: int, j: int):
    return entries[min(i, j), max(i, j)]


def _sweep_first(carry):
    """Gauss-Jordan elimination in place, after which the first row and column become the last.

    By the rotation all steps have the same shapes and constant indices.
    """
    table, least = carry
    pivot = _inverse_of_pivot(table[0, 0], least[0])
    row, column = table[:1, 1:] * pivot, -table[1:, :1] * pivot
    upper = jnp.concatenate([table[1:, 1:] - table[1:, :1] * row, column], axis=1)
    lower = jnp.concatenate([row, pivot[None, None]], axis=1)
    return jnp.concatenate([upper, lower]), jnp.concatenate([least[1:], least[:1]])


def _inverse_of_pivot(pivot, least):
    # Zero is not above the bound of a zero diagonal, nor is a negative pivot above a negative one.
    return 1 / jnp.where((pivot > least) & (pivot > 0), pivot, jnp.nan)


def _inverse_by_cholesky(block, least):
    factor = jnp.linalg.cholesky(block)
    inverse = jax.scipy.linalg.cho_solve((factor, True), jnp.eye(*block.shape, dtype=block.dtype))
    return jnp.where(jnp.all(jnp.diagonal(factor) ** 2 > least), inverse, jnp.nan)


def _add_to(array, index, value):
    return array.at[index].add(value, mode="promise_in_bounds")


def _product(a, b):
    """`a @ b`, without a call to a library; small ones entry by entry."""
    if a.shape[1] > ELIMINATION_LIMIT:
        return a @ b
    if a.shape[1] > _WRITTEN_OUT:
        return jnp.sum(a.reshape(*a.shape, *[1] * (b.ndim - 1)) * b[None], axis=1)
    if b.ndim == 1:
        return sum(a[:, k] * b[k] for k in range(a.shape[1]))
    return jnp.stack([_product(a, b[:, j]) for j in range(b.shape[1])], axis=1)


def tree_partition(near: list[set[int]]) -> tuple[Parents, list[list[int]]]:
    """Group unknowns so that the groups form a tree.

    Level sets of the distance from one end of the graph; two unknowns of a level are in one group
    if they are connected without passing through levels nearer to that end. What depends on each
    other is then in one group, or in a group and its parent, whatever the graph; a chain has groups
    of one, a mechanism that branches one for each branching, a closed loop groups of two.

    Args:
        near: for each unknown, the others it depends on.

    Returns:
        Parents of the nodes, and for each node the unknowns in that group.
    """
    groups: list[list[int]] = []
    parents: list[int] = []
    owner = np.full(len(near), -1)
    for start in range(len(near)):
        if owner[start] < 0:
            _add_component(near, _far_end(near, start), owner, groups, parents)
    return tuple(parents), groups


def _add_component(near, first: list[int], owner, groups, parents) -> None:
    """Groups of one connected part of the graph, the deepest first."""
    levels = _levels(near, first)
    depth = {node: k for k, level in enumerate(levels) for node in level}
    top = _Merged(depth)
    for k in reversed(range(len(levels))):
        for a in levels[k]:
            for b in near[a]:
                if depth[b] >= k:
                    top.join(a, b)
        results: dict[int, list[int]] = {}
        for a in levels[k]:
            results.setdefault(top.of(a), []).append(a)
        for members in results.values():
            below = {int(owner[b]) for a in members for b in near[a] if depth[b] == k + 1}
            for child in below:
                parents[child] = len(groups)
            owner[members] = len(groups)
            groups.append(members)
            parents.append(-1)


def connected_parts(pattern: np.ndarray, n: int) -> list[list[int]]:
    """Parts of `n` unknowns that a pattern connects, rows and columns of its entries, `(2, k)`."""
    merged, parts = _Merged(range(n)), {}
    for i, j in pattern.T.tolist():
        merged.join(i, j)
    for i in range(n):
        parts.setdefault(merged.of(i), []).append(i)
    return list(parts.values())


class _Merged:
    """Disjoint sets."""

    def __init__(self, members: Iterable[int]):
        self._up = {i: i for i in members}

    def of(self, i: int) -> int:
        while self._up[i] != i:
            self._up[i] = self._up[self._up[i]]
            i = self._up[i]
        return i

    def join(self, i: int, j: int) -> None:
        self._up[self.of(i)] = self.of(j)


def _far_end(near, start: int) -> list[int]:
    """An unknown at one end of the graph, with all that have the same neighbours as it has."""
    # Twice the last of the level sets: from there they are many and small.
    for _ in range(2):
        start = min(_levels(near, [start])[-1], key=lambda i: (len(near[i]), i))
    closed = near[start] | {start}
    return sorted(i for i in closed if near[i] | {i} == closed)


def _levels(near, first: list[int]) -> list[list[int]]:
    """Level sets of the distance from some unknowns."""
    seen, levels = set(first), [list(first)]
    while True:
        following = {b for a in levels[-1] for b in near[a]} - seen
        if not following:
            return levels
        seen |= following
        levels.append(sorted(following))
