"""Parts of arrays that are products of dense matrices, such as derivatives by a network's weights.

Sums of such products are products of longer matrices: `A B + C D = [A C] [B; D]`. A sum over many
pairs of vectors, those of all stages of a step, goes through the memory of the matrix once. Other
parts are tables of zeros but for one row, such as derivatives by a table that is read.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.array_calls import (
    are_consecutive,
    called,
    mapped,
    MatrixLayout,
    OntoRow,
    OUTER,
    Product,
)
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


class OneRow(NamedTuple):
    """A part of an array that is a table of zeros but for one row.

    Args:
        start: number of its first entry in the array, where the others follow by rows.
        rows: of the table.
        size: entries of a row.
    """

    start: int
    rows: int
    size: int

    @property
    def stop(self) -> int:
        """Number of the first entry behind the table."""
        return self.start + self.rows * self.size


class Zeros(NamedTuple):
    """A part of an array that is zero.

    Args:
        start: number of its first entry in the array.
        stop: number of the first entry behind it.
    """

    start: int
    stop: int


Part = Rank | OneRow | Zeros


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
    result, end, flat = [], 0, nodes.ravel()
    if not graph.call_nodes:
        return result
    # The first result follows its call.
    first = np.flatnonzero(np.isin(flat, np.array(graph.call_nodes) + 1))
    for at in first.tolist():
        if end <= at <= flat.size - OUTER:
            product = _factors_at(graph, flat, at)
            if product is not None:
                result.append(product)
                end = product.rank.stop
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


def chosen(graph: Graph, condition: int, yes: np.ndarray, no: np.ndarray) -> np.ndarray | None:
    """An array whose parts are products, or tables of one row, where a condition holds, else zero.

    Or the other way round. `None` where neither array is zero, or the other has no such parts.
    """
    if yes.size < OUTER or yes.shape != no.shape:
        return None
    zero = graph.constant(0.0)
    empty = [not (x != zero).any() for x in (yes, no)]
    if empty[0] == empty[1]:
        return None
    given = no if empty[0] else yes

    def choice(nodes: np.ndarray) -> np.ndarray:
        pairs = ((zero, x) if empty[0] else (x, zero) for x in nodes.ravel().tolist())
        flat = [graph.apply("select", condition, *pair) for pair in pairs]
        return np.array(flat, np.int32).reshape(nodes.shape)

    parts, flat = _parts(graph, given), given.ravel()
    if not parts:
        return None
    result, left = np.full(flat.size, -1, np.int32), np.ones(flat.size, bool)
    for part, (first, second) in parts:
        if isinstance(part, Rank):
            # Both, as what is not finite is none of the other side.
            product = called(graph, choice(first).T, choice(second))
            result[part.start : part.stop] = product.ravel()
        elif isinstance(part, OneRow):
            row = tuple(choice(first).tolist()), tuple(second.tolist())
            result[part.start : part.stop] = graph.call(OntoRow(part.rows, part.size), row)[
                0
            ].ravel()
        left[part.start : part.stop] = False
    result[left] = choice(flat[left])
    return result.reshape(given.shape)


def _each(graph: Graph, operation: str, arguments: list[np.ndarray]) -> np.ndarray:
    result = mapped(graph, operation, arguments) if arguments[0].size else None
    if result is not None:
        return result
    flat = [graph.apply(operation, *x) for x in zip(*(y.tolist() for y in arguments), strict=True)]
    return np.array(flat, np.int32)


def _negative(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    flat = [graph.apply("neg", x) for x in nodes.ravel().tolist()]
    return np.array(flat, np.int32).reshape(nodes.shape)


# Programs that give factors instead of products, and rows instead of tables.


class Pieces(NamedTuple):
    """What a program gives of one result: the entries of no other part, then those of each part.

    Args:
        result: what it was.
        parts: the products, of each first the left factor, transposed, and then the right one; the
            tables of one row, of each the row and its number; zeros, of which nothing is given.
    """

    result: jax.ShapeDtypeStruct
    parts: tuple[Part, ...]

    @property
    def rest(self) -> list[tuple[int, int]]:
        """Starts and ends of what is between the parts."""
        starts = [0, *(x.stop for x in self.parts)]
        stops = [*(x.start for x in self.parts), self.result.size]
        return [(a, b) for a, b in zip(starts, stops, strict=True) if a < b]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of what the program gives."""
        if not self.parts:
            return [self.result.shape]
        size = sum(b - a for a, b in self.rest)
        given = (shape for x in self.parts for shape in _shapes(x))
        return [*([(size,)] if size else []), *given]


def _shapes(part: Part) -> list[tuple[int, ...]]:
    """Shapes of what is given of a part."""
    if isinstance(part, Rank):
        return [(part.terms, part.rows), (part.terms, part.columns)]
    return [(part.size,), (1,)] if isinstance(part, OneRow) else []


def factored(program: Any, first: int = 0) -> tuple[Any, tuple[Pieces, ...]]:
    """Give the factors of the parts of results that are products, instead of the products.

    They are multiplied where sums over several calls go through the memory of the product once. Of
    tables with one row, give that. Results before the one with the number `first` stay.
    Returned are a program that gives the pieces of each result, and what these are.
    """
    graph, at = program.graph, 0
    outputs: list[np.ndarray] = []
    pieces = []
    for i, shape in enumerate(program.results):
        nodes = program.outputs[at : at + shape.size]
        at += nodes.size
        empty = nodes.size >= OUTER and not (nodes != graph.constant(0.0)).any()
        found = [(Zeros(0, nodes.size), ())] if empty else _parts(graph, nodes)
        parts = found if i >= first else []
        pieces.append(Pieces(shape, tuple(part for part, _ in parts)))
        rest = [nodes[a:b] for a, b in pieces[-1].rest]
        outputs += [nodes] if not parts else [np.concatenate(rest)] if rest else []
        outputs += [np.ravel(y) for _, given in parts for y in given]
    results = [jax.ShapeDtypeStruct(x, y.result.dtype) for y in pieces for x in y.shapes]
    flat = np.concatenate(outputs) if outputs else program.outputs
    return program._replace(outputs=flat, results=tuple(results)), tuple(pieces)


def _parts(graph: Graph, nodes: np.ndarray) -> list[tuple[Part, tuple]]:
    """Parts of an array that are given as pairs, in their order, with these."""
    found: list[tuple[Part, tuple]] = [
        (x.rank, (x.left.T, x.right))
        for x in factors(graph, nodes)
        if x.left.size + x.right.size < 2 * x.rank.rows * x.rank.columns
    ]
    return sorted([*found, *_tables(graph, nodes)], key=lambda x: x[0].start)


def _tables(graph: Graph, nodes: np.ndarray) -> list[tuple[Part, tuple]]:
    """Parts of an array that are tables of one row, with that row and its number."""
    found, flat = [], nodes.ravel()
    for at in range(flat.size):
        operation, (call, *number) = graph.nodes[int(flat[at])]
        if operation != RESULT or number != [0]:
            continue
        callee, pair = graph.nodes[call].arguments
        if not isinstance(callee, OntoRow):
            continue
        part = OneRow(at, callee.rows, callee.size)
        if part.stop <= flat.size and are_consecutive(graph, flat[at : part.stop].tolist()):
            found.append((part, tuple(np.array(x, np.int32) for x in pair)))
    return found


def assembled(result: list, pieces: tuple[Pieces, ...]) -> list[jax.Array]:
    """Results from what a `factored` program gives."""
    arguments = iter(result)
    return [_assembled(arguments, x) for x in pieces]


def _assembled(arguments, pieces: Pieces) -> jax.Array:
    if not pieces.parts:
        return next(arguments)
    sizes = [b - a for a, b in pieces.rest]
    rest = jnp.split(next(arguments), np.cumsum(sizes)[:-1]) if sizes else []
    parts = {start: part for (start, _), part in zip(pieces.rest, rest, strict=True)}
    for one in pieces.parts:
        if isinstance(one, Zeros):
            parts[one.start] = jnp.zeros(one.stop - one.start, pieces.result.dtype)
            continue
        first, second = next(arguments), next(arguments)
        if isinstance(one, Rank):
            parts[one.start] = (first.T @ second).ravel()
        else:
            table = jnp.zeros((one.rows, one.size), first.dtype)
            number = jnp.clip(second[0], 0, one.rows - 1).astype(int)
            table = table.at[number].set(first, mode="promise_in_bounds")
            parts[one.start] = table.ravel()
    flat = jnp.concatenate([parts[start] for start in sorted(parts)])
    return flat.reshape(pieces.result.shape)
