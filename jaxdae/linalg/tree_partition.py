"""Trees of unknowns: their order of elimination, and how a sparse matrix is made one of blocks."""

import dataclasses
from collections.abc import Iterable
from functools import cached_property

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tree:
    """A forest given by the parent of each node.

    Args:
        parents: parent of each node; -1 for a root. In any order.

    Raises:
        ValueError: for parents that do not exist, or that lead back to a node itself.
    """

    parents: tuple[int, ...]

    def __post_init__(self):
        for i, p in enumerate(self.parents):
            if not -1 <= p < self.size:
                raise ValueError(f"node {i} of {self.size} has the parent {p}, which is not there.")
        self.order  # noqa: B018  refuses parents that lead round a loop

    def __hash__(self):
        return self._hash

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.parents)

    @cached_property
    def parent(self) -> np.ndarray:
        """Parents, with the number of nodes, which is none of them, for that of a root."""
        parents = np.array(self.parents, int)
        return np.where(parents < 0, self.size, parents)

    @cached_property
    def order(self) -> np.ndarray:
        """Nodes in the order of their elimination, from the deepest to the roots."""
        return np.argsort(-self._depths(), kind="stable")

    @cached_property
    def _hash(self) -> int:
        return hash(self.parents)

    def _depths(self) -> np.ndarray:
        """Number of nodes above each."""
        depths = np.full(self.size, -1)
        for start in range(self.size):
            path, node = [], start
            while node >= 0 and depths[node] < 0:
                path.append(node)
                node = self.parents[node]
                if len(path) > self.size:
                    raise ValueError(f"the parents of node {start} lead round a loop.")
            above = -1 if node < 0 else depths[node]
            for i, member in enumerate(reversed(path)):
                depths[member] = above + 1 + i
        return depths


def tree_partition(near: list[set[int]]) -> tuple[Tree, list[list[int]]]:
    """Group unknowns so that the groups form a tree.

    Level sets of the distance from one end of the graph; two unknowns of a level are in one group
    if they are connected without passing through levels nearer to that end. What depends on each
    other is then in one group, or in a group and its parent, whatever the graph; a chain has groups
    of one, a mechanism that branches one for each branching, a closed loop groups of two.

    Args:
        near: for each unknown, the others it depends on.

    Returns:
        The tree, and for each of its nodes the unknowns in that group.
    """
    groups: list[list[int]] = []
    parents: list[int] = []
    owner = np.full(len(near), -1)
    for start in range(len(near)):
        if owner[start] < 0:
            _add_component(near, _far_end(near, start), owner, groups, parents)
    return Tree(tuple(parents)), groups


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
    """Parts of the unknowns that a pattern connects.

    Args:
        pattern: rows and columns of the entries that may be nonzero, shape `(2, k)`.
        n: number of unknowns.

    Returns:
        Unknowns of each part, in increasing order.
    """
    near: list[set[int]] = [set() for _ in range(n)]
    for i, j in pattern.T.tolist():
        near[i].add(j)
        near[j].add(i)
    parts, seen = [], [False] * n
    for start in range(n):
        part, waiting = [], [start]
        while waiting:
            i = waiting.pop()
            if not seen[i]:
                seen[i] = True
                part.append(i)
                waiting.extend(near[i])
        if part:
            parts.append(sorted(part))
    return parts


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
