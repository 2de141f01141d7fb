"""Entries that are moved, or chosen: by indices, known or dependent on the inputs, and by size."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from jaxdae.kernels.graph.array_calls import are_consecutive, LARGE, OntoRow, Row
from jaxdae.kernels.graph.expressions import Graph
from jaxdae.kernels.tracing.arrays import as_numbers, as_symbols, elementwise, Symbols, Value
from jaxdae.kernels.tracing.integers import hull, is_chosen
from jaxdae.primitives.entries import clips, MOVEMENTS, start_of_slice, Windows
from jaxdae.primitives.parameters import Refusal

# More entries would take too many comparisons to sort.
_SORTED_LIMIT = 64
_OUTSIDE = "it reads outside of an array of numbers that are not floating-point ones"


def as_one_kind(graph: Graph, values: list[Value]) -> tuple[list[np.ndarray], Symbols]:
    """Nodes of several arrays, and an array without entries that is of their kind."""
    symbols = [as_symbols(graph, x) for x in values]
    kind = Symbols(np.zeros(0, np.int32), any(x.boolean for x in symbols), hull(symbols))
    return [x.nodes for x in symbols], kind


def moving(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """A primitive that moves entries, done to the numbers of the nodes."""
    nodes, kind = as_one_kind(graph, arguments)
    result = MOVEMENTS[equation.primitive.name](*nodes, **equation.params)
    result = result if equation.primitive.multiple_results else [result]
    return [kind.like(x) for x in result]


def dynamic_slice(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """A slice whose start may depend on the inputs."""
    operand, sizes = as_symbols(graph, arguments[0]), equation.params["slice_sizes"]
    nodes = operand.nodes
    starts = [as_symbols(graph, x) for x in arguments[1:]]

    def at(start):
        return nodes[start_of_slice(start, nodes.shape, sizes)]

    limits = [n - size for n, size in zip(nodes.shape, sizes, strict=True)]
    index = _one_index(graph, starts, limits, True)
    if index is not None and not operand.boolean:
        places = np.arange(nodes.size).reshape(nodes.shape)
        cells = index.cells(lambda x: places[start_of_slice(x, nodes.shape, sizes)])
        found = _row(graph, nodes.ravel(), index, cells)
        if found is not None:
            return [operand.like(found.reshape(sizes))]
    return [operand.like(_picked(graph, starts, limits, at, None))]


# Rows of large tables, by one index: calls in place of comparisons with all that it may be.


class _Index(NamedTuple):
    """The one component of a start that is not known.

    Args:
        node: of it, inside of the limits.
        cases: what it may be.
        start: all components of the start from it.
    """

    node: int
    cases: range
    start: Callable[[int], tuple[int, ...]]

    def cells(self, places: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
        """Places of a window for each case, one row each."""
        return np.stack([places(self.start(i)).ravel() for i in self.cases])


def _one_index(graph: Graph, starts: list[Symbols], limits, moved: bool) -> _Index | None:
    """The component of a start that is not known, if it is one among many; `None` for others.

    Where starts are not `moved` inside of their limits, only one that is always there.
    """
    nodes = [int(x.nodes) for x in starts]
    unknown = [k for k, x in enumerate(nodes) if graph.value(x) is None]
    if graph.dtype is None or not graph.loops or len(unknown) != 1:
        return None
    (k,) = unknown
    if starts[k].bounds is None or is_chosen(graph, nodes[k]):
        return None
    cases, inside = _cases(starts[k], limits[k])
    if not (inside or moved):
        return None
    node = nodes[k]
    if not inside:
        for name, end in (("max", cases[0]), ("min", cases[-1])):
            node = graph.apply(name, node, graph.constant(float(end)))
    known = [0 if j == k else int(graph.value(x) or 0) for j, x in enumerate(nodes)]
    return _Index(node, cases, lambda i: (*known[:k], i, *known[k + 1 :]))


def _columns(cells: np.ndarray) -> list[tuple[int, int]] | None:
    """Columns of windows that lie as tables in memory, row behind row; `None` if any do not."""
    ends = [0, *(np.flatnonzero(np.diff(cells[0]) != 1) + 1).tolist(), cells.shape[1]]
    columns = list(pairwise(ends))
    for a, b in columns:
        part = cells[:, a:b].ravel()
        if not np.array_equal(part, part[0] + np.arange(part.size)):
            return None
    return columns


def _number(graph: Graph, index: _Index) -> int:
    """Node of the number of a case."""
    return graph.apply("sub", index.node, graph.constant(float(index.cases[0])))


def _row(graph: Graph, flat: np.ndarray, index: _Index, cells: np.ndarray) -> np.ndarray | None:
    """Nodes of the window that an index names, if entries lie in memory and are many."""
    columns = _columns(cells) if cells.size >= LARGE else None
    if columns is None:
        return None
    tables = [flat[cells[:, a:b].ravel()].tolist() for a, b in columns]
    if not all(are_consecutive(graph, x) and len(x) >= LARGE for x in tables):
        return None
    number, rows = (_number(graph, index),), len(cells)
    parts = [
        graph.call(Row(rows, b - a), (tuple(x), number))[0]
        for (a, b), x in zip(columns, tables, strict=True)
    ]
    return np.concatenate(parts)


def _onto_row(
    graph: Graph, flat: np.ndarray, updates: np.ndarray, index: _Index, cells: np.ndarray
) -> np.ndarray | None:
    """Nodes of an array of zeros with updates in the window of an index, if it is large."""
    columns = _columns(cells) if cells.size >= LARGE else None
    if columns is None or (flat != graph.constant(0.0)).any():
        return None
    number, rows, result = (_number(graph, index),), len(cells), flat.copy()
    for a, b in columns:
        given = tuple(updates[a:b].tolist())
        (table,) = graph.call(OntoRow(rows, b - a), (given, number))
        result[cells[:, a:b].ravel()] = table.ravel()
    return result


def _picked(graph: Graph, starts: list[Symbols], limits, at: Callable, outside) -> np.ndarray:
    """Nodes at a start, by comparing its components with all they may be, up to their limits.

    `at` gives nodes at a known start, `outside` are those beyond the limits; None where starts are
    moved inside them.
    """
    if not starts:
        return at(())
    first, *rest = starts

    def below(i):
        return _picked(graph, rest, limits[1:], lambda start: at((i, *start)), outside)

    node = int(first.nodes)
    value = graph.value(node)
    if value is not None:
        return below(int(value))
    if is_chosen(graph, node):
        return _side_by_side(
            graph,
            node,
            lambda x: _picked(graph, [first.like(np.array(x)), *rest], limits, at, outside),
        )
    cases, inside = _cases(first, limits[0])
    if not inside and outside is not None and (outside < 0).any():
        raise Refusal(_OUTSIDE)
    ends = inside or outside is None
    result = below(cases[-1]) if inside or outside is None else outside
    for i in reversed(cases[:-1] if ends else cases):
        # The first case catches all starts that are moved inside from below, the last from above.
        test = "le" if ends and i == cases[0] else "eq"
        same = graph.apply(test, node, graph.constant(float(i)))
        result = _chosen(graph, same, below(i), result)
    return result


def _side_by_side(graph: Graph, node: int, result: Callable[[int], np.ndarray]) -> np.ndarray:
    """What is found at a number that is chosen among known ones: chosen in the same way."""
    done: dict[int, np.ndarray] = {}

    def made(branch: int) -> np.ndarray:
        if branch not in done:
            operation, arguments = graph.nodes[branch]
            if operation == "select":
                yes, no = made(arguments[1]), made(arguments[2])
                done[branch] = _chosen(graph, arguments[0], yes, no)
            else:
                done[branch] = result(branch)
        return done[branch]

    return made(node)


def _cases(index: Symbols, limit: int) -> tuple[range, bool]:
    """Places inside of the array that an index may name, and whether there are no others."""
    if index.bounds is None:
        raise Refusal("its indices depend on the inputs")
    low, high = (min(max(x, 0), limit) for x in index.bounds)
    return range(low, high + 1), (low, high) == index.bounds


def _chosen(graph: Graph, condition: int, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    every = np.full(yes.shape, condition, np.int32)
    return elementwise(graph, "select", *map(Symbols, (every, yes, no))).nodes


def dynamic_update_slice(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """Entries overwritten from a start that may depend on the inputs."""
    del equation
    (operand, update), kind = as_one_kind(graph, arguments[:2])
    starts = [as_symbols(graph, x) for x in arguments[2:]]

    def at(start):
        result = operand.copy()
        result[start_of_slice(start, operand.shape, update.shape)] = update
        return result

    limits = [n - size for n, size in zip(operand.shape, update.shape, strict=True)]
    index = _one_index(graph, starts, limits, True)
    if index is not None and not kind.boolean and kind.bounds is None:
        places = np.arange(operand.size).reshape(operand.shape)
        cells = index.cells(lambda x: places[start_of_slice(x, operand.shape, update.shape)])
        found = _onto_row(graph, operand.ravel(), update.ravel(), index, cells)
        if found is not None:
            return [kind.like(found.reshape(operand.shape))]
    return [kind.like(_picked(graph, starts, limits, at, None))]


def gather(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """Slices at several places."""
    operand, indices = as_symbols(graph, arguments[0]), arguments[1]
    params = equation.params
    layout = Windows.of_gather(operand.nodes.shape, params)
    clip, fill = clips(params["mode"]), _fill(graph, operand, params)
    flat = operand.nodes.ravel()

    def read(indices):
        return _read(flat, layout.windows(indices, clip), fill)

    if isinstance(indices, Symbols):
        rows = None if operand.boolean else partial(_row, graph, flat)
        windows = _windows(graph, layout, indices, read, None if clip else fill, rows)
    else:
        windows = read(indices)
    offsets = params["dimension_numbers"].offset_dims
    return [operand.like(layout.arranged(windows, offsets))]


def _fill(graph: Graph, operand: Symbols, params) -> int:
    """Node of what is read outside; -1 where that is not a floating-point number."""
    if operand.boolean or operand.bounds is not None:
        return -1
    value = params["fill_value"]
    return graph.constant(np.nan if value is None else float(value))


def _read(flat: np.ndarray, cells: np.ndarray, fill: int) -> np.ndarray:
    if (cells < 0).any() and fill < 0:
        raise Refusal(_OUTSIDE)
    return np.where(cells < 0, fill, flat[cells] if flat.size else 0).astype(np.int32)


def _windows(graph: Graph, layout: Windows, indices: Symbols, read, fill, rows) -> np.ndarray:
    """Slices, each by its own indices that depend on the inputs.

    `rows` looks them up in a large table, if it can.
    """
    *outer, count = indices.nodes.shape
    known: dict[tuple, np.ndarray] = {}

    def everywhere(start):
        if start not in known:
            known[start] = read(np.broadcast_to(np.array(start, np.int64), (*outer, count)))
        return known[start]

    inner = [layout.window[i] for i in layout.kept()]
    result = np.zeros((*outer, *inner), np.int32)
    outside = None if fill is None else np.full(inner, fill, np.int32)
    for place in np.ndindex(*outer):
        starts = [indices.like(x) for x in indices.nodes[place]]
        index = _one_index(graph, starts, layout.limits(), fill is None)
        found = None
        if rows is not None and index is not None:
            found = rows(index, _cells(layout, index, indices, place))
        if found is not None:
            result[place] = found.reshape(inner)
            continue
        result[place] = _picked(
            graph, starts, layout.limits(), lambda start, p=place: everywhere(start)[p], outside
        )
    return result


def _cells(layout: Windows, index: _Index, indices: Symbols, place) -> np.ndarray:
    """Places in the operand of one of the windows, for each case of its index."""
    *outer, count = indices.nodes.shape

    def places(start):
        every = np.broadcast_to(np.array(start, np.int64), (*outer, count))
        return layout.windows(every, True)[place]

    return index.cells(places)


_COMBINED = {
    "scatter": None, "scatter-add": "add", "scatter-sub": "sub", "scatter-mul": "mul",
    "scatter-min": "min", "scatter-max": "max",
}  # fmt: skip


def scatter(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """Entries overwritten, or combined with others, at several places."""
    operation = _COMBINED[equation.primitive.name]
    if operation is None and equation.params.get("update_jaxpr") is not None:
        raise Refusal("it applies a function to entries in place")
    (operand, updates), kind = as_one_kind(graph, [arguments[0], arguments[2]])
    if operation is not None and kind.bounds is not None:
        raise Refusal("integers that depend on the inputs are not combined in place")
    layout = Windows.of_scatter(operand.shape, updates.shape, equation.params)
    clip = clips(equation.params["mode"])
    windows = layout.unarranged(updates, equation.params["dimension_numbers"].update_window_dims)
    if operation in (None, "add") and isinstance(arguments[1], Symbols) and not kind.boolean:
        found = _scattered(graph, operand, windows, layout, arguments[1], clip)
        if found is not None:
            return [kind.like(found.reshape(operand.shape))]
    result = operand.ravel().copy()
    for condition, cells, entries in _updates(graph, layout, arguments[1], windows, clip):
        for cell, entry in zip(cells.ravel().tolist(), entries.ravel().tolist(), strict=True):
            if cell < 0:
                continue
            old = int(result[cell])
            new = entry if operation is None else graph.apply(operation, old, entry)
            result[cell] = new if condition is None else graph.apply("select", condition, new, old)
    return [kind.like(result.reshape(operand.shape))]


def _scattered(
    graph: Graph, operand, updates, layout: Windows, indices: Symbols, clip: bool
) -> np.ndarray | None:
    """The only window of an update, onto zeros, if a call can put it there."""
    *outer, _ = indices.nodes.shape
    if int(np.prod(outer)) != 1 or operand.size < LARGE:
        return None
    place = (0,) * len(outer)
    starts = [indices.like(x) for x in indices.nodes[place]]
    index = _one_index(graph, starts, layout.limits(), clip)
    if index is None:
        return None
    cells = _cells(layout, index, indices, place)
    return _onto_row(graph, operand.ravel(), updates[place].ravel(), index, cells)


def _updates(graph: Graph, layout: Windows, indices: Value, windows, clip: bool) -> Iterator:
    """Condition, positions and new entries of each update, in their order."""
    if not isinstance(indices, Symbols):
        yield None, layout.windows(indices, clip), windows
        return
    *outer, count = indices.nodes.shape
    for place in np.ndindex(*outer):
        starts = [indices.like(x) for x in indices.nodes[place]]
        for start, condition in _starts(graph, starts, layout.limits(), clip):
            everywhere = np.broadcast_to(np.array(start, np.int64), (*outer, count))
            yield condition, layout.windows(everywhere, clip)[place], windows[place]


def _starts(graph: Graph, starts: list[Symbols], limits, clip: bool) -> Iterator:
    """Starts that are possible, and the condition of each."""
    each = []
    for index, limit in zip(starts, limits, strict=True):
        node = int(index.nodes)
        value = graph.value(node)
        if value is not None:
            each.append([(int(value), None)])
            continue
        if clip:
            node = graph.apply("min", node, graph.constant(float(limit)))
            node = graph.apply("max", node, graph.constant(0.0))
        cases, _ = _cases(index, limit)
        each.append([(i, graph.apply("eq", node, graph.constant(float(i)))) for i in cases])
    for combination in product(*each):
        condition = graph.constant(True)
        for _, one in combination:
            condition = condition if one is None else graph.apply("and", condition, one)
        yield tuple(i for i, _ in combination), condition


def extremum(sign: int) -> Callable:
    """Position of the first largest, or smallest, entry; the first NaN before all others."""

    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        (axis,) = equation.params["axes"]
        value = as_numbers(graph, arguments[0])
        rows = np.moveaxis(value.nodes, axis, 0)
        best, place = value.like(rows[0]), as_symbols(graph, np.zeros(rows[0].shape))
        for i, row in enumerate(rows[1:], 1):
            row = value.like(row)
            ahead = elementwise(graph, "lt", *((best, row) if sign > 0 else (row, best)))
            if value.bounds is None:
                ahead = _with_nan_first(graph, ahead, best, row)
            best = elementwise(graph, "select", ahead, row, best, bounds=value.bounds)
            place = elementwise(graph, "select", ahead, np.asarray(float(i)), place)
        return [Symbols(place.nodes, bounds=(0, len(rows) - 1))]

    return rule


def _with_nan_first(graph: Graph, ahead: Symbols, best: Symbols, row: Symbols) -> Symbols:
    """The new entry is taken if it is NaN, never after a NaN."""
    unknown = elementwise(graph, "ne", row, row)
    ahead = elementwise(graph, "or", ahead, unknown)
    number = elementwise(graph, "eq", best, best)
    return elementwise(graph, "and", ahead, number)


def total_order(operation: str) -> Callable:
    """Comparisons that also order zeros by their signs, and NaN after all numbers."""

    def rule(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
        del equation
        a, b = (as_symbols(graph, x) for x in arguments)
        if operation == "lt":
            return [_is_ahead(graph, a, b)]
        ahead, behind = _is_ahead(graph, b, a), _is_ahead(graph, a, b)
        if operation == "eq":
            ahead = elementwise(graph, "or", ahead, behind)
        return [elementwise(graph, "not", ahead)]

    return rule


def _is_ahead(graph: Graph, a: Symbols, b: Symbols) -> Symbols:
    less, zero = _less(graph, a, b), np.asarray(0.0)
    if a.bounds is not None or all(map(graph.is_positive, a.nodes.ravel().tolist())):
        return less
    signs = [elementwise(graph, "div", np.asarray(1.0), x) for x in (a, b)]
    zeros = [elementwise(graph, "eq", x, zero) for x in (a, b)]
    order = elementwise(graph, "lt", *signs)
    both = elementwise(graph, "and", *zeros)
    ordered = elementwise(graph, "and", both, order)
    return elementwise(graph, "or", less, ordered)


def sort(graph: Graph, equation, arguments: list[Value]) -> list[Value]:
    """Insertion of one entry after the other, all comparisons made; NaN comes last."""
    axis, keys = equation.params["dimension"], equation.params["num_keys"]
    values = [as_symbols(graph, x) for x in arguments]
    columns = [list(np.moveaxis(x.nodes, axis, 0)) for x in values]
    if len(columns[0]) > _SORTED_LIMIT:
        raise Refusal(f"more than {_SORTED_LIMIT} entries are sorted")
    for i in range(1, len(columns[0])):
        for j in range(i, 0, -1):
            pair = [(x.like(c[j]), x.like(c[j - 1])) for x, c in zip(values, columns, strict=True)]
            swap = _precedes(graph, pair[:keys])
            for column, (later, earlier) in zip(columns, pair, strict=True):
                column[j - 1] = elementwise(graph, "select", swap, later, earlier).nodes
                column[j] = elementwise(graph, "select", swap, earlier, later).nodes
    result = [np.stack(c) if c else x.nodes for x, c in zip(values, columns, strict=True)]
    return [x.like(np.moveaxis(nodes, 0, axis)) for x, nodes in zip(values, result, strict=True)]


def _precedes(graph: Graph, pairs) -> Symbols:
    """Whether one comes strictly before another, by several keys."""
    (a, b), *rest = pairs
    less = _less(graph, a, b)
    if not rest:
        return less
    tied = elementwise(graph, "not", _less(graph, b, a))
    later = elementwise(graph, "and", tied, _precedes(graph, rest))
    return elementwise(graph, "or", less, later)


def _less(graph: Graph, a: Symbols, b: Symbols) -> Symbols:
    """`a < b`, NaN being larger than everything but NaN."""
    a, b = as_numbers(graph, a), as_numbers(graph, b)
    if a.bounds is not None:
        return elementwise(graph, "lt", a, b)
    greater = elementwise(graph, "le", b, a)
    number = elementwise(graph, "eq", a, a)
    less = elementwise(graph, "not", greater)
    return elementwise(graph, "and", less, number)


RULES: dict[str, Callable] = {
    **dict.fromkeys(MOVEMENTS, moving),
    **dict.fromkeys(_COMBINED, scatter),
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "gather": gather,
    "argmax": extremum(1),
    "argmin": extremum(-1),
    "sort": sort,
    **{f"{x}_to": total_order(x) for x in ("lt", "le", "eq")},
}
