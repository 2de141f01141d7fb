"""Calls on arrays in memory: dense products and factors, operations on many numbers, rows."""

from typing import NamedTuple

import jax
import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.graph.operations import STRAIGHT_LINES

# Products of fewer numbers are written out: what is known of their entries is used there.
_FEWEST = 400
# Entries of a matrix in memory, or of a product, from which on a loop is worth its call.
LARGE = 256
# Entries of a product from which on it is a call, however short its sums are: those of two vectors
# are added up over the stages of a step.
OUTER = 96
# Entries of a matrix in memory from which on a row times it is a call in steps of implicit methods:
# columns of factors are gone through a register at a time.
_FACTORS = 49


class MatrixLayout(NamedTuple):
    """Where the entries of a matrix lie in memory: number `row i + column j`.

    Args:
        row: distance of two rows.
        column: distance of two columns.
    """

    row: int
    column: int


class Product:
    """`C = A B`, called with the entries of both in the order of memory; `C` is stored by rows.

    Args:
        shape: rows of `A`, columns of `A`, columns of `B`.
        left: layout of `A`.
        right: layout of `B`.
    """

    def __init__(self, shape: tuple[int, int, int], left: MatrixLayout, right: MatrixLayout):
        self.shape, self.left, self.right = shape, left, right
        self.name = "product_" + "_".join(map(str, (*shape, *left, *right)))
        self.results = [jax.ShapeDtypeStruct((shape[0], shape[2]), np.float64)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Product) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def product(graph: Graph, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Nodes of a matrix product as one call, where that is worth it.

    `None` for small and for sparse matrices, whose products are better written out, and for
    matrices that would have to be stored for the call first.
    """
    (m, k), n = a.shape, b.shape[1]
    if not (m and k and n) or not (_is_dense(graph, a) and _is_dense(graph, b)):
        return None
    # A matrix that is computed is written out with what is known of it; vectors are stored.
    small, large = sorted((a, b), key=lambda x: x.size)
    lies = [min(x.shape) == 1 or _in_memory(graph, x) is not None for x in (small, large)]
    work = m * k * n
    long = large.size >= LARGE and work >= max(_FEWEST, 0 if lies[0] else 4 * small.size)
    worth = (long and lies[1]) or (all(lies) and m * n >= OUTER)
    of_row = graph.open_ended and m == 1 and b.size >= _FACTORS and _lies_by_rows(graph, b)
    return called(graph, a, b) if worth or of_row else None


def _lies_by_rows(graph: Graph, nodes: np.ndarray) -> bool:
    """Whether a matrix is in memory row by row, and no constant."""
    flat = nodes.ravel().tolist()
    return graph.nodes[flat[0]].operation != CONSTANT and are_consecutive(graph, flat)


def called(graph: Graph, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Nodes of a matrix product as one call."""
    (left, first), (right, second) = _arranged(graph, a), _arranged(graph, b)
    shape = (a.shape[0], a.shape[1], b.shape[1])
    return graph.call(Product(shape, left, right), (first, second))[0]


def _is_dense(graph: Graph, nodes: np.ndarray) -> bool:
    """Whether hardly any entry is known to be zero."""
    zero = graph.constant(0.0)
    return 8 * int((nodes == zero).sum()) <= nodes.size


def _arranged(graph: Graph, nodes: np.ndarray) -> tuple[MatrixLayout, tuple[int, ...]]:
    """Layout and entries in the order of memory; by rows, where they are not in memory yet."""
    layout = _in_memory(graph, nodes)
    if layout is None:
        # Parts that are in memory are copied as they are.
        down = nodes.shape[0] > 1 and are_consecutive(graph, nodes[:, 0].tolist())
        layout = MatrixLayout(1, nodes.shape[0]) if down else MatrixLayout(nodes.shape[1], 1)
        by_rows = nodes.T if down else nodes
        return layout, tuple(by_rows.ravel().tolist())
    by_rows = nodes if layout == MatrixLayout(nodes.shape[1], 1) else nodes.T
    return layout, tuple(by_rows.ravel().tolist())


def _in_memory(graph: Graph, nodes: np.ndarray) -> MatrixLayout | None:
    """Layout of a matrix that is a part of one argument, of one result, or constant."""
    rows, columns = nodes.shape
    for entries, layout in ((nodes, MatrixLayout(columns, 1)), (nodes.T, MatrixLayout(1, rows))):
        if are_consecutive(graph, entries.ravel().tolist()):
            return layout
    return None


def are_consecutive(graph: Graph, nodes) -> bool:
    """Whether nodes are constants, arguments one after the other, or results of one call."""
    operation, arguments = graph.nodes[nodes[0]]
    if operation == CONSTANT:
        return all(graph.nodes[x].operation == CONSTANT for x in nodes)
    if operation not in (INPUT, RESULT):
        return False
    *source, start = arguments
    first, last = int(nodes[0]), int(nodes[-1])
    by_number = operation == RESULT or last < graph.numbered
    if by_number and last - first == len(nodes) - 1:
        # Results follow their call, and the first inputs are nodes of their numbers.
        follows = graph.nodes[last] == (operation, (*source, start + len(nodes) - 1))
        return follows and np.array_equal(nodes, np.arange(first, last + 1))
    return all(graph.nodes[x] == (operation, (*source, start + i)) for i, x in enumerate(nodes))


class Factorization(NamedTuple):
    """Transposed factors `F^T` and `G^T` with `A^-1 = G F`, by LU decomposition with pivots.

    Called with the entries of `A` by rows. A complex matrix `A + i B` is given as two, and stands
    for `[[A, -B], [B, A]]`, of which the factors are.

    Args:
        size: rows of the matrix.
        parts: 1 for real matrices, 2 for complex ones.
    """

    size: int
    parts: int

    @property
    def name(self) -> str:
        """Of its function."""
        return f"factors_{self.size}_{self.parts}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return [jax.ShapeDtypeStruct((self.parts * self.size,) * 2, np.float64)] * 2


# Rows of tables, such as inputs on a grid of times.


class Row(NamedTuple):
    """One row of a table, by its number.

    Called with all entries by rows, and the number, which is one of a row.

    Args:
        rows: of the table.
        size: entries of a row.
    """

    rows: int
    size: int

    @property
    def name(self) -> str:
        """Of its function, but for which of its arguments all lanes share."""
        return f"row_{self.rows}_{self.size}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return [jax.ShapeDtypeStruct((self.size,), np.float64)]


class OntoRow(NamedTuple):
    """A table of zeros but for one row: the transpose of `Row`.

    Called with the entries of that row, and its number.

    Args:
        rows: of the table.
        size: entries of a row.
    """

    rows: int
    size: int

    @property
    def name(self) -> str:
        """Of its function."""
        return f"onto_row_{self.rows}_{self.size}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return [jax.ShapeDtypeStruct((self.rows, self.size), np.float64)]


# Operations on each of many numbers, such as those of a layer of a network.

# Fewer numbers are written out: what is known of them is used there.
_FEWEST_MAPPED = 32
ARITHMETIC = ("add", "sub", "mul", "div", "neg", "max", "min", "sqrt", "abs")


class Map(NamedTuple):
    """An operation on each of some numbers.

    Args:
        operation: its name.
        size: how many numbers.
        single: for each argument, whether it is one number for all.
    """

    operation: str
    size: int
    single: tuple[bool, ...]

    @property
    def name(self) -> str:
        """In words that are the same in every process."""
        return f"map_{self.operation}_{self.size}_{self.single}"

    @property
    def results(self) -> list[jax.ShapeDtypeStruct]:
        """Shapes of what a call gives."""
        return [jax.ShapeDtypeStruct((self.size,), np.float64)]

    def kinds(self, shared: tuple[bool, ...]) -> tuple[str, ...]:
        """Of each argument: numbers of every lane, those that all lanes share, or one number."""
        pairs = zip(self.single, shared, strict=True)
        return tuple("one" if one else "shared" if same else "every" for one, same in pairs)


def mapped(graph: Graph, operation: str, nodes: list[np.ndarray]) -> np.ndarray | None:
    """Nodes of an operation on the entries of arrays of one shape as one call, if that is worth it.

    `None` for few numbers, for other operations, and for arithmetic of what no call gives, of which
    something may be known.
    """
    if nodes[0].size < _FEWEST_MAPPED or operation not in (*ARITHMETIC, *STRAIGHT_LINES):
        return None
    if operation in ARITHMETIC and not graph.call_nodes:
        return None
    flat = [x.ravel().tolist() for x in nodes]
    single = tuple(all(y == x[0] for y in x) for x in flat)
    arrays = [x for x, one in zip(flat, single, strict=True) if not one]
    if not arrays or (operation in ARITHMETIC and not _are_results(graph, arrays)):
        return None
    if any(one and _is_zero(graph, x[0]) for x, one in zip(flat, single, strict=True)):
        return None
    arguments = tuple(tuple(x[:1] if one else x) for x, one in zip(flat, single, strict=True))
    (result,) = graph.call(Map(operation, len(flat[0]), single), arguments)
    return result.reshape(nodes[0].shape)


def _are_results(graph: Graph, arrays: list[list[int]]) -> bool:
    """Whether arrays lie in memory, one of them as what a call gives."""
    called = any(graph.nodes[x[0]].operation == RESULT for x in arrays)
    return called and all(are_consecutive(graph, x) for x in arrays)


def _is_zero(graph: Graph, node: int) -> bool:
    value = graph.value(node)
    return value is not None and value == 0
