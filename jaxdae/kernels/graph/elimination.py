"""Elimination at the level of scalars: what is zero by structure is never touched."""

from collections.abc import Mapping, Set
from functools import lru_cache

import numpy as np

from jaxdae.kernels.graph.expressions import Graph

# Of each unknown those that its equation has, itself too, and whether that entry is the same in all
# calls.
Pattern = list[dict[int, bool]]


def order(pattern: Pattern, after: Mapping[int, Set[int]]) -> tuple[int, ...]:
    """Unknowns in an order that keeps the fill small.

    That of least degree [TinneyWalker1967]: the next unknown is one that the fewest others depend
    on. Among several, one whose pivot is the same in all calls, which is divided by but once; then
    one before which the fewest pivots must be known one after the other. `after` has of some
    unknowns those that must be eliminated before.
    """
    rows = tuple(tuple(sorted(row.items())) for row in pattern)
    return _order(rows, tuple((i, frozenset(x)) for i, x in sorted(after.items())))


@lru_cache(64)
def _order(entries, waiting) -> tuple[int, ...]:
    """The same for all members of a batch, found once."""
    rows, after = [dict(row) for row in entries], dict(waiting)
    left, depth = set(range(len(rows))), [1] * len(rows)
    unknowns = []
    while left:
        ready = [i for i in left if left.isdisjoint(after.get(i, ()))]
        p = min(ready, key=lambda i: (len(rows[i]), not rows[i][i], depth[i], i))
        left.remove(p)
        unknowns.append(p)
        for i in _eliminate(rows, p):
            depth[i] = max(depth[i], depth[p] + 1)
    return tuple(unknowns)


def _eliminate(rows: Pattern, p: int) -> list[int]:
    """Take an unknown out of the equations of others; their numbers."""
    row = rows[p]
    pivot = row.pop(p)
    for i, fixed in row.items():
        del rows[i][p]
        for j, other in row.items():
            rows[i][j] = rows[i].get(j, True) and fixed and other and pivot
    return list(row)


def solve_symmetric(graph: Graph, matrix: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray]:
    """Solve `A x = b` for a symmetric positive definite `A` with zeros that are known.

    `L D L^T` in the `order` that keeps the fill small; any order is stable for such a matrix. A
    pivot that is not positive makes NaN of what depends on it; the dense elimination makes it of
    everything, also of unknowns that are coupled to none of the others. The upper triangle of `A`
    is used; `b` and `x` have the shape `(n,)` or `(n, k)`.
    """
    columns = rhs.reshape(rhs.shape[0], -1).tolist()
    return (_solved(graph, matrix, columns, {}).reshape(rhs.shape),)


def solve_saddle_point(
    graph: Graph, mass: np.ndarray, jac: np.ndarray, force: np.ndarray, rhs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Solve `M a + J^T lam = f`, `J a = s`, both matrices with zeros that are known.

    As `solve_symmetric`, where a multiplier may come as soon as all coordinates of its constraint
    are eliminated. Pivots of multipliers are those of `J M_SS^-1 J^T`, where `S` are all
    coordinates that are eliminated before the last of them, and `J` has the constraints that are.
    It is positive definite where `M` is and constraints are independent, and so is what is left of
    `M`: no pivot vanishes, in any such order, and its bound is that of the range-space method. The
    upper triangle of `M` is used.
    """
    c, n = jac.shape
    zero = graph.constant(0.0)
    matrix = np.block([[mass, jac.T], [jac, np.full((c, c), zero)]])
    after = {n + i: {j for j in range(n) if row[j] != zero} for i, row in enumerate(jac)}
    # The second equation with the other sign, -J a = -s: pivots of multipliers are positive, too.
    sides = [*force.tolist(), *(graph.apply("neg", x) for x in rhs.tolist())]
    solution = _solved(graph, matrix, [[x] for x in sides], after)[:, 0]
    return solution[:n], solution[n:]


# Digits that an elimination without choice of pivots may lose, as a power of the precision.
_LOST = 2 / 3


def inverse_factors(
    graph: Graph, matrix: np.ndarray, added: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices `F` and `G` with `A^-1 = G F`, of any square matrix with zeros that are known.

    `P A P^T = L U` without choice of pivots, in the `order` that keeps the fill of the symmetric
    pattern small: stable where the symmetric part of `A` is definite, as that of `I - gamma h J` is
    for damped motions, and for all motions where `h` is small. Unknowns with a zero on the
    diagonal, such as multipliers, come behind those beside them. Elsewhere it may lose digits: a
    vector is solved for along, and where its residual is above round-off to the power of 2/3, `G`
    has NaN in each row. A part of the diagonal, which is small and no pivot by itself, is `added`
    to the matrix.
    """
    n, zero, one = len(matrix), graph.constant(0.0), graph.constant(1.0)
    there = lambda node: graph.value(int(node)) != 0  # noqa: E731
    either = [
        {j: False for j in range(n) if i == j or there(matrix[i, j]) or there(matrix[j, i])}
        for i in range(n)
    ]
    # A diagonal entry that is zero is none to divide by until those beside it are eliminated.
    filled = [there(x) for x in np.diagonal(matrix)]
    after = {i: {j for j in either[i] if filled[j]} for i in range(n) if not filled[i]}
    unknowns = list(order(either, after))
    matrix = matrix.copy()
    for i in range(n):
        matrix[i, i] = graph.apply("add", int(matrix[i, i]), int(added[i]))
    table = matrix[np.ix_(unknowns, unknowns)].copy()
    lower, upper = (np.where(np.eye(n, dtype=bool), one, zero) for _ in range(2))

    def less(rows: np.ndarray, i: int, k: int, factor: int, start: int = 0) -> None:
        """Take a multiple of row `k` from row `i`."""
        for j in range(start, n):
            if there(rows[k, j]):
                part = graph.apply("mul", factor, int(rows[k, j]))
                rows[i, j] = graph.apply("sub", int(rows[i, j]), part)

    for k in range(n):
        inverse = graph.apply("div", one, int(table[k, k]))
        for i in range(k + 1, n):
            if there(table[i, k]):
                factor = graph.apply("mul", int(table[i, k]), inverse)
                table[i, k] = zero
                less(table, i, k, factor, k + 1)
                less(lower, i, k, factor)
    for k in reversed(range(n)):
        inverse = graph.apply("div", one, int(table[k, k]))
        for j in range(k + 1, n):
            if there(table[k, j]):
                less(upper, k, j, int(table[k, j]))
        for j in range(n):
            if there(upper[k, j]):
                upper[k, j] = graph.apply("mul", int(upper[k, j]), inverse)
    first, then = np.full((n, n), zero), np.full((n, n), zero)
    first[:, unknowns], then[unknowns] = lower, upper
    accurate = _is_accurate(graph, matrix, first, then)
    for i, row in enumerate(then):
        k = next(k for k in range(n) if there(row[k]))
        then[i, k] = graph.apply("select", accurate, int(row[k]), graph.constant(np.nan))
    return first, then


def _is_accurate(graph: Graph, matrix, first, then) -> int:
    """Whether `G F` solves for a vector of one and minus one to round-off, but for some digits."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], len(matrix))
    right = [graph.constant(float(x)) for x in signs]
    absolute = lambda x: graph.apply("abs", int(x))  # noqa: E731
    applied = lambda rows, x: [graph.dot([*map(int, row)], x) for row in rows]  # noqa: E731
    x = applied(then, applied(first, right))
    sizes = applied([[absolute(a) for a in row] for row in matrix], [absolute(a) for a in x])
    limit = graph.constant(float(np.finfo(graph.dtype or np.float64).eps) ** _LOST)
    accurate = graph.constant(True)
    for found, wanted, size in zip(applied(matrix, x), right, sizes, strict=True):
        off = absolute(graph.apply("sub", found, wanted))
        least = graph.apply("mul", limit, graph.apply("add", size, graph.constant(1.0)))
        # Not the other way round: NaN is not accurate.
        accurate = graph.apply("and", accurate, graph.apply("le", off, least))
    return accurate


class _PendingSum:
    """An entry less products that are known before it is needed.

    Summed up only then: sums that wait for their last terms would have to be kept all the while.
    """

    def __init__(self, node: int):
        self.node = node
        self._products: list[tuple[str, int, int]] = []

    def collect(self, add: bool, a: int, b: int) -> None:
        """Take `a b` away, or add it."""
        self._products.append(("add" if add else "sub", a, b))

    def value(self, graph: Graph) -> int:
        """Its node."""
        for operation, a, b in self._products:
            self.node = graph.apply(operation, self.node, graph.apply("mul", a, b))
        self._products.clear()
        return self.node


def _solved(graph: Graph, matrix: np.ndarray, columns: list[list[int]], after) -> np.ndarray:
    """Solve `[[A, B], [-B^T, C]] (x, y) = b`, of which `y` are the unknowns that wait for others.

    Entries of `B` have its sign at both of their places, so that products with it are added where
    two of them meet.
    """
    n, one, nan = len(matrix), graph.constant(1.0), graph.constant(np.nan)
    rows: list[dict[int, _PendingSum]] = [{} for _ in range(n)]
    for i in range(n):
        for j in range(i, n):
            node = int(matrix[i, j])
            if i == j or graph.value(node) != 0:
                rows[i][j] = rows[j][i] = _PendingSum(node)
    pattern = [{j: graph.fixed(x.node) for j, x in row.items()} for row in rows]
    sides, second, pivots = [[_PendingSum(x) for x in row] for row in columns], after.keys(), []
    for p in order(pattern, after):
        pivot = rows[p].pop(p).value(graph)
        # The division does not wait for the comparison.
        positive = graph.apply("lt", graph.constant(0.0), pivot)
        inverse = graph.apply("select", positive, graph.apply("div", one, pivot), nan)
        row = {i: entry.value(graph) for i, entry in sorted(rows[p].items())}
        factors = {i: graph.apply("mul", node, inverse) for i, node in row.items()}
        own = [x.value(graph) for x in sides[p]]
        for i, factor in factors.items():
            del rows[i][p]
            for j, node in row.items():
                if j >= i:
                    if j not in rows[i]:
                        rows[i][j] = rows[j][i] = _PendingSum(graph.constant(0.0))
                    same = (i in second) == (j in second)
                    rows[i][j].collect(same and (i in second) != (p in second), factor, node)
            for entry, node in zip(sides[i], own, strict=True):
                entry.collect(i in second and p not in second, factor, node)
        pivots.append((p, inverse, factors, own))
    solution: dict[int, list[int]] = {}
    for p, inverse, factors, own in reversed(pivots):
        nodes = []
        for k, side in enumerate(own):
            x = _PendingSum(graph.apply("mul", side, inverse))
            # What has just been solved for comes last, so that the others do not wait for it.
            for i in (i for i in solution if i in factors):
                x.collect(p in second and i not in second, factors[i], solution[i][k])
            nodes.append(x.value(graph))
        solution[p] = nodes
    return np.array([solution[i] for i in range(n)], np.int32)
