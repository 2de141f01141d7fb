"""Arrays while a program is traced to scalars: known numbers, or numbers of graph nodes."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.primitives.parameters import Refusal

# Integers are held as floating-point ones, which single precision does exactly up to here.
_EXACT = 2**24


COMPLEX = "complex numbers depend on the inputs or stand beside what does"


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


class NotByRowsError(Exception):
    """Something else is done to an array than reading and replacing its rows.

    Args:
        number: of the array; `None` for one of zeros.
    """

    def __init__(self, number: int | None):
        super().__init__(number)
        self.number = number


class RowwiseArray:
    """An array in memory that a turn of a loop reads and replaces by rows.

    Args:
        number: of the array; `None` for one of zeros.
        shape: of the array.
        axis: along which its rows are numbered.
        read: nodes of a row as it was before the turn, from its number in each turn.
        rows: rows that differ from those, with their numbers in each turn.
    """

    def __init__(
        self,
        number: int | None,
        shape: tuple[int, ...],
        axis: int,
        read: Callable[[np.ndarray], np.ndarray],
        rows: tuple[tuple[np.ndarray, np.ndarray], ...] = (),
    ):
        self.number, self.shape, self.axis = number, shape, axis
        self._read, self.rows = read, rows

    def row(self, place: np.ndarray) -> np.ndarray:
        """Nodes of a row, from its number in each turn."""
        for other, nodes in self.rows:
            if self._is_same(other, place):
                return nodes
        return self._read(place)

    def having(self, place: np.ndarray, row: np.ndarray) -> "RowwiseArray":
        """The same with another row."""
        rows = tuple(x for x in self.rows if not self._is_same(x[0], place))
        return RowwiseArray(self.number, self.shape, self.axis, self._read, (*rows, (place, row)))

    def _is_same(self, one: np.ndarray, other: np.ndarray) -> bool:
        """Whether two rows are one in all turns; rows that are one in some are too many cases."""
        same = one == other
        if same.any() and not same.all():
            raise self.misused()
        return bool(same.all())

    def misused(self) -> NotByRowsError:
        """What is raised where anything else is done to it."""
        return NotByRowsError(self.number)

    def __array__(self, *args, **how):
        raise self.misused()

    def __getitem__(self, index):
        raise self.misused()


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
    value = np.asarray(value)  # of rows in memory an error
    if value.dtype.kind == "c":
        raise Refusal(COMPLEX)
    nodes = np.array(_of_each(graph.constant, value.ravel()), np.int32).reshape(value.shape)
    if np.issubdtype(value.dtype, np.integer):
        ends = (value.min(), value.max()) if value.size else (0, 0)
        return Symbols(nodes, bounds=exact_range(*ends))
    return Symbols(nodes, value.dtype == np.bool_)


# Of so many entries most are zeros by structure, or the same ones again.
_MANY = 1024


def _of_each(constant: Callable, values: np.ndarray):
    """Nodes of known numbers, of many equal ones together."""
    if values.size < _MANY:
        return [constant(x) for x in values.tolist()]
    # By their bits, which tell zeros of both signs apart.
    bits = values if values.dtype.itemsize > 8 else values.view(f"u{values.dtype.itemsize}")
    _, first, where = np.unique(bits, return_index=True, return_inverse=True)
    return _in_order(first, where, lambda places: [constant(x) for x in values[places].tolist()])


def _of_entries(apply: Callable, arrays: list[np.ndarray]) -> np.ndarray:
    """An operation on corresponding nodes, on many equal ones together."""
    if arrays[0].size < _MANY:
        entries = zip(*(x.tolist() for x in arrays), strict=True)
        return np.array([apply(*x) for x in entries], np.int32)
    key = arrays[0].astype(np.int64)
    for i, x in enumerate(arrays[1:]):
        if i:  # so that two numbers have room in one
            key = np.unique(key, return_inverse=True)[1].ravel()
        key = (key << 32) + x
    _, first, where = np.unique(key, return_index=True, return_inverse=True)

    def some(places):
        return [apply(*x) for x in zip(*(x[places].tolist() for x in arrays), strict=True)]

    return np.asarray(_in_order(first, where, some), np.int32)


def _in_order(first: np.ndarray, where: np.ndarray, make: Callable) -> np.ndarray:
    """What is made of equal entries, in the order of the first ones, for all of them."""
    order = np.argsort(first)
    made = np.empty(first.size, np.int64)
    made[order] = make(first[order])
    return made[where.ravel()]


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
    results = _of_entries(partial(graph.apply, operation), [x.ravel() for x in nodes])
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
