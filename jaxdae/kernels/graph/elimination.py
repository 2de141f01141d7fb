"""Elimination at the level of scalars: what is zero by structure is never touched."""

from collections.abc import Mapping, Set
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxdae.kernels.graph.expressions import Graph

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


def solve_symmetric(graph: Graph, matrix: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray]:
    """Solve `A x = b` for a symmetric positive definite `A` with zeros that are known.

    `L D L^T` in the `order` that keeps the fill small; any order is stable for such a matrix. A
    pivot that is not positive makes NaN of what depends on it; the dense elimination makes it of
    everything, also of unknowns that are coupled to none of the others.

    Args:
        graph: where operations are added.
        matrix: nodes of `A`, shape `(n, n)`; those of the upper triangle are used.
        rhs: nodes of `b`, shape `(n,)` or `(n, k)`.

    Returns:
        Nodes of `x`, of the shape of `b`.
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
    `M`: no pivot vanishes, in any such order, and its bound is that of the range-space method.

    Args:
        graph: where operations are added.
        mass: nodes of `M`, shape `(n, n)`; those of the upper triangle are used.
        jac: nodes of `J`, shape `(c, n)`.
        force: nodes of `f`, shape `(n,)`.
        rhs: nodes of `s`, shape `(c,)`.

    Returns:
        Nodes of `a (n,)` and `lam (c,)`.
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
    has NaN in each row.

    Args:
        graph: where operations are added.
        matrix: nodes of `A` but for a part of its diagonal, shape `(n, n)`.
        added: nodes of that part, which is small and no pivot by itself, shape `(n,)`.

    Returns:
        Nodes of `F` and `G`, each of shape `(n, n)`.
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

    def less(rows: np.ndarray, i: int, k: int, factor: int) -> None:
        """Take a multiple of row `k` from row `i`."""
        for j in range(n):
            if there(rows[k, j]):
                part = graph.apply("mul", factor, int(rows[k, j]))
                rows[i, j] = graph.apply("sub", int(rows[i, j]), part)

    for k in range(n):
        inverse = graph.apply("div", one, int(table[k, k]))
        for i in range(k + 1, n):
            if there(table[i, k]):
                factor = graph.apply("mul", int(table[i, k]), inverse)
                table[i, k] = zero
                for j in range(k + 1, n):
                    if there(table[k, j]):
                        part = graph.apply("mul", factor, int(table[k, j]))
                        table[i, j] = graph.apply("sub", int(table[i, j]), part)
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
    n, zero = len(matrix), graph.constant(0.0)
    right = [graph.constant(float(x)) for x in np.random.default_rng(0).choice([-1.0, 1.0], n)]

    def applied(rows, x):
        results = []
        for row in rows:
            total = zero
            for a, b in zip(row, x, strict=True):
                if graph.value(int(a)) != 0:
                    total = graph.apply("add", total, graph.apply("mul", int(a), int(b)))
            results.append(total)
        return results

    absolute = lambda x: graph.apply("abs", int(x))  # noqa: E731
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


def _solved(graph: Graph, matrix: np.ndarray, columns: list[list[int]], after) -> np.ndarray:
    rows = _rows(graph, matrix)
    pattern = [{j: graph.fixed(x.node) for j, x in row.items()} for row in rows]
    sides = [[_Sum(x) for x in row] for row in columns]
    table = _Table(graph, rows, sides, after.keys())
    pivots = [_eliminated(table, p) for p in order(pattern, after)]
    solution: dict[int, list[int]] = {}
    for pivot in reversed(pivots):
        solution[pivot.unknown] = _substituted(table, pivot, solution)
    return np.array([solution[i] for i in range(len(pivots))], np.int32)


class _Sum:
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


class _Table(NamedTuple):
    """Equations `[[A, B], [-B^T, C]] (x, y) = b` while unknowns are eliminated.

    Args:
        graph: where operations are added.
        rows: entries of `A`, `B` and `C` that are not zero by structure, each at both its places;
            those of `B` with its sign at both, so that products with it are added where two of
            them meet.
        columns: right sides, shape `(n, k)`.
        second: unknowns of `y`.
    """

    graph: Graph
    rows: list[dict[int, _Sum]]
    columns: list[list[_Sum]]
    second: Set[int]


class _Pivot(NamedTuple):
    """An unknown that is eliminated.

    Args:
        unknown: its number.
        inverse: of its pivot.
        factors: of those that it depends on.
        columns: its right sides.
    """

    unknown: int
    inverse: int
    factors: dict[int, int]
    columns: list[int]


def _rows(graph: Graph, matrix: np.ndarray) -> list[dict[int, _Sum]]:
    """Nodes of each row that are not zero by structure, the diagonal always."""
    n = matrix.shape[0]
    rows: list[dict[int, _Sum]] = [{} for _ in range(n)]
    for i in range(n):
        for j in range(i, n):
            node = int(matrix[i, j])
            if i == j or graph.value(node) != 0:
                rows[i][j] = rows[j][i] = _Sum(node)
    return rows


def _eliminated(table: _Table, p: int) -> _Pivot:
    """Eliminate an unknown from the equations of those that depend on it."""
    graph, rows, columns, second = table
    inverse = _inverse_of_pivot(graph, rows[p].pop(p).value(graph))
    row = {i: entry.value(graph) for i, entry in sorted(rows[p].items())}
    factors = {i: graph.apply("mul", node, inverse) for i, node in row.items()}
    sides = [x.value(graph) for x in columns[p]]
    for i, factor in factors.items():
        del rows[i][p]
        for j, node in row.items():
            if j >= i:
                if j not in rows[i]:
                    rows[i][j] = rows[j][i] = _Sum(graph.constant(0.0))
                same = (i in second) == (j in second)
                rows[i][j].collect(same and (i in second) != (p in second), factor, node)
        for entry, node in zip(columns[i], sides, strict=True):
            entry.collect(i in second and p not in second, factor, node)
    return _Pivot(p, inverse, factors, sides)


def _inverse_of_pivot(graph: Graph, pivot: int) -> int:
    # The division does not wait for the comparison.
    positive = graph.apply("lt", graph.constant(0.0), pivot)
    inverse = graph.apply("div", graph.constant(1.0), pivot)
    return graph.apply("select", positive, inverse, graph.constant(np.nan))


def _substituted(table: _Table, pivot: _Pivot, solution: dict[int, list[int]]) -> list[int]:
    """Solve for an unknown, where those that it depends on are known."""
    graph, second = table.graph, table.second
    nodes = []
    for k, sides in enumerate(pivot.columns):
        x = _Sum(graph.apply("mul", sides, pivot.inverse))
        # What has just been solved for comes last, so that the others do not wait for it.
        for i in (i for i in solution if i in pivot.factors):
            add = pivot.unknown in second and i not in second
            x.collect(add, pivot.factors[i], solution[i][k])
        nodes.append(x.value(graph))
    return nodes
