r"""The saddle-point system of constrained dynamics, from the nonzero entries of its matrices.

    [[M, J^T], [J, 0]] (a, lam) = (f, s)

by the range-space method, `A lam = J M^-1 f - s` with `A = J M^-1 J^T`: `M` is inverted body by
body, `A` is formed where constraints share a body, and eliminated along a tree of blocks.
"""

import functools
import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.linalg.block_tree import (
    connected_parts,
    inverse_of_block,
    solve_block_tree,
    tree_partition,
)
from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT


class Sums(NamedTuple):
    """Sums of terms made of entries of arrays, each sum with terms of its own.

    Args:
        indices: for each factor of a term the entry it takes, shape `(terms, sums)`, or `(terms,)`
            with `targets`; -1 where a sum has fewer terms than others.
        targets: which sum a term belongs to, in increasing order; `None` for a table.
        size: number of sums.
    """

    indices: tuple[np.ndarray, ...]
    targets: np.ndarray | None
    size: int


def sums(targets: Iterable[int], factors: Iterable[Iterable[int]], count: int) -> Sums:
    """Sort terms by the sum they belong to: a table, unless that would be mostly empty.

    Each term has its sum in `targets`, and for each factor the entry that it takes.
    """
    target = np.array(list(targets), int)
    order = np.argsort(target, kind="stable")
    target = target[order]
    indices = [np.array(list(x), int)[order] for x in factors]
    terms = np.bincount(target, minlength=count)
    longest = int(terms.max(initial=0))
    if longest * count > 4 * target.size + 64:
        return Sums(tuple(indices), target, count)
    row = np.arange(target.size) - np.repeat(np.cumsum(terms) - terms, terms)
    tables = tuple(np.full((longest, count), -1) for _ in indices)
    for table, index in zip(tables, indices, strict=True):
        table[row, target] = index
    return Sums(tables, None, count)


def add_up(sums: Sums, term: Callable[..., Array]) -> Array:
    """Sums over `term(*indices)`, whose last axes are those of the indices; `(..., size)`."""
    terms = term(*sums.indices)
    if sums.targets is None:
        return jnp.sum(terms, axis=-2)
    zero = jnp.zeros((*terms.shape[:-1], sums.size), terms.dtype)
    return zero.at[..., sums.targets].add(terms, indices_are_sorted=True, mode="promise_in_bounds")


def take(x: Array, index: np.ndarray) -> Array:
    """Entries along the last axis by known indices, zero for -1; `(..., *index.shape)`."""
    if x.shape[-1] == 0:
        return jnp.zeros((*x.shape[:-1], *index.shape), x.dtype)
    missing = index < 0
    inside = np.where(missing, 0, index)
    taken = x.at[..., inside].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return jnp.where(missing, 0, taken) if missing.any() else taken


class SparseSaddlePoint:
    """A saddle-point system with a known pattern; what does not depend on numbers is done once.

    Regular mass matrix, block-diagonal up to the order of the coordinates (a block is a *body*),
    and independent constraints, as for `FullRankSolve`. The work is linear in the number of bodies
    for chains, trees and closed loops of them. Patterns are rows and columns of the entries that
    may be nonzero, shape `(2, k)`; `name` is what messages call `M`.

    Raises:
        ValueError: when `M` couples more than `ELIMINATION_LIMIT` coordinates.
    """

    def __init__(
        self, mass: np.ndarray, jac: np.ndarray, n: int, c: int, name: str = "the mass matrix"
    ):
        self.n, self.c = n, c
        bodies = connected_parts(mass, n)
        largest = max(map(len, bodies), default=0)
        if largest > ELIMINATION_LIMIT:
            raise ValueError(
                f"{name} couples {largest} coordinates with each other, and its inverse "
                f"is dense; the sparse solve is for bodies of up to {ELIMINATION_LIMIT} "
                "coordinates each, coupled by constraints. Use coordinates of each body by itself, "
                "or Multipliers."
            )
        self._place_bodies(bodies, mass)
        self._place_constraints(jac)

    def solve(
        self,
        mass: Float[Array, " k"],
        jac: Float[Array, " l"],
        force: Float[Array, " n"],
        rhs: Float[Array, " c"],
    ) -> tuple[Float[Array, " n"], Float[Array, " c"]]:
        """Solve `M a + J^T lam = force`, `J a = rhs`, of the entries of `M` and `J` in their order.

        NaN where `M` or `J M^-1 J^T` is singular.
        """
        inverse = self._inverse_of_mass(mass)
        free = self._divided(inverse, force)
        if not self.c:
            return free, rhs
        along = add_up(self._rows, lambda k, j: take(jac, k) * take(free, j))
        lam = self._multipliers(inverse, jac, along - rhs)
        reaction = add_up(self._columns, lambda k, i: take(jac, k) * take(lam, i))
        return self._divided(inverse, force - reaction), lam

    def _place_bodies(self, bodies: list[list[int]], mass) -> None:
        size = max(map(len, bodies), default=1)
        self._coordinates = np.full((size, len(bodies)), -1)
        self._where = np.zeros(self.n, int)
        self._body, slot = np.zeros(self.n, int), np.zeros(self.n, int)
        for b, members in enumerate(bodies):
            self._coordinates[: len(members), b] = members
            self._where[members] = np.arange(len(members)) * len(bodies) + b
            self._body[members], slot[members] = b, np.arange(len(members))
        self._mass_entries = np.full((size, size, len(bodies)), -1)
        rows, columns = mass
        self._mass_entries[slot[rows], slot[columns], self._body[rows]] = np.arange(rows.size)
        self._slot = slot
        # Unknowns that a smaller body lacks are equations x = 0.
        absent = self._coordinates < 0
        self._padding = np.where(absent, 1.0, 0.0)[None] * np.eye(size)[:, :, None]

    def _place_constraints(self, jac) -> None:
        rows, columns = jac
        self._rows = sums(rows, [np.arange(rows.size), columns], self.c)
        self._columns = sums(columns, [np.arange(rows.size), rows], self.n)
        # One element for each constraint and body that it acts on.
        element: dict[tuple[int, int], int] = {}
        of_entry = [
            element.setdefault(key, len(element))
            for key in zip(rows.tolist(), self._body[columns].tolist(), strict=True)
        ]
        self._element_entries = np.full((self._coordinates.shape[0], len(element)), -1)
        self._element_entries[self._slot[columns], of_entry] = np.arange(rows.size)
        self._element_bodies = np.array([b for _, b in element], int)
        shared = _shared(element)
        self._place_blocks(shared)

    def _place_blocks(self, shared: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
        near: list[set[int]] = [set() for _ in range(self.c)]
        for i, j in shared:
            if i != j:
                near[i].add(j)
        self._parents, groups = tree_partition(near)
        size = max(map(len, groups), default=1)
        self._block_rows = np.full((len(groups), size), -1)
        for node, members in enumerate(groups):
            self._block_rows[node, : len(members)] = members
        flat = self._block_rows.ravel()
        self._row_place = np.zeros(self.c, int)
        self._row_place[flat[flat >= 0]] = np.flatnonzero(flat >= 0)
        self._row_padding = np.where(self._block_rows < 0, 1.0, 0.0)[:, :, None] * np.eye(size)
        self._on_diagonal, self._on_coupling = self._block_sums(shared, size)

    def _block_sums(self, shared, size: int) -> tuple[Sums, Sums]:
        """Terms of the blocks `A_ii`, and of `A_pi` with p the parent of i."""
        diagonal, coupling = ([], [], []), ([], [], [])
        for (i, j), terms in shared.items():
            (a, s), (b, r) = (divmod(int(self._row_place[x]), size) for x in (i, j))
            if a == b:
                into = diagonal
            elif self._parents[b] == a:
                into = coupling
            else:
                continue
            for first, second in terms:
                into[0].append((b * size + s) * size + r)
                into[1].append(first)
                into[2].append(second)
        count = len(self._parents) * size**2
        return sums(diagonal[0], diagonal[1:], count), sums(coupling[0], coupling[1:], count)

    def _inverse_of_mass(self, mass):
        blocks = take(mass, self._mass_entries) + self._padding.astype(mass.dtype)
        least = jnp.zeros(blocks.shape[1:], mass.dtype)
        return jax.vmap(inverse_of_block, in_axes=-1, out_axes=-1)(blocks, least)

    def _divided(self, inverse, force):
        """`M^-1 f`."""
        return take(_applied(inverse, take(force, self._coordinates)).reshape(-1), self._where)

    def _multipliers(self, inverse, jac, rhs):
        elements = take(jac, self._element_entries)
        mobility = _applied(take(inverse, self._element_bodies), elements)

        def product(i, j):
            return jnp.sum(take(elements, i) * take(mobility, j), axis=0)

        shape = (*self._block_rows.shape, self._block_rows.shape[1])
        diagonal = add_up(self._on_diagonal, product).reshape(shape)
        coupling = add_up(self._on_coupling, product).reshape(shape)
        diagonal += self._row_padding.astype(rhs.dtype)
        lam = solve_block_tree(self._parents, diagonal, coupling, take(rhs, self._block_rows))
        return take(lam.reshape(-1), self._row_place)


def _shared(elements: Iterable[tuple[int, int]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """For each two constraints (and each with itself) their elements on the bodies they share."""
    on_body: dict[int, list[tuple[int, int]]] = {}
    for number, (row, body) in enumerate(elements):
        on_body.setdefault(body, []).append((row, number))
    shared: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for result in on_body.values():
        for i, first in result:
            for j, second in result:
                shared.setdefault((i, j), []).append((first, second))
    return shared


def _applied(blocks, vectors):
    """Products of blocks `(b, b, k)` and vectors `(b, k)`, term by term."""
    terms = [blocks[:, k] * vectors[k] for k in range(vectors.shape[0])]
    return functools.reduce(operator.add, terms)
