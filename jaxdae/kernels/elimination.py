"""Elimination at the level of scalars: what is zero by structure is never touched."""

import numpy as np

from jaxdae.kernels.graph import Graph


def solve_symmetric(graph: Graph, matrix: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """Solve `A x = b` for a symmetric positive definite `A` with zeros that are known.

    `L D L^T` in the order of least degree (Tinney, Walker 1967): the next unknown is one that the
    fewest others depend on, which keeps the fill small. Among several, one whose pivot is the same
    in all calls: it is divided by but once. Any order is stable for such a matrix. A pivot that is
    not positive makes everything NaN, as the dense elimination does.

    Args:
        graph: where operations are added.
        matrix: nodes of `A`, shape `(n, n)`; those of the upper triangle are used.
        rhs: nodes of `b`, shape `(n,)` or `(n, k)`.

    Returns:
        Nodes of `x`, of the shape of `b`.
    """
    rows = _rows(graph, matrix)
    columns = rhs.reshape(rhs.shape[0], -1).astype(object)
    pivots = _eliminated(graph, rows, columns)
    return _substituted(graph, pivots, columns).astype(np.int32).reshape(rhs.shape)


def _rows(graph: Graph, matrix: np.ndarray) -> list[dict[int, int]]:
    """Nodes of each row that are not zero by structure, the diagonal always."""
    n = matrix.shape[0]
    rows: list[dict[int, int]] = [{} for _ in range(n)]
    for i in range(n):
        for j in range(i, n):
            node = int(matrix[i, j])
            if i == j or graph.value(node) != 0:
                rows[i][j] = rows[j][i] = node
    return rows


def _eliminated(graph: Graph, rows, columns) -> list[tuple[int, int, dict[int, int]]]:
    """Pivots in order: unknown, inverse of its pivot, multipliers of those that depend on it."""
    left, pivots = set(range(len(rows))), []
    zero, nan, one = graph.constant(0.0), graph.constant(np.nan), graph.constant(1.0)
    while left:
        p = min(left, key=lambda i: (len(rows[i]), not graph.fixed(rows[i][i]), i))
        left.remove(p)
        diagonal = rows[p].pop(p)
        positive = graph.apply("lt", zero, diagonal)
        inverse = graph.apply("div", one, graph.apply("select", positive, diagonal, nan))
        factors = {i: graph.apply("mul", node, inverse) for i, node in rows[p].items()}
        for i in rows[p]:
            del rows[i][p]
        for i, factor in factors.items():
            for j in rows[p]:
                if j < i:
                    continue
                product = graph.apply("mul", factor, rows[p][j])
                entry = graph.apply("sub", rows[i].get(j, zero), product)
                rows[i][j] = rows[j][i] = entry
            for k in range(columns.shape[1]):
                product = graph.apply("mul", factor, columns[p, k])
                columns[i, k] = graph.apply("sub", columns[i, k], product)
        pivots.append((p, inverse, factors))
    return pivots


def _substituted(graph: Graph, pivots, columns) -> np.ndarray:
    for p, inverse, factors in reversed(pivots):
        for k in range(columns.shape[1]):
            x = graph.apply("mul", columns[p, k], inverse)
            for i, factor in factors.items():
                x = graph.apply("sub", x, graph.apply("mul", factor, columns[i, k]))
            columns[p, k] = x
    return columns
