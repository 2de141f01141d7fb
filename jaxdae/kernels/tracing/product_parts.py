"""Parts of arrays that are products of dense matrices, such as derivatives by a network's weights.

Sums of such products are products of longer matrices: `A B + C D = [A C] [B; D]`. A sum over many
pairs of vectors, those of all stages of a step, goes through the memory of the matrix once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.array_calls import called, mapped, MatrixLayout, OUTER, Product
from jaxdae.kernels.graph.expressions import Graph, RESULT

# Operations that are linear in all of their arguments.
SUMS = ("add", "sub", "neg")


class Rank(NamedTuple):
    """A part of an array that is a product of two matrices.

    Args:
        start: number of its first entry in the array, where the others follow by rows.
        rows: of the product.
        terms: columns of the left factor, which are rows of the right one.
        columns: of the product.
    """

    start: int
    rows: int
    terms: int
    columns: int

    @property
    def stop(self) -> int:
        """Number of the first entry behind the product."""
        return self.start + self.rows * self.columns


class FactoredProduct(NamedTuple):
    """Matrices of nodes `A`, shape (m, k), and `B`, shape (k, n), of a part `A B` of an array."""

    left: np.ndarray
    right: np.ndarray
    start: int

    @property
    def rank(self) -> Rank:
        """Which part it is."""
        (rows, terms), (_, columns) = self.left.shape, self.right.shape
        return Rank(self.start, rows, terms, columns)


def factors(graph: Graph, nodes: np.ndarray) -> list[FactoredProduct]:
    """Parts of an array, in the order of its entries, that are products or transposes of such."""
    result, at, flat = [], 0, nodes.ravel()
    while at + OUTER <= flat.size:
        product = _factors_at(graph, flat, at)
        if product is not None:
            result.append(product)
        at = at + 1 if product is None else product.rank.stop
    return result


def _factors_at(graph: Graph, flat: np.ndarray, at: int) -> FactoredProduct | None:
    operation, (call, *number) = graph.nodes[int(flat[at])]
    if operation != RESULT or number != [0]:
        return None
    callee, arguments = graph.nodes[call].arguments
    if not isinstance(callee, Product) or at + callee.results[0].size > flat.size:
        return None
    m, k, n = callee.shape
    nodes = flat[at : at + m * n]
    a = _matrix(arguments[0], (m, k), callee.left)
    b = _matrix(arguments[1], (k, n), callee.right)
    numbers = call + 1 + np.arange(m * n)  # results follow their call
    if np.array_equal(nodes, numbers):
        return FactoredProduct(a, b, at)
    turned = np.array_equal(nodes, numbers.reshape(m, n).T.ravel())
    return FactoredProduct(b.T, a.T, at) if turned else None


def _matrix(entries: tuple[int, ...], shape: tuple[int, int], layout: MatrixLayout) -> np.ndarray:
    nodes = np.array(entries, np.int32)
    by_rows = layout == MatrixLayout(shape[1], 1)
    return nodes.reshape(shape) if by_rows else nodes.reshape(shape[::-1]).T


def combined(graph: Graph, operation: str, arguments: list[np.ndarray]) -> np.ndarray | None:
    """One of `SUMS` of arrays whose parts are products, as such an array.

    `None` where no part of all arguments is a product.
    """
    if arguments[0].size < OUTER or arguments[0].shape != arguments[-1].shape:
        return None
    products = [{x.rank._replace(terms=0): x for x in factors(graph, one)} for one in arguments]
    common = [key for key in products[0] if all(key in x for x in products)]
    if not common:
        return None
    flat = [x.ravel() for x in arguments]
    result = np.full(flat[0].size, -1, np.int32)
    for key in common:
        parts = [x[key] for x in products]
        if operation != "add":
            parts[-1] = parts[-1]._replace(left=_negative(graph, parts[-1].left))
        left = np.concatenate([x.left for x in parts], 1)
        right = np.concatenate([x.right for x in parts], 0)
        result[key.start : key.stop] = called(graph, left, right).ravel()
    left = np.flatnonzero(result < 0)
    for part in np.split(left, np.flatnonzero(np.diff(left) != 1) + 1):
        result[part] = _each(graph, operation, [x[part] for x in flat])
    return result.reshape(arguments[0].shape)


def _each(graph: Graph, operation: str, arguments: list[np.ndarray]) -> np.ndarray:
    result = mapped(graph, operation, arguments) if arguments[0].size else None
    if result is not None:
        return result
    flat = [graph.apply(operation, *x) for x in zip(*(y.tolist() for y in arguments), strict=True)]
    return np.array(flat, np.int32)


def _negative(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    flat = [graph.apply("neg", x) for x in nodes.ravel().tolist()]
    return np.array(flat, np.int32).reshape(nodes.shape)


# Programs that give factors instead of products.


class Pieces(NamedTuple):
    """What a program gives of one result: the entries of no product, then pairs of factors.

    Args:
        result: what it was.
        ranks: the products; of each first the left factor, transposed, and then the right one.
    """

    result: jax.ShapeDtypeStruct
    ranks: tuple[Rank, ...]

    @property
    def rest(self) -> list[tuple[int, int]]:
        """Starts and ends of the parts between the products."""
        starts = [0, *(x.stop for x in self.ranks)]
        stops = [*(x.start for x in self.ranks), self.result.size]
        return [(a, b) for a, b in zip(starts, stops, strict=True) if a < b]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of what the program gives."""
        if not self.ranks:
            return [self.result.shape]
        size = sum(b - a for a, b in self.rest)
        pairs = (((x.terms, x.rows), (x.terms, x.columns)) for x in self.ranks)
        return [*([(size,)] if size else []), *(shape for pair in pairs for shape in pair)]


def factored(program: Any) -> tuple[Any, tuple[Pieces, ...]]:
    """Give the factors of the parts of results that are products, instead of the products.

    They are multiplied where sums over several calls go through the memory of the product once.
    Returned are a program that gives the pieces of each result, and what these are.
    """
    graph, at = program.graph, 0
    outputs: list[np.ndarray] = []
    pieces = []
    for shape in program.results:
        nodes = program.outputs[at : at + shape.size]
        at += nodes.size
        pairs = [
            x
            for x in factors(graph, nodes)
            if x.left.size + x.right.size < 2 * x.rank.rows * x.rank.columns
        ]
        pieces.append(Pieces(shape, tuple(x.rank for x in pairs)))
        rest = [nodes[a:b] for a, b in pieces[-1].rest]
        outputs += [nodes] if not pairs else [np.concatenate(rest)] if rest else []
        outputs += [y.ravel() for x in pairs for y in (x.left.T, x.right)]
    results = [jax.ShapeDtypeStruct(x, y.result.dtype) for y in pieces for x in y.shapes]
    flat = np.concatenate(outputs) if outputs else program.outputs
    return program._replace(outputs=flat, results=tuple(results)), tuple(pieces)


def assembled(result: list, pieces: tuple[Pieces, ...]) -> list[jax.Array]:
    """Results from what a `factored` program gives."""
    arguments = iter(result)
    return [_assembled(arguments, x) for x in pieces]


def _assembled(arguments, pieces: Pieces) -> jax.Array:
    if not pieces.ranks:
        return next(arguments)
    sizes = [b - a for a, b in pieces.rest]
    rest = jnp.split(next(arguments), np.cumsum(sizes)[:-1]) if sizes else []
    parts = {start: part for (start, _), part in zip(pieces.rest, rest, strict=True)}
    for one in pieces.ranks:
        parts[one.start] = (next(arguments).T @ next(arguments)).ravel()
    flat = jnp.concatenate([parts[start] for start in sorted(parts)])
    return flat.reshape(pieces.result.shape)
