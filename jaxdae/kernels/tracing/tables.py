"""Arrays that turns of a loop hand on, and of which each turn reads and replaces few rows.

Such an array stays in memory where it is: which rows a turn reads and replaces is known when the
loop is traced, as in the recursions over a tree, where each turn has a link and its parent.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax.extend.core as jex
import numpy as np

from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import as_symbols, NotByRowsError, Symbols, Table
from jaxdae.primitives.parameters import CALLED


def by_rows(graph: Graph, equation, arguments: list) -> list | None:
    """Results of an equation of a turn that reads or replaces rows; `None` for any other.

    Raises:
        NotByRowsError: where something else is done to such an array.
    """
    name = equation.primitive.name
    if name == "dynamic_update_slice" and not isinstance(arguments[0], Symbols):
        return _replaced(graph, *arguments)
    tables = [x for x in arguments if isinstance(x, Table)]
    if not tables:
        return None
    if name == "dynamic_slice" and arguments[0] is tables[0] and len(tables) == 1:
        return [_read(graph, equation.params["slice_sizes"], *arguments)]
    if name in ("add_any", "add"):
        return [_sum(graph, *arguments)]
    raise tables[0].misused()


def _read(graph: Graph, sizes: tuple[int, ...], table: Table, *start) -> Symbols:
    place = _place(graph, table.shape, sizes, start)
    if place is None:
        raise table.misused()
    return Symbols(table.row(place).reshape(sizes))


def _replaced(graph: Graph, operand, update, *start) -> list | None:
    """A row replaced: of an array in memory, or of zeros, which may be added to one later."""
    if isinstance(operand, Table):
        table = operand
    elif isinstance(operand, np.ndarray) and operand.dtype.kind == "f" and not operand.any():
        nothing = lambda _: np.full(operand.shape[1:], graph.constant(0.0), np.int32)  # noqa: E731
        table = Table(None, operand.shape, nothing)
    else:
        return None
    place = _place(graph, table.shape, np.shape(getattr(update, "nodes", update)), start)
    if place is not None and not isinstance(update, Table):
        return [table.having(place, as_symbols(graph, update).nodes[0])]
    if isinstance(operand, Table):
        raise operand.misused()
    return None


def _sum(graph: Graph, x: Any, y: Any) -> Table:
    """Rows of an array of zeros added to those of another one."""
    if not isinstance(x, Table) or (x.number is None and isinstance(y, Table)):
        x, y = y, x
    if isinstance(y, Table) and y.number is None:
        for place, row in y.rows:
            old = x.row(place)
            pairs = zip(old.ravel().tolist(), row.ravel().tolist(), strict=True)
            nodes = [graph.apply("add", a, b) for a, b in pairs]
            x = x.having(place, np.array(nodes, np.int32).reshape(old.shape))
        return x
    if isinstance(y, np.ndarray) and not y.any():
        return x
    raise x.misused()


def _place(graph: Graph, shape, sizes, start) -> np.ndarray | None:
    """The row that each turn names; `None` for other windows, and for others than known ones."""
    if sizes[0] != 1 or tuple(sizes[1:]) != tuple(shape[1:]):
        return None
    if any(isinstance(x, Symbols) and graph.value(int(x.nodes)) is None for x in start[1:]):
        return None
    place = _in_each_turn(graph, start[0])
    inside = place is not None and place.min() >= 0 and place.max() < shape[0]
    return place if inside else None


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


def candidates(jaxpr, constants: int, handed: int) -> list[int]:
    """Numbers of arrays that are handed on and of which a turn seems to want single rows."""
    shapes = set(_windowed(jaxpr))
    found = {
        x for equation in jaxpr.eqns if equation.primitive.name in _OF_ROWS
        for x in equation.invars if not isinstance(x, jex.Literal)
    }  # fmt: skip
    variables = enumerate(jaxpr.invars[constants : constants + handed])
    return [j for j, x in variables if x in found and x.aval.shape in shapes]


# Equations that arrays may be given to which are read and replaced by rows.
_OF_ROWS = {"dynamic_slice", "dynamic_update_slice", "add_any", *CALLED}


def _windowed(jaxpr) -> Iterator[tuple[int, ...]]:
    """Shapes of arrays of which rows are read or replaced, also in calls."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("dynamic_slice", "dynamic_update_slice"):
            shape = equation.invars[0].aval.shape
            row = equation.params.get("slice_sizes") or equation.invars[1].aval.shape
            if row == (1, *shape[1:]) and shape[0] > 1:
                yield shape
        elif name in CALLED:
            for inner in jex.jaxprs_in_params(equation.params):
                yield from _windowed(inner)


def without_misused(candidates: list[int], make: Callable[[list[int]], Any]) -> Any:
    """What is made with those arrays by rows of which nothing else is wanted."""
    while True:
        try:
            return make(candidates)
        except NotByRowsError as other:
            if not candidates:
                raise
            candidates = (
                [] if other.number is None else [x for x in candidates if x != other.number]
            )
