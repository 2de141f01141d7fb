"""Products of dense matrices that stay loops: a call on arrays in memory, not one scalar each."""

from typing import NamedTuple, TYPE_CHECKING

import jax
import numpy as np

from jaxdae.kernels.graph import CONSTANT, Graph, INPUT, RESULT

if TYPE_CHECKING:
    from jaxdae.kernels.trace import ScalarProgram

# Products of fewer numbers are written out: what is known of their entries is used there.
_FEWEST = 400
# Entries of a matrix in memory, or of a product, from which on a loop is worth its call.
LARGE = 256
# Entries of a product from which on it is a call, however short its sums are: those of two vectors
# are added up over the stages of a step.
_OUTER = 96


class Layout(NamedTuple):
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

    def __init__(self, shape: tuple[int, int, int], left: Layout, right: Layout):
        self.shape, self.left, self.right = shape, left, right
        self.name = "product_" + "_".join(map(str, (*shape, *left, *right)))
        self.results = [jax.ShapeDtypeStruct((shape[0], shape[2]), np.float64)]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Product) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def product(graph: Graph, a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """Nodes of a matrix product as one call, where that is worth it.

    Args:
        graph: where the call is added.
        a: nodes, shape (m, k).
        b: nodes, shape (k, n).

    Returns:
        Nodes, shape (m, n); `None` for small and for sparse matrices, whose products are better
        written out, and for matrices that would have to be stored for the call first.
    """
    (m, k), n = a.shape, b.shape[1]
    if not (m and k and n) or not (_is_dense(graph, a) and _is_dense(graph, b)):
        return None
    # A matrix that is computed is written out with what is known of it; vectors are stored.
    small, large = sorted((a, b), key=lambda x: x.size)
    lies = [min(x.shape) == 1 or _in_memory(graph, x) is not None for x in (small, large)]
    work = m * k * n
    long = large.size >= LARGE and work >= max(_FEWEST, 0 if lies[0] else 4 * small.size)
    worth = (long and lies[1]) or (all(lies) and m * n >= _OUTER)
    return _called(graph, a, b) if worth else None


def _called(graph: Graph, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    (left, first), (right, second) = _arranged(graph, a), _arranged(graph, b)
    shape = (a.shape[0], a.shape[1], b.shape[1])
    found = graph.call(Product(shape, left, right), (first, second), shape[0] * shape[2])
    return np.array(found, np.int32).reshape(shape[0], shape[2])


def _is_dense(graph: Graph, nodes: np.ndarray) -> bool:
    """Whether hardly any entry is known to be zero."""
    zero = graph.constant(0.0)
    return 8 * int((nodes == zero).sum()) <= nodes.size


def _arranged(graph: Graph, nodes: np.ndarray) -> tuple[Layout, tuple[int, ...]]:
    """Layout and entries in the order of memory; by rows, where they are not in memory yet."""
    layout = _in_memory(graph, nodes)
    if layout is None:
        # Parts that are in memory are copied as they are.
        down = nodes.shape[0] > 1 and are_consecutive(graph, nodes[:, 0].tolist())
        layout = Layout(1, nodes.shape[0]) if down else Layout(nodes.shape[1], 1)
        by_rows = nodes.T if down else nodes
        return layout, tuple(by_rows.ravel().tolist())
    by_rows = nodes if layout == Layout(nodes.shape[1], 1) else nodes.T
    return layout, tuple(by_rows.ravel().tolist())


def _in_memory(graph: Graph, nodes: np.ndarray) -> Layout | None:
    """Layout of a matrix that is a part of one argument, of one result, or constant."""
    rows, columns = nodes.shape
    for own, layout in ((nodes, Layout(columns, 1)), (nodes.T, Layout(1, rows))):
        if are_consecutive(graph, own.ravel().tolist()):
            return layout
    return None


def are_consecutive(graph: Graph, nodes) -> bool:
    """Whether nodes are constants, arguments one after the other, or results of one call."""
    operation, own = graph.nodes[nodes[0]]
    if operation == CONSTANT:
        return all(graph.nodes[x].operation == CONSTANT for x in nodes)
    if operation not in (INPUT, RESULT):
        return False
    *source, start = own
    return all(graph.nodes[x] == (operation, (*source, start + i)) for i, x in enumerate(nodes))


# Sums of products, which are products of longer matrices.


class Factors(NamedTuple):
    """Matrices of nodes `A`, shape (m, k), and `B`, shape (k, n), of a product `A B`."""

    left: np.ndarray
    right: np.ndarray


def factors(graph: Graph, nodes: np.ndarray) -> Factors | None:
    """What a matrix is the product of, if it is the result of one call; or its transpose is."""
    if nodes.ndim != 2 or nodes.size < _OUTER:
        return None
    operation, own = graph.nodes[int(nodes[0, 0])]
    if operation != RESULT or own[1] != 0:
        return None
    callee, arguments = graph.nodes[own[0]].arguments
    if not isinstance(callee, Product):
        return None
    m, k, n = callee.shape
    a = _matrix(arguments[0], (m, k), callee.left)
    b = _matrix(arguments[1], (k, n), callee.right)
    numbers = own[0] + 1 + np.arange(m * n).reshape(m, n)  # results follow their call
    if np.array_equal(nodes, numbers):
        return Factors(a, b)
    return Factors(b.T, a.T) if np.array_equal(nodes, numbers.T) else None


def _matrix(entries: tuple[int, ...], shape: tuple[int, int], layout: Layout) -> np.ndarray:
    nodes = np.array(entries, np.int32)
    by_rows = layout == Layout(shape[1], 1)
    return nodes.reshape(shape) if by_rows else nodes.reshape(shape[::-1]).T


SUMS = ("add", "sub", "neg")


def combined(graph: Graph, operation: str, given: list[np.ndarray]) -> np.ndarray | None:
    """A sum, a difference or the opposite of products, as one product; `None` for anything else.

    `A B + C D = [A C] [B; D]`: a sum over many pairs of vectors, such as the derivatives by the
    weights of a network in all stages of a step, goes through the memory of the matrix once.

    Args:
        graph: where the call is added.
        operation: one of `SUMS`.
        given: nodes of its arguments.

    Returns:
        Nodes of the result.
    """
    found = [factors(graph, x) for x in given]
    parts = [x for x in found if x is not None]
    if len(parts) < len(given) or given[0].shape != given[-1].shape:
        return None
    if operation != "add":
        last = parts[-1]
        parts[-1] = last._replace(left=_negative(graph, last.left))
    left, right = (
        np.concatenate(x, axis) for x, axis in zip(zip(*parts, strict=True), (1, 0), strict=True)
    )
    return _called(graph, left, right)


def _negative(graph: Graph, nodes: np.ndarray) -> np.ndarray:
    flat = [graph.apply("neg", x) for x in nodes.ravel().tolist()]
    return np.array(flat, np.int32).reshape(nodes.shape)


def factored(program: "ScalarProgram") -> tuple["ScalarProgram", tuple[bool, ...]]:
    """Give the factors of results that are products, instead of the products.

    They are multiplied where sums over several calls go through the memory of the product once.

    Args:
        program: what is computed.

    Returns:
        A program that gives both factors of such a result, the first one transposed; and for each
        result whether it does.
    """
    graph, at = program.graph, 0
    outputs, results, flags = [], [], []
    for shape in program.results:
        nodes = program.outputs[at : at + int(np.prod(shape.shape))].reshape(shape.shape)
        at += nodes.size
        found = factors(graph, nodes)
        own = [nodes] if found is None else [found.left.T, found.right]
        flags.append(found is not None and sum(x.size for x in own) < 2 * nodes.size)
        for x in own if flags[-1] else [nodes]:
            outputs.append(x.ravel())
            results.append(jax.ShapeDtypeStruct(x.shape, shape.dtype))
    found = program._replace(outputs=np.concatenate(outputs), results=tuple(results))
    return found, tuple(flags)


def products(found: list, flags: tuple[bool, ...]) -> list[jax.Array]:
    """Results from what a `factored` program gives."""
    parts = iter(found)
    return [next(parts).T @ next(parts) if x else next(parts) for x in flags]
