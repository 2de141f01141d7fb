"""In which order unknowns are eliminated, from the pattern of a symmetric matrix alone."""

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import NamedTuple

# Of each unknown those that its equation has, itself too, and whether that entry is the same in all
# calls.
Pattern = list[dict[int, bool]]


class Order(NamedTuple):
    """An order of elimination and what it costs.

    Args:
        products: multiplications in the factorization and with one right side.
        depth: the longest sequence of pivots of which each needs the one before.
        unknowns: in the order in which they are eliminated.
    """

    products: int
    depth: int
    unknowns: list[int]


def order(pattern: Pattern, after: Mapping[int, Set[int]]) -> tuple[int, ...]:
    """Unknowns in an order that keeps the fill small.

    That of least degree [TinneyWalker1967]: the next unknown is one that the fewest others depend
    on. Among several, one whose pivot is the same in all calls, which is divided by but once; then
    one before which the fewest pivots must be known one after the other. Where it costs nothing,
    unknowns that wait for none come before all that do: those of a chain can then be eliminated
    from both of its ends.

    Args:
        pattern: entries that are not zero by structure.
        after: of some unknowns those that must be eliminated before.
    """
    rows = tuple(tuple(sorted(row.items())) for row in pattern)
    return _order(rows, tuple((i, frozenset(x)) for i, x in sorted(after.items())))


@lru_cache(64)
def _order(rows, waiting) -> tuple[int, ...]:
    """The same for all members of a batch, found once."""
    after = dict(waiting)
    first = set(range(len(rows))) - after.keys()
    early = _of_least_degree(rows, after)
    late = _of_least_degree(rows, dict.fromkeys(after, first))
    return tuple(min(late, early, key=lambda x: (x.products, x.depth)).unknowns)


def _of_least_degree(entries, after: Mapping[int, Set[int]]) -> Order:
    rows = [dict(row) for row in entries]
    left, depth = set(range(len(rows))), [1] * len(rows)
    unknowns, products = [], 0
    while left:
        ready = [i for i in left if left.isdisjoint(after.get(i, ()))]
        p = min(ready, key=lambda i: (len(rows[i]), not rows[i][i], depth[i], i))
        left.remove(p)
        unknowns.append(p)
        others = len(rows[p]) - 1
        products += others + others * (others + 1) // 2 + 2 * others + 1
        for i in _eliminate(rows, p):
            depth[i] = max(depth[i], depth[p] + 1)
    return Order(products, max(depth, default=0), unknowns)


def _eliminate(rows: Pattern, p: int) -> list[int]:
    """Take an unknown out of the equations of others; their numbers."""
    row = rows[p]
    pivot = row.pop(p)
    for i, fixed in row.items():
        del rows[i][p]
        for j, other in row.items():
            rows[i][j] = rows[i].get(j, True) and fixed and other and pivot
    return list(row)
