"""Loops that stay loops: one turn is a program, called with arrays in memory.

Those are such with many turns, and such that turn as often as values say, as Newton's iteration.
"""

import hashlib
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.expressions import CONSTANT, Graph, INPUT, RESULT, TooManyOperations
from jaxdae.kernels.tracing.arrays import (
    as_numbers,
    as_symbols,
    elementwise,
    first_refused,
    NotByRowsError,
    Refused,
    RowwiseArray,
    Symbols,
    Value,
)
from jaxdae.kernels.tracing.control_flow import (
    as_computed,
    both_sides,
    CALLS,
    choice,
    computed_by,
    unrolled,
    written_out,
)
from jaxdae.kernels.tracing.subprograms import ScalarProgram, Subprogram
from jaxdae.kernels.tracing.tables import candidates, without_misused
from jaxdae.primitives.parameters import equations, Refusal, scan_sizes

# Loops of fewer operations, turn by turn, are written out, with what is known of each turn.
_FEWEST, _FEWEST_OF_LONG = 4000, 1000
# Fewer equations, turn by turn, need not be asked how many operations they are.
_LONG = 1000
# Of turns that are given integers: places in arrays, which are known where turns are written out.
_LONG_NUMBERED = 20_000
# Turns that read and replace rows whose integers name: of more the program would be long.
_FEW = 48
# Sides of conditions with fewer are made whether they are taken or not.
_LONG_SIDE = 200
# More than these, of loops that cannot stay one, would take longer to compile than JAX takes.
_MOST = 6000


class TableRow(NamedTuple):
    """A row of a table that a turn reads, or replaces.

    Args:
        table: its number.
        places: number of the row in each turn.
    """

    table: int
    places: tuple[int, ...]


class Tables(NamedTuple):
    """Arrays that are handed on in memory, of which turns read and replace few rows.

    Args:
        arrays: their shapes.
        read: rows that a turn is given.
        replaced: rows that it returns, none of which is another one of those in the same turn.
    """

    arrays: tuple[jax.ShapeDtypeStruct, ...]
    read: tuple[TableRow, ...]
    replaced: tuple[TableRow, ...]

    def content(self) -> str:
        """The same in words; nothing where there are none."""
        return f"{self}\n" if self.arrays else "\n"


class Loop:
    """Turns of one program, called with what is the same in all, what is handed on, and rows.

    Arguments of a loop are constants, what is handed on, arrays by rows, and tables; it gives what
    is handed on, arrays by rows, and tables.

    Args:
        turn: takes constants, then what is handed on, then one row of each array, then rows of
            tables; returns what is handed on, rows, and rows of tables.
        length: number of turns; `None` for as many as any lane wants, which the last number that is
            handed on says by not being zero.
        reverse: whether rows are gone through from the last one on.
        constants: number of arguments that are the same in all turns.
        handed: number of those that are handed on.
        tables: of arrays of which turns read and replace rows.
    """

    def __init__(
        self,
        turn: ScalarProgram,
        length: int | None,
        reverse: bool,
        constants: int,
        handed: int,
        tables: "Tables | None" = None,
    ):
        self.length, self.reverse, self.constants, self.handed = length, reverse, constants, handed
        self.tables = Tables((), (), ()) if tables is None else tables
        about = f"{length} {reverse} {constants} {handed} {self.tables.content()}{turn.content()}"
        self.name = f"loop_{hashlib.sha256(about.encode()).hexdigest()[:16]}"
        self.turn = Subprogram(f"{self.name}_turn", turn)
        last = len(turn.results) - len(self.tables.replaced)
        rows = [
            jax.ShapeDtypeStruct((length or 0, *x.shape), x.dtype)
            for x in turn.results[handed:last]
        ]
        self.results = [*turn.results[:handed], *rows, *self.tables.arrays]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Loop) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Scan(NamedTuple):
    """A loop of JAX.

    Args:
        jaxpr: of one turn.
        length: number of turns.
        reverse: whether it begins with the last rows.
        constants: values that all turns share.
        handed: values that are handed from turn to turn.
        rows: arrays of which each turn takes one row.
    """

    jaxpr: Any
    length: int
    reverse: bool
    constants: list[Value]
    handed: list[Value]
    rows: list[Value]


def _scan(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    params = equation.params
    constants, carried = scan_sizes(params)
    length, jaxpr = params["length"], params["jaxpr"]
    total = length * equations(jaxpr.jaxpr)
    rows = arguments[constants + carried :]
    numbered = any(isinstance(x, np.ndarray) and x.dtype.kind in "iu" for x in rows)
    few = _FEW if graph.few_turns is None else graph.few_turns
    by_rows = numbered and length > few and candidates(jaxpr.jaxpr, constants, carried)
    long = total >= (_LONG_NUMBERED if numbered and not by_rows else _LONG)
    if long and graph.loops and graph.dtype is not None and first_refused(arguments) is None:
        parts = arguments[:constants], arguments[constants : constants + carried]
        scan = Scan(jaxpr, length, params["reverse"], *parts, arguments[constants + carried :])
        results = _looped(graph, scan, evaluate)
        if results is not None:
            return results
    return written_out(graph, equation, arguments, evaluate)


CALLS["scan"] = _scan


def _check_length(scan: Scan) -> None:
    """Refuse loops with integers that would take too long to compile turn by turn."""
    if scan.length * equations(scan.jaxpr.jaxpr) > _MOST:
        raise TooManyOperations(
            f"{scan.length} turns of a loop that hands on integers would be written out, more "
            f"than {_MOST} equations"
        )


def _looped(graph: Graph, scan: Scan, evaluate: Callable) -> list[Value] | None:
    """What a loop hands on at the end, and the rows that its turns give, as results of one call.

    `None` for loops that are better written out, or that hand on integers that do not count turns.
    """
    by_rows = candidates(scan.jaxpr.jaxpr, len(scan.constants), len(scan.handed))
    return without_misused(by_rows, lambda some: _with_tables(graph, scan, evaluate, some))


def _with_tables(
    graph: Graph, scan: Scan, evaluate: Callable, by_rows: dict[int, int]
) -> list[Value] | None:
    """The same, where some of what is handed on is read and replaced by rows."""
    counted = _counters(scan)
    apart = {*counted, *by_rows}
    others = [x for j, x in enumerate(scan.handed) if j not in apart]
    kinds = [kind_of(graph, x) for x in others]
    if any(x.bounds is not None for x in kinds):
        _check_length(scan)
        return None
    turn = Turn(graph)
    constants = [turn.constant(x) for x in scan.constants]
    every = iter([turn.handed(x) for x in others])
    rows = [turn.row(x) for x in scan.rows]
    carried: list[Any] = []
    for j, value in enumerate(scan.handed):
        if j in counted:
            carried.append(turn.row(_counts(scan, j, counted[j])))
        else:
            carried.append(turn.table(j, value, by_rows[j]) if j in by_rows else next(every))
    turn.graph.places = turn.places if by_rows else {}
    result = evaluate(turn.graph, scan.jaxpr, [*constants, *carried, *rows])
    if any(isinstance(x, Refused) for x in result):
        return None
    after, values = result[: len(carried)], result[len(carried) :]
    last = [x for j, x in enumerate(after) if j not in apart]
    if [kind_of(turn.graph, x) for x in last] != kinds:
        _check_length(scan)
        return None
    tables = [turn.changed(j, after[j]) for j in by_rows]
    # Known integers that a turn returns as they are given to it stay known.
    types = (x.dtype for x in scan.jaxpr.out_avals[len(carried) :])
    known = [turn.known(x, dtype) for x, dtype in zip(values, types, strict=True)]
    values = [x for x, y in zip(values, known, strict=True) if y is None]
    loop = turn.loop(scan, last, values, tables)
    if loop is None:
        return None
    kinds += [kind_of(turn.graph, x) for x in values]
    kinds += [Symbols(_NONE)] * len(by_rows)
    parts = graph.call(loop, tuple(chain(*turn.arguments)))
    ends = iter([restored(graph, x, kind) for x, kind in zip(parts, kinds, strict=True)])
    handed: dict[int, Value] = {j: _end(scan, j, step) for j, step in counted.items()}
    handed |= {j: next(ends) for j in range(len(carried)) if j not in apart}
    returned = [next(ends) if x is None else x for x in known]
    arrays = ((j, axis, next(ends)) for j, axis in by_rows.items())
    handed |= {j: x.like(np.moveaxis(x.nodes, 0, axis)) for j, axis, x in arrays}
    return [*(handed[j] for j in range(len(carried))), *returned]


_NONE = np.zeros(0, np.int32)


def kind_of(graph: Graph, value: Value) -> Symbols:
    """What kind of numbers an array holds, without its entries."""
    return as_symbols(graph, value)._replace(nodes=_NONE)


def restored(graph: Graph, nodes: np.ndarray, kind: Symbols) -> Symbols:
    """Numbers that are kept in memory, as what they stand for."""
    if kind.boolean:
        return elementwise(graph, "ne", Symbols(nodes), np.asarray(0.0))
    return kind.like(nodes)


def kept(graph: Graph, value: Value) -> np.ndarray:
    """Nodes of an array as numbers that can be kept in memory."""
    value = as_symbols(graph, value)
    if not value.boolean:
        return value.nodes
    zero = graph.constant(0.0)
    conditions = [graph.nodes[x] for x in value.nodes.ravel().tolist()]
    if all(
        x.operation == "ne" and x.arguments[1] == zero for x in conditions
    ):  # as `restored` made it
        return np.array([x.arguments[0] for x in conditions], np.int32).reshape(value.nodes.shape)
    return as_numbers(graph, value).nodes


class Turn:
    """The program of one turn while it is made, and what the loop is called with."""

    def __init__(self, graph: Graph):
        self.outer, self.graph = graph, Graph(None, graph.dtype, True)
        self.graph.open_ended, self.graph.few_turns = graph.open_ended, graph.few_turns
        self.arguments: list[list[tuple[int, ...]]] = [[], [], [], []]
        self._shapes: list[list[jax.ShapeDtypeStruct]] = [[], [], [], []]
        self._count = 0
        #: Nodes of integers that are known in each turn, by rows.
        self.places: dict[int, np.ndarray] = {}
        self._tables: dict[int, jax.ShapeDtypeStruct] = {}
        self._read: dict[TableRow, np.ndarray] = {}

    def constant(self, value: Value) -> Value:
        """What all turns share; known numbers stay so."""
        if isinstance(value, RowwiseArray):
            raise value.misused()
        return self._given(0, value, value.nodes.shape) if isinstance(value, Symbols) else value

    def handed(self, value: Value) -> Value:
        """What is handed from turn to turn."""
        return self._given(1, value, as_symbols(self.outer, value).nodes.shape)

    def row(self, value: Value) -> Value:
        """A row of an array."""
        result = self._given(2, value, as_symbols(self.outer, value).nodes.shape[1:])
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu":
            columns = value.reshape(len(value), -1).T
            self.places |= dict(zip(result.nodes.ravel().tolist(), columns, strict=True))
        return result

    def known(self, value: Value, dtype) -> np.ndarray | None:
        """What integers are in each turn, if they are known in each."""
        if not isinstance(value, Symbols) or value.bounds is None or not self.places:
            return None
        turns = len(next(iter(self.places.values())))
        columns = [self._in_each_turn(x, turns) for x in value.nodes.ravel().tolist()]
        known = [x for x in columns if x is not None]
        if not columns or len(known) < len(columns):
            return None
        return np.stack(known, axis=1).reshape(turns, *value.nodes.shape).astype(dtype)

    def _in_each_turn(self, node: int, turns: int) -> np.ndarray | None:
        constant = self.graph.value(node)
        return self.places.get(node) if constant is None else np.full(turns, constant)

    def table(self, number: int, value: Value, axis: int) -> RowwiseArray:
        """What is handed on in memory, to be read and replaced by rows along an axis."""
        kind = kind_of(self.outer, value)
        if kind.boolean or kind.bounds is not None:
            raise NotByRowsError(number)
        given = as_symbols(self.outer, value).nodes
        nodes = np.moveaxis(given, axis, 0)
        order = len(self._tables)
        self._tables[number] = jax.ShapeDtypeStruct(nodes.shape, self.outer.dtype)
        self.arguments[3].append(tuple(nodes.ravel().tolist()))

        def read(places: np.ndarray) -> np.ndarray:
            row = TableRow(order, tuple(places.tolist()))
            if row not in self._read:
                self._read[row] = self._inputs(3, nodes.shape[1:])
            return self._read[row]

        return RowwiseArray(number, given.shape, axis, read)

    def changed(self, number: int, table: Any) -> list[tuple[TableRow, np.ndarray]]:
        """Rows of a table that a turn replaces."""
        if not isinstance(table, RowwiseArray) or table.number != number:
            raise NotByRowsError(number)
        order = list(self._tables).index(number)
        rows = ((TableRow(order, tuple(places.tolist())), x) for places, x in table.rows)
        return [(row, x) for row, x in rows if not np.array_equal(self._read.get(row, _NONE), x)]

    def _given(self, group: int, value: Value, shape: tuple[int, ...]) -> Symbols:
        kind = kind_of(self.outer, value)
        self.arguments[group].append(tuple(kept(self.outer, value).ravel().tolist()))
        return restored(self.graph, self._inputs(group, shape), kind)

    def _inputs(self, group: int, shape: tuple[int, ...]) -> np.ndarray:
        size = int(np.prod(shape))
        nodes = [self.graph.input(self._count + i) for i in range(size)]
        self._count += size
        self._shapes[group].append(jax.ShapeDtypeStruct(shape, self.outer.dtype))
        return np.array(nodes, np.int32).reshape(shape)

    def loop(
        self,
        scan: Scan,
        handed: list[Value],
        rows: list[Value],
        tables: list[list[tuple[TableRow, np.ndarray]]],
    ) -> Loop | None:
        """The loop, if it has many operations."""
        replaced = dict(chain(*tables))
        program = self._program([*handed, *rows, *map(Symbols, replaced.values())])
        operations = sum(
            self.graph.nodes[x].operation not in (CONSTANT, INPUT, RESULT)
            for x in self.graph.needed(program.outputs)
        )
        long = scan.length > _FEW or self.graph.few_turns is not None
        fewest = _FEWEST_OF_LONG if long else _FEWEST
        if not program.outputs.size or scan.length * max(operations, 1) < fewest:
            return None
        sizes = [len(x) for x in self._shapes]
        every = Tables(tuple(self._tables.values()), tuple(self._read), tuple(replaced))
        return Loop(program, scan.length, scan.reverse, sizes[0], sizes[1], every)

    def open_loop(self, handed: list[Value]) -> Loop:
        """The loop that turns as long as the last of what is handed on says so in any lane."""
        return Loop(self._program(handed), None, False, len(self._shapes[0]), len(handed))

    def _program(self, results: list[Value]) -> ScalarProgram:
        outputs = [kept(self.graph, x) for x in results]
        flat = np.concatenate([_NONE, *(x.ravel() for x in outputs)])
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, self.outer.dtype) for x in outputs)
        inputs = tuple(x for group in self._shapes for x in group)
        return ScalarProgram(self.graph, flat, inputs, shapes)


def _counters(scan: Scan) -> dict[int, int]:
    """Numbers of known integers that each turn increases by the same, and by how much."""
    jaxpr, first = scan.jaxpr.jaxpr, len(scan.constants)
    made = {x: equation for equation in jaxpr.eqns for x in equation.outvars}
    results = {}
    for j, value in enumerate(scan.handed):
        known = isinstance(value, np.ndarray) and value.shape == () and value.dtype.kind in "iu"
        out = jaxpr.outvars[j]
        equation = None if isinstance(out, jex.Literal) else made.get(out)
        if not known or equation is None or equation.primitive.name != "add":
            continue
        one, other = equation.invars
        if one is jaxpr.invars[first + j] and isinstance(other, jex.Literal):
            results[j] = int(other.val)
    return results


def _counts(scan: Scan, j: int, step: int) -> np.ndarray:
    """What a counter is in each turn, as rows."""
    value = np.asarray(scan.handed[j])
    counts = (value + step * np.arange(scan.length)).astype(value.dtype)
    return counts[::-1] if scan.reverse else counts


def _end(scan: Scan, j: int, step: int) -> np.ndarray:
    value = np.asarray(scan.handed[j])
    return (value + step * scan.length).astype(value.dtype)


# Loops that turn as often as values say: a lane that is done keeps what it has, others go on.


# Counts of turns are held exactly up to here, also in single precision.
_MOST_TURNS = 2**23


def _while(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    turns = graph.loops and graph.dtype is not None and graph.open_ended
    return unrolled(graph, equation, arguments, evaluate, _turned if turns else None)


def _turned(
    graph: Graph, equation, operands: list[Value], goes_on: Symbols, evaluate: Callable
) -> list[Any]:
    """Results of a loop as one call, by its operands and its condition before the first turn."""
    params = equation.params
    constants = params["cond_nconsts"] + params["body_nconsts"]
    refused = first_refused(operands)
    if refused is not None:
        return [refused] * (len(operands) - constants)
    starts = [as_symbols(graph, x) for x in operands[constants:]]
    # Integers that other turns than the first make larger count turns.
    for widened in (_wider, _counting, None):
        turn = Turn(graph)
        after = _one_turn(turn, params, [*operands[:constants], *starts], goes_on, evaluate)
        refused = first_refused(after)
        if refused is not None:
            return [refused] * len(starts)
        if widened is not None:
            ends = (as_symbols(turn.graph, x).bounds for x in after[:-1])
            wider = [widened(x, y) for x, y in zip(starts, ends, strict=True)]
            if all(x.bounds == y.bounds for x, y in zip(starts, wider, strict=True)):
                break
            starts = wider
    loop = turn.open_loop(after)
    results = graph.call(loop, tuple(chain(*turn.arguments)))
    return [restored(graph, x, y) for x, y in zip(results, starts, strict=False)]


def _one_turn(
    turn: Turn, params, arguments: list[Any], goes_on: Symbols, evaluate: Callable
) -> list:
    """What a turn hands on, and whether it goes on: both stay as they were where it did not."""
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    constants = [turn.constant(x) for x in arguments[: tests + bodies]]
    before = [turn.handed(x) for x in arguments[tests + bodies :]]
    on = turn.handed(goes_on)
    after = evaluate(turn.graph, params["body_jaxpr"], [*constants[tests:], *before])
    if first_refused(after) is not None:
        return after
    after = [choice(turn.graph, on, new, old) for new, old in zip(after, before, strict=True)]
    (more,) = evaluate(turn.graph, params["cond_jaxpr"], [*constants[:tests], *after])
    if first_refused((more,)) is not None:
        return [more]
    return [*after, elementwise(turn.graph, "and", on, more)]


def _wider(value: Symbols, bounds: tuple[int, int] | None) -> Symbols:
    """Integers within their own limits or others."""
    if value.bounds is None or bounds is None:
        return value
    (low, high), (least, most) = value.bounds, bounds
    within = low <= least and most <= high
    return value if within else value._replace(bounds=(min(low, least), max(high, most)))


def _counting(value: Symbols, bounds: tuple[int, int] | None) -> Symbols:
    """Integers that have come beyond their limits, as counts of turns."""
    if value.bounds is None or bounds is None:
        return value
    (low, high), (least, most) = value.bounds, bounds
    limits = low if low <= least else -_MOST_TURNS, high if most <= high else _MOST_TURNS
    return value._replace(bounds=limits)


def _cond(graph: Graph, equation, operands: list[Value], evaluate: Callable) -> list:
    branches = equation.params["branches"]
    known = not isinstance(operands[0], Symbols) or first_refused(operands) is not None
    long = [equations(x.jaxpr) >= _LONG_SIDE for x in branches]
    if known or not (any(long) and graph.loops and graph.dtype is not None and graph.open_ended):
        return both_sides(graph, equation, operands, evaluate)

    def sides(which, *arguments):
        """Each long side as a loop that turns once, or not at all where no lane takes it."""
        which = jnp.clip(which, 0, len(branches) - 1)
        results = [jnp.zeros(x.shape, x.dtype) for x in branches[0].out_avals]
        for i in sorted(range(len(branches)), key=long.__getitem__):
            side, here = jex.jaxpr_as_fun(branches[i]), which == i
            if long[i]:
                once = lambda _, side=side: (False, *side(*arguments))  # noqa: E731
                start = (here, *results)
                _, *results = jax.lax.while_loop(lambda carry: carry[0], once, start)
            else:
                pairs = zip(side(*arguments), results, strict=True)
                results = [jnp.where(here, x, y) for x, y in pairs]
        return results

    return computed_by(sides, graph, equation, operands, evaluate)


def _beside(rule: Callable) -> Callable:
    """A rule for what stands around such loops in the libraries that write them."""

    def of_open_programs(
        graph: Graph, equation, arguments: list[Value], evaluate: Callable
    ) -> list:
        if not graph.open_ended:
            raise Refusal("there is no rule for it")
        return rule(graph, equation, arguments, evaluate)

    return of_open_programs


def _one_of_a_batch(graph: Graph, equation, arguments: list[Value], evaluate: Callable) -> list:
    """What equinox asks of all of a batch, where each lane is by itself."""
    del graph, evaluate
    return [arguments[1]] if equation.primitive.name == "select_if_vmap" else arguments


CALLS |= {
    "cond": _cond,
    "while": _while,
    **dict.fromkeys(
        ("select_if_vmap", "unvmap_any", "unvmap_all", "unvmap_max"), _beside(_one_of_a_batch)
    ),
    **dict.fromkeys(("maybe_set", "vprim"), _beside(as_computed)),
}
