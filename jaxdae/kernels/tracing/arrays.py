"""Arrays while a program is traced to scalars: known numbers, or numbers of graph nodes."""

from typing import NamedTuple

import numpy as np

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.graph.operations import OPERATIONS

# Integers are held as floating-point ones, which single precision does exactly up to here.
_EXACT = 2**24


COMPLEX = "complex numbers depend on the inputs or stand beside what does"


class Refusal(Exception):  # noqa: N818
    """Why a primitive cannot be made scalar operations."""


class Symbols(NamedTuple):
    """An array of nodes of a graph.

    Args:
        nodes: their numbers, of any shape.
        boolean: whether they are booleans.
        bounds: of integers, the least and the largest that they may be.
    """

    nodes: np.ndarray
    boolean: bool = False
    bounds: tuple[int, int] | None = None

    def like(self, nodes: np.ndarray) -> "Symbols":
        """Other nodes of the same kind."""
        return self._replace(nodes=nodes)


class Refused(NamedTuple):
    """Stands for what a refused primitive would have given: an error only if it is needed.

    Args:
        primitive: its name.
        reason: why it is refused.
        place: where it was called, if that is known.
    """

    primitive: str
    reason: str
    place: str | None

    def message(self) -> str:
        """The reason in words."""
        return (
            f"{self.primitive} cannot be made part of a kernel: {self.reason}. It comes from "
            f"{self.place or 'code inside JAX'}. Write it otherwise, or leave it to JAX."
        )


def first_refused(values) -> Refused | None:
    """The first of several values that is none."""
    return next((x for x in values if isinstance(x, Refused)), None)


# Known numbers are plain NumPy arrays.
Value = np.ndarray | Symbols


def as_symbols(graph: Graph, value: Value) -> Symbols:
    """An array as nodes; known numbers become constants."""
    if isinstance(value, Symbols):
        return value
    value = np.asarray(value)
    if value.dtype.kind == "c":
        raise Refusal(COMPLEX)
    constant = graph.constant
    nodes = np.array([constant(x) for x in value.ravel().tolist()], np.int32).reshape(value.shape)
    if np.issubdtype(value.dtype, np.integer):
        ends = (value.min(), value.max()) if value.size else (0, 0)
        return Symbols(nodes, bounds=exact_range(*ends))
    return Symbols(nodes, value.dtype == np.bool_)


def exact_range(low, high) -> tuple[int, int]:
    """A range of integers, if floating-point numbers of single precision hold them."""
    if max(-int(low), int(high)) > _EXACT:
        raise Refusal(f"integers beyond {_EXACT} would stand beside what depends on the inputs")
    return int(low), int(high)


def as_known(graph: Graph, value: Value, dtype) -> Value:
    """Known numbers of a type, where all nodes turned out to be constants."""
    if not isinstance(value, Symbols):
        return value
    result = graph.values(value.nodes.ravel().tolist())
    return value if result is None else np.array(result, dtype).reshape(value.nodes.shape)


def elementwise(
    graph: Graph, operation: str, *values: Value, bounds: tuple[int, int] | None = None
) -> Symbols:
    """An operation on corresponding entries."""
    nodes = [as_symbols(graph, x).nodes for x in values]
    shape = nodes[0].shape
    if any(x.shape != shape for x in nodes):
        nodes = np.broadcast_arrays(*nodes)
        shape = nodes[0].shape
    apply = graph.apply
    entries = zip(*(x.ravel().tolist() for x in nodes), strict=True)
    results = np.array([apply(operation, *x) for x in entries], np.int32)
    return Symbols(results.reshape(shape), OPERATIONS[operation].boolean, bounds)


def reduced(graph: Graph, operation: str, value: Value, axes, boolean: bool = False) -> Symbols:
    """An operation along axes, from the first entry to the last."""
    nodes = as_symbols(graph, value).nodes
    axes = tuple(axes)
    rest = tuple(n for i, n in enumerate(nodes.shape) if i not in axes)
    flat = np.moveaxis(nodes, axes, range(len(axes))).reshape(-1, *rest)
    if not flat.shape[0]:
        empty = {"add": 0.0, "mul": 1.0, "max": -np.inf, "min": np.inf, "and": True, "or": False}
        return Symbols(np.full(rest, graph.constant(empty[operation]), np.int32), boolean)
    total = Symbols(flat[0], boolean)
    if operation == "add" and len(flat) > 1 and graph.exact:
        # Sums of several terms begin with zero.
        total = elementwise(graph, "add", total, np.asarray(0.0))
    for row in flat[1:]:
        total = elementwise(graph, operation, total, Symbols(row, boolean))
    return total


def as_numbers(graph: Graph, value: Value) -> Symbols:
    """Booleans as one and zero, all else as it is."""
    value = as_symbols(graph, value)
    if not value.boolean:
        return value
    return elementwise(graph, "select", value, np.asarray(1.0), np.asarray(0.0), bounds=(0, 1))
