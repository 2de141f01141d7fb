"""Factorizations of small dense matrices as LAPACK defines them, and our own solves, by scalars."""

from collections.abc import Callable
from functools import partial

import numpy as np

from jaxdae.kernels.graph.array_calls import Factorization
from jaxdae.kernels.graph.elimination import inverse_factors, solve_saddle_point, solve_symmetric
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import as_symbols, COMPLEX, Symbols, Value
from jaxdae.linalg.lu import COMPLEX_FACTORS, FACTORS, MOST_PIVOTED, PIVOTED_FACTORS
from jaxdae.linalg.positive_definite import POSITIVE_DEFINITE
from jaxdae.linalg.saddle_point import SADDLE_POINT
from jaxdae.linalg.solve_primitive import BatchAxes
from jaxdae.primitives.parameters import Refusal


class _Scalars:
    """Arithmetic on nodes of a graph."""

    def __init__(self, graph: Graph):
        self.graph, self.apply = graph, graph.apply
        self.zero, self.one = graph.constant(0.0), graph.constant(1.0)

    def is_zero(self, node: int) -> bool:
        """Whether a node is zero by structure."""
        return self.graph.value(node) == 0

    def less(self, a: int, b: int, c: int) -> int:
        """`a - b c`."""
        return self.apply("sub", a, self.apply("mul", b, c))

    def dot(self, a, b) -> int:
        """Sum of products, in their order."""
        return self.graph.dot([*map(int, a)], [*map(int, b)])

    def swapped(self, condition: int, a: np.ndarray, b: np.ndarray):
        """Two rows, exchanged where a condition holds."""
        pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
        first = [self.apply("select", condition, y, x) for x, y in pairs]
        return first, [self.apply("select", condition, x, y) for x, y in pairs]


def _of_matrices(factorize: Callable, *cores: int) -> Callable:
    """A rule for a batch, from a function of one member's matrices, which have so many axes."""

    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Symbols]:
        nodes = [as_symbols(graph, x).nodes for x in arguments]
        batch = nodes[0].shape[: nodes[0].ndim - cores[0]]
        return _each(batch, nodes, equation, partial(factorize, graph, **equation.params))

    return rule


def _each(batch: tuple[int, ...], nodes, equation, function: Callable) -> list[Symbols]:
    """Results for a batch, from a function of the nodes of one member."""
    results = [np.zeros(x.aval.shape, np.int32) for x in equation.outvars]
    for place in np.ndindex(*batch):
        parts = function(*(x[place] for x in nodes))
        for result, part in zip(results, parts, strict=True):
            result[place] = part
    return [Symbols(x) for x in results]


def _cholesky(graph: Graph, matrix, **_):
    """`L` with `L L^T = A`, NaN where `A` is not positive definite; the lower triangle counts."""
    s, n = _Scalars(graph), len(matrix)
    factor, definite = np.full((n, n), s.zero), graph.constant(True)
    for j in range(n):
        pivot = int(matrix[j, j])
        for k in range(j):
            pivot = s.less(pivot, int(factor[j, k]), int(factor[j, k]))
        definite = s.apply("and", definite, s.apply("lt", s.zero, pivot))
        factor[j, j] = s.apply("sqrt", pivot)
        inverse = s.apply("div", s.one, int(factor[j, j]))
        for i in range(j + 1, n):
            entry = int(matrix[i, j])
            for k in range(j):
                entry = s.less(entry, int(factor[i, k]), int(factor[j, k]))
            factor[i, j] = s.apply("mul", entry, inverse)
    nan = graph.constant(np.nan)
    for place in zip(*np.tril_indices(n), strict=True):
        # What is zero by structure stays so, even then.
        if not s.is_zero(int(factor[place])):
            factor[place] = s.apply("select", definite, int(factor[place]), nan)
    return [factor]


def _triangular_solve(graph: Graph, a, b, *, left_side, lower, transpose_a, unit_diagonal, **_):
    """`op(A) X = B` or `X op(A) = B`."""
    s, n = _Scalars(graph), len(a)
    if transpose_a == left_side:
        # Both change what stands at the left: A^T X = B, and X A = B, which is A^T X^T = B^T.
        a, lower = a.T, not lower
    b = (b if left_side else b.T).copy()
    order = range(n) if lower else range(n - 1, -1, -1)
    done: list[int] = []
    for i in order:
        inverse = s.one if unit_diagonal else s.apply("div", s.one, int(a[i, i]))
        for k in range(b.shape[1]):
            x = int(b[i, k])
            for j in done:
                x = s.less(x, int(a[i, j]), int(b[j, k]))
            b[i, k] = s.apply("mul", x, inverse)
        done.append(i)
    return [b if left_side else b.T]


def _lu(graph: Graph, equation, arguments: list[Value]) -> list[Symbols]:
    """`P A = L U` with the largest entry of a column as its pivot."""
    m, n = equation.invars[0].aval.shape[-2:]
    if min(m, n) > MOST_PIVOTED:  # it would cost n^3 choices besides its arithmetic
        raise Refusal(f"its pivots depend on the inputs, and it has more than {MOST_PIVOTED}")
    factors, *rows = _of_matrices(_pivoted, 2)(graph, equation, arguments)
    return [factors, *(x._replace(bounds=(0, max(m - 1, 0))) for x in rows)]


def _pivoted(graph: Graph, matrix, **_):
    s, (m, n) = _Scalars(graph), matrix.shape
    table = matrix.copy()
    order = np.array([graph.constant(float(i)) for i in range(m)], np.int32)
    pivots = []
    for k in range(min(m, n)):
        pivots.append(_pivot(s, table, order, k))
        pivot = int(table[k, k])
        # Of a column of zeros nothing is eliminated.
        safe = s.apply("select", s.apply("eq", pivot, s.zero), s.one, pivot)
        inverse = s.apply("div", s.one, safe)
        for i in range(k + 1, m):
            factor = table[i, k] = s.apply("mul", int(table[i, k]), inverse)
            for j in range(k + 1, n):
                table[i, j] = s.less(int(table[i, j]), int(factor), int(table[k, j]))
    return table, pivots, order


def _pivot(s: _Scalars, table, order, k: int) -> int:
    """Exchange row `k` with that of the largest entry below; its number.

    Entries that are zero by structure are no candidates: they take part in no comparison.
    """
    candidates = [i for i in range(k, len(table)) if not s.is_zero(int(table[i, k]))] or [k]
    chosen = s.graph.constant(float(candidates[0]))
    best = s.apply("abs", int(table[candidates[0], k]))
    for i in candidates[1:]:
        size = s.apply("abs", int(table[i, k]))
        larger = s.apply("lt", best, size)
        chosen = s.apply("select", larger, s.graph.constant(float(i)), chosen)
        best = s.apply("select", larger, size, best)
    for i in candidates:
        if i > k:
            _exchange(s, chosen, k, i, table)
            _exchange(s, chosen, k, i, order[:, None])
    return chosen


def _exchange(s: _Scalars, chosen: int, k: int, i: int, table) -> None:
    """Exchange rows `k` and `i` where `i` is chosen."""
    here = s.apply("eq", chosen, s.graph.constant(float(i)))
    table[k], table[i] = s.swapped(here, table[k], table[i])


def _permutation(graph: Graph, pivots, *, permutation_size):
    """The order of rows that a sequence of exchanges leads to."""
    s = _Scalars(graph)
    order = np.array([graph.constant(float(i)) for i in range(permutation_size)], np.int32)
    for k, pivot in enumerate(pivots):
        for i in range(k + 1, permutation_size):
            _exchange(s, int(pivot), k, i, order[:, None])
    return [order]


def _lu_pivots_to_permutation(graph: Graph, equation, arguments: list[Value]) -> list[Symbols]:
    (order,) = _of_matrices(_permutation, 1)(graph, equation, arguments)
    return [order._replace(bounds=(0, max(equation.params["permutation_size"] - 1, 0)))]


def _qr(graph: Graph, matrix, *, full_matrices, pivoting, **_):
    """`A = Q R` by Householder reflections."""
    if pivoting:
        raise Refusal("its pivots depend on the inputs")
    m, n = matrix.shape
    packed, scales = _geqrf(graph, matrix)
    count = m if full_matrices else min(m, n)
    reflectors = np.full((m, count), graph.constant(0.0))
    reflectors[:, : min(n, count)] = packed[:, : min(n, count)]
    (q,) = _householder_product(graph, reflectors, scales)
    upper = np.triu(np.ones((count, n), bool))
    return [q, np.where(upper, packed[:count], graph.constant(0.0))]


def _geqrf(graph: Graph, matrix, **_):
    """Reflections `I - tau v v^T` with `v[0] = 1`, below the diagonal of `R`."""
    s, (m, n) = _Scalars(graph), matrix.shape
    table, scales = matrix.copy(), []
    for k in range(min(m, n)):
        beta, scale, tail = _reflection(s, table[k:, k])
        table[k, k], table[k + 1 :, k] = beta, tail
        scales.append(scale)
        for j in range(k + 1, n):
            table[k:, j] = _reflected(s, scale, tail, table[k:, j])
    return [table, np.array(scales, np.int32)]


def _reflection(s: _Scalars, column):
    """LAPACK's `larfg`: the reflection of a column to `(beta, 0, ...)`; none if it is so."""
    head, tail = int(column[0]), column[1:]
    rest = s.dot(tail, tail)
    length = s.apply("sqrt", s.apply("add", s.apply("mul", head, head), rest))
    away = s.apply("select", s.apply("lt", head, s.zero), length, s.apply("neg", length))
    nothing = s.apply("eq", rest, s.zero)
    beta = s.apply("select", nothing, head, away)
    safe = s.apply("select", nothing, s.one, away)
    scale = s.apply("div", s.apply("sub", safe, head), safe)
    scale = s.apply("select", nothing, s.zero, scale)
    divisor = s.apply("select", nothing, s.one, s.apply("sub", head, away))
    inverse = s.apply("div", s.one, divisor)
    return beta, scale, [s.apply("mul", int(x), inverse) for x in tail]


def _reflected(s: _Scalars, scale: int, tail, column) -> list[int]:
    part = s.apply("add", int(column[0]), s.dot(tail, column[1:]))
    part = s.apply("mul", scale, part)
    rest = [s.less(int(x), part, int(v)) for x, v in zip(column[1:], tail, strict=True)]
    return [s.apply("sub", int(column[0]), part), *rest]


def _householder_product(graph: Graph, packed, scales, **_):
    """The first columns of the product of reflections."""
    s, (m, n) = _Scalars(graph), packed.shape
    q = np.where(np.eye(m, n, dtype=bool), s.one, s.zero)
    for k in reversed(range(len(scales))):
        for j in range(k, n):
            q[k:, j] = _reflected(s, int(scales[k]), packed[k + 1 :, k], q[k:, j])
    return [q]


def _ormqr(graph: Graph, packed, scales, target, *, left, transpose):
    """A product of reflections, or its transpose, times a matrix; or a matrix times it."""
    s, count = _Scalars(graph), len(scales)
    columns = (target if left else target.T).copy()
    # From the right it is the transpose that meets the rows.
    for k in range(count) if transpose == left else reversed(range(count)):
        for j in range(columns.shape[1]):
            tail = packed[k + 1 :, k]
            columns[k:, j] = _reflected(s, int(scales[k]), tail, columns[k:, j])
    return [columns if left else columns.T]


def _of_systems(solve: Callable) -> Callable:
    """A rule for a batch of systems, from what solves one of them."""

    def rule(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list[Symbols]:
        del evaluate  # what it would follow is not entered
        batch: BatchAxes = equation.params["batch"]
        nodes = [_with_batch(batch, i, as_symbols(graph, x).nodes) for i, x in enumerate(arguments)]
        return _each(batch.sizes, nodes, equation, partial(solve, graph))

    return rule


def _factors(graph: Graph, *arguments, parts: int):
    """Factors of a matrix, real or complex, as one call; of a real one written out without any."""
    matrices, n = arguments[:parts], len(arguments[0])
    if graph.loops and graph.dtype is not None:
        given = tuple(tuple(x.ravel().tolist()) for x in matrices)
        return [x.T for x in graph.call(Factorization(n, parts), given)]
    if parts > 1:
        raise Refusal(COMPLEX)
    if n > MOST_PIVOTED:
        raise Refusal(f"its pivots depend on the inputs, and it has more than {MOST_PIVOTED}")
    factors, _, order = _pivoted(graph, matrices[0])
    eye = [[graph.apply("eq", int(i), graph.constant(float(j))) for j in range(n)] for i in order]
    one, zero = graph.constant(1.0), graph.constant(0.0)
    rows = np.array([[graph.apply("select", x, one, zero) for x in row] for row in eye], np.int32)
    same = np.where(np.eye(n, dtype=bool), one, zero)
    kind = {"left_side": True, "transpose_a": False}
    lower = _triangular_solve(graph, factors, rows, lower=True, unit_diagonal=True, **kind)
    upper = _triangular_solve(graph, factors, same, lower=False, unit_diagonal=False, **kind)
    return [*lower, *upper]


def _with_batch(batch: BatchAxes, number: int, nodes: np.ndarray) -> np.ndarray:
    """An argument for each system of a batch."""
    core, present = batch.core(number, nodes.shape), batch.present[number]
    axes = (size if x else 1 for size, x in zip(batch.sizes, present, strict=True))
    return np.broadcast_to(nodes.reshape(*axes, *core), (*batch.sizes, *core))


RULES: dict[str, Callable] = {
    "cholesky": _of_matrices(_cholesky, 2),
    "triangular_solve": _of_matrices(_triangular_solve, 2, 2),
    "lu": _lu,
    "lu_pivots_to_permutation": _lu_pivots_to_permutation,
    "qr": _of_matrices(_qr, 2),
    "geqrf": _of_matrices(_geqrf, 2),
    "householder_product": _of_matrices(_householder_product, 2, 1),
    "ormqr": _of_matrices(_ormqr, 2, 1, 2),
}
# Refused, and why.
ITERATIVE = dict.fromkeys(
    ("svd", "eigh", "eig", "schur", "hessenberg", "tridiagonal"),
    "it iterates until it converges, as often as its input needs",
)
# Our own, which are not entered.
SOLVES: dict[str, Callable] = {
    POSITIVE_DEFINITE: _of_systems(solve_symmetric),
    SADDLE_POINT: _of_systems(solve_saddle_point),
    COMPLEX_FACTORS: _of_systems(partial(_factors, parts=2)),
    PIVOTED_FACTORS: _of_systems(partial(_factors, parts=1)),
    FACTORS: _of_systems(lambda graph, matrix, added, *_: inverse_factors(graph, matrix, added)),
}
