"""Arrays that turns of a loop hand on, and of which each turn reads and replaces few rows.

Such an array stays in memory where it is: which rows a turn reads and replaces is known when the
loop is traced, as in the recursions over a tree, where each turn has a link and its parent. Rows
are along the axis by which a turn names them, the first one or, of a batch, another.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import as_symbols, NotByRowsError, RowwiseArray, Symbols
from jaxdae.primitives.parameters import CALLED

_READING = ("dynamic_slice", "gather")
_REPLACING = ("dynamic_update_slice", "scatter", "scatter-add")


class _Window(NamedTuple):
    """What an equation reads or replaces of an array, if it is a row.

    Args:
        axis: along which it has one entry, and all of the others.
        starts: numbers of the axes that starts are given for, in their order.
        dropped: axes that what is read, or put there, does not have.
    """

    axis: int
    starts: tuple[int, ...]
    dropped: tuple[int, ...] = ()


def _window(equation) -> _Window | None:
    """The row that an equation reads or replaces; `None` for other windows."""
    name, params = equation.primitive.name, equation.params
    shape = tuple(equation.invars[0].aval.shape)
    starts, dropped = tuple(range(len(shape))), ()
    if name == "dynamic_slice":
        sizes = tuple(params["slice_sizes"])
    elif name == "dynamic_update_slice":
        sizes = tuple(equation.invars[1].aval.shape)
    else:
        layout = params["dimension_numbers"]
        reads = name == "gather"
        windows = layout.offset_dims if reads else layout.update_window_dims
        dropped = layout.collapsed_slice_dims if reads else layout.inserted_window_dims
        starts = layout.start_index_map if reads else layout.scatter_dims_to_operand_dims
        starts, dropped = tuple(map(int, starts)), tuple(map(int, dropped))
        values = equation.outvars[0].aval if reads else equation.invars[2].aval
        # One window, whose place is a vector of starts.
        if equation.invars[1].aval.ndim != 1 or len(windows) != values.ndim:
            return None
        kept = iter(values.shape)
        sizes = tuple(1 if i in dropped else next(kept) for i in range(len(shape)))
    single = [i for i, (size, full) in enumerate(zip(sizes, shape, strict=True)) if size != full]
    alone = len(single) == 1 and sizes[single[0]] == 1 and single[0] in starts
    return _Window(single[0], starts, dropped) if alone else None


def by_rows(graph: Graph, equation, arguments: list) -> list | None:
    """Results of an equation of a turn that reads or replaces rows; `None` for any other.

    Raises:
        NotByRowsError: where something else is done to such an array.
    """
    name = equation.primitive.name
    tables = [x for x in arguments if isinstance(x, RowwiseArray)]
    if name in _REPLACING and not isinstance(arguments[0], Symbols):
        replaced = _replaced(graph, equation, arguments)
        if replaced is not None or not tables:
            return replaced
    if not tables:
        return None
    if name in _READING and arguments[0] is tables[0] and len(tables) == 1:
        table = tables[0]
        found = _found(graph, equation, table.shape, arguments[1:])
        if found is not None and found[0].axis == table.axis:
            window, place = found
            row = np.expand_dims(table.row(place), window.axis)
            return [Symbols(np.squeeze(row, window.dropped))]
    if name in ("add_any", "add"):
        return [_sum(graph, *arguments)]
    raise tables[0].misused()


def _replaced(graph: Graph, equation, arguments: list) -> list | None:
    """A row replaced: of an array in memory, or of zeros, which may be added to one later."""
    operand, name = arguments[0], equation.primitive.name
    at, update = (arguments[2:], arguments[1]) if name == "dynamic_update_slice" else arguments[1:]
    found = _found(graph, equation, operand.shape, at if isinstance(at, list) else [at])
    zeros = isinstance(operand, np.ndarray) and operand.dtype.kind == "f" and not operand.any()
    if (
        found is None
        or isinstance(update, RowwiseArray)
        or not (zeros or isinstance(operand, RowwiseArray))
    ):
        return None
    if name == "scatter" and equation.params.get("update_jaxpr") is not None:
        return None
    window, place = found
    if isinstance(operand, RowwiseArray):
        table = operand
    else:
        shape = tuple(np.delete(operand.shape, window.axis))
        zero = np.full(shape, graph.constant(0.0), np.int32)
        table = RowwiseArray(None, operand.shape, window.axis, lambda _: zero)
    if table.axis != window.axis:
        raise table.misused()
    row = as_symbols(graph, update).nodes
    row = np.expand_dims(row, window.dropped) if window.dropped else row
    row = np.squeeze(row, window.axis)
    if name == "scatter-add":
        row = _added(graph, table.row(place), row)
    return [table.having(place, row)]


def _added(graph: Graph, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    pairs = zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
    return np.array([graph.apply("add", a, b) for a, b in pairs], np.int32).reshape(x.shape)


def _sum(graph: Graph, x: Any, y: Any) -> RowwiseArray:
    """Rows of an array of zeros added to those of another one."""
    if not isinstance(x, RowwiseArray) or (x.number is None and isinstance(y, RowwiseArray)):
        x, y = y, x
    if isinstance(y, RowwiseArray) and y.number is None and x.axis == y.axis:
        for place, row in y.rows:
            x = x.having(place, _added(graph, x.row(place), row))
        return x
    if isinstance(y, np.ndarray) and not y.any():
        return x
    raise x.misused()


def _found(graph: Graph, equation, shape, at: list) -> tuple[_Window, np.ndarray] | None:
    """The row that each turn names; `None` for other windows, and for others than known ones."""
    window = _window(equation)
    if window is None:
        return None
    number = window.starts.index(window.axis)
    if equation.primitive.name in ("dynamic_slice", "dynamic_update_slice"):
        start = at[number]
    else:
        indices = at[0]
        start = (
            indices.like(indices.nodes[number]) if isinstance(indices, Symbols)
            else np.asarray(indices)[number]
        )  # fmt: skip
    place = _in_each_turn(graph, start)
    if place is None or place.min() < 0 or place.max() >= shape[window.axis]:
        return None
    return window, place


_OF_PLACES = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def keep_places(graph: Graph, equation, arguments: list, results: list) -> None:
    """Keep what is known in each turn of an integer that is made of such ones."""
    operation = _OF_PLACES.get(equation.primitive.name)
    if operation is None or equation.outvars[0].aval.shape:
        return
    values = [x for x in (_in_each_turn(graph, y) for y in arguments) if x is not None]
    if isinstance(results[0], Symbols) and len(values) == len(arguments):
        graph.places.setdefault(int(results[0].nodes), operation(*values))


def _in_each_turn(graph: Graph, value: Any) -> np.ndarray | None:
    """What an integer is in each turn, where that is known."""
    if isinstance(value, Symbols):
        return graph.places.get(int(value.nodes))
    turns = len(next(iter(graph.places.values())))
    return np.full(turns, value) if value.dtype.kind in "iu" else None


def candidates(jaxpr, constants: int, handed: int) -> dict[int, int]:
    """Arrays that are handed on and of which a turn seems to want single rows.

    Returns:
        By their numbers the axes of these rows.
    """
    axes = dict(_windowed(jaxpr))
    found = {
        x for equation in jaxpr.eqns if equation.primitive.name in _OF_ROWS
        for x in equation.invars if not isinstance(x, jex.Literal)
    }  # fmt: skip
    variables = enumerate(jaxpr.invars[constants : constants + handed])
    return {j: axes[x.aval.shape] for j, x in variables if x in found and x.aval.shape in axes}


# Equations that arrays may be given to which are read and replaced by rows.
_OF_ROWS = {*_READING, *_REPLACING, "add_any", *CALLED}


def _windowed(jaxpr) -> Iterator[tuple[tuple[int, ...], int]]:
    """Shapes of arrays of which rows are read or replaced, also in calls, and along which axis."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in (*_READING, *_REPLACING):
            window = _window(equation)
            if window is not None:
                yield equation.invars[0].aval.shape, window.axis
        elif name in CALLED:
            for inner in jex.jaxprs_in_params(equation.params):
                yield from _windowed(inner)


def without_misused(candidates: dict[int, int], make: Callable[[dict[int, int]], Any]) -> Any:
    """What is made with those arrays by rows of which nothing else is wanted."""
    while True:
        try:
            return make(candidates)
        except NotByRowsError as other:
            # One that is handed on by a loop around this one is not among them.
            if not candidates or other.number not in (None, *candidates):
                raise
            candidates = {
                j: axis for j, axis in candidates.items() if other.number not in (None, j)
            }
