"""Scalar programs as functions on arrays in memory, one vector for each number."""

import hashlib
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.emission.factorization import factorization_function
from jaxdae.kernels.emission.instructions import elementary_calls, emit
from jaxdae.kernels.emission.loops import (
    conditional_function,
    EntryWriter,
    loop_function,
    loop_name,
    map_function,
    map_name,
    onto_row_function,
    places_of,
    product_function,
    product_name,
    row_function,
    row_name,
)
from jaxdae.kernels.graph.array_calls import (
    are_consecutive,
    Factorization,
    LARGE,
    Map,
    OntoRow,
    Product,
    Row,
)
from jaxdae.kernels.graph.expressions import CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.writer import ALIGNMENT, Writer
from jaxdae.kernels.tracing.loops import Loop
from jaxdae.kernels.tracing.subprograms import (
    called,
    ConditionalCall,
    ScalarProgram,
    Shared,
    Subprogram,
)

# Where arrays lie in memory.


class Operand(NamedTuple):
    """Where an array is in memory, and whether as numbers that all lanes share."""

    pointer: str
    shared: bool


# Numbers in memory that are copied at once, and not through registers.
COPIED = 16


class ContiguousEntries(NamedTuple):
    """Entries of a result that lie in memory one after the other, to be copied at once.

    Args:
        result: its number.
        start: the first of them.
        nodes: of the entries.
    """

    result: int
    start: int
    nodes: tuple[int, ...]


class Results(NamedTuple):
    """How results come to where they are wanted.

    Args:
        direct: pointers for calls that write them there, by the call and its first result.
        runs: parts that are copied.
        written: positions among all outputs of those that are neither computed nor stored.
    """

    direct: dict[tuple[int, int], str]
    runs: list[ContiguousEntries]
    written: frozenset[int]


def placed(program: ScalarProgram, shared: list[bool]) -> Results:
    """Large parts of results that need not go through registers."""
    direct: dict[tuple[int, int], str] = {}
    at, runs, written = 0, [], set()
    for i, result in enumerate(program.results):
        nodes = program.outputs[at : at + result.size].tolist()
        source = _array_of_call(program, nodes)
        if source is not None and source not in direct:
            direct[source] = f"%r{i}_"
            written.update(range(at, at + len(nodes)))
        else:
            loop = [
                ContiguousEntries(i, a, tuple(nodes[a:b]))
                for a, b in _copied(program, nodes, shared)
            ]
            written.update(at + x.start + j for x in loop for j in range(len(x.nodes)))
            runs += loop
        at += len(nodes)
    return Results(direct, runs, frozenset(written))


def _array_of_call(program: ScalarProgram, nodes: list[int]) -> tuple[int, int] | None:
    """The call that gives a large array, and the number of its first entry."""
    graph = program.graph
    if len(nodes) < LARGE or not are_consecutive(graph, nodes):
        return None
    operation, source = graph.nodes[nodes[0]]
    if operation != RESULT:
        return None
    return (
        source if (source[1], source[1] + len(nodes)) in pairwise(_ends(graph, source[0])) else None
    )


def _ends(graph: Graph, call: int) -> list[int]:
    """Numbers at which the arrays that a call gives begin, and where the last one ends."""
    callee = graph.nodes[call].arguments[0]
    return np.cumsum([0, *(int(np.prod(x.shape)) for x in callee.results)]).tolist()


def runs(graph: Graph, nodes) -> list[tuple[int, int]]:
    """Parts of an array that may be in memory one after the other, or that are one number."""
    following = [x.arguments for x in (graph.nodes[x] for x in nodes)]
    steps = [
        "same" if x == y else "next" if b == (*a[:-1], a[-1] + 1) else "other"
        for (x, y), (a, b) in zip(pairwise(nodes), pairwise(following), strict=True)
    ]
    # A part ends where the next entry is another one, or comes in another way.
    ends = [
        i for i, step in enumerate(steps, 1)
        if step == "other" or (i > 1 and steps[i - 2] not in ("other", step))
    ]  # fmt: skip
    return list(pairwise([0, *ends, len(nodes)]))


def _copied(program: ScalarProgram, nodes: list[int], shared: list[bool]):
    graph = program.graph
    starts = np.cumsum([0, *(int(np.prod(x.shape)) for x in program.inputs)])
    for start, stop in runs(graph, nodes) if len(nodes) >= COPIED else ():
        operation, (*_, first) = graph.nodes[nodes[start]]
        if operation not in (INPUT, RESULT) or not are_consecutive(graph, nodes[start:stop]):
            continue
        ends = (
            starts if operation == INPUT else _ends(graph, graph.nodes[nodes[start]].arguments[0])
        )
        # Arrays that follow each other need not do so in memory.
        inner = [x - first + start for x in ends if first < x < first + stop - start]
        for a, b in pairwise([start, *inner, stop]):
            array = int(np.searchsorted(ends, first + a - start, side="right")) - 1
            if b - a >= COPIED and not (operation == INPUT and shared[array]):
                yield a, b


# Functions of programs.

Callee = Subprogram | ConditionalCall | Product | Factorization | Loop | Map | Row | OntoRow


def library(
    programs: list[Subprogram],
    width: int,
    dtype: Any,
    register_width: int,
    shared: Shared = frozenset(),
) -> list[Definition]:
    """The functions of programs, of all that they call, and elementary functions.

    Each program becomes a function `@name(pointer of each argument, pointer of each result)`. An
    array of `k` numbers is `k` vectors of so many entries, one after the other; `shared` parameters
    are given as numbers for all lanes.
    """
    # By their names: equal loops in several programs have turns of one name.
    each: dict[str, Subprogram] = {}
    for program in programs:
        for one in (*called(program.program), program):
            each.setdefault(one.name, one)
    return _Library(list(each.values()), width, dtype, register_width, shared).definitions()


class _Library:
    """Functions of programs, and what is written beside them when they are."""

    def __init__(
        self,
        programs: list[Subprogram],
        width: int,
        dtype: Any,
        register_width: int,
        shared: Shared,
    ):
        self.programs, self.width, self.dtype, self.shared = programs, width, dtype, shared
        self.register_width = register_width
        #: Loops, products and constants that are called by their names.
        self.beside: dict[str, Definition] = {}

    def definitions(self) -> list[Definition]:
        """All of them."""
        functions = [self.function(one, one.name) for one in self.programs]
        names = dict.fromkeys(
            name for one in self.programs for name in elementary_calls(one.program)
        )
        elementary = [
            x for name in names for x in elementary_functions.function(name, self.width, self.dtype)
        ]
        return [*elementary, *self.beside.values(), *functions]

    def function(self, one: Subprogram, name: str) -> Definition:
        """The function of a program."""
        if one.entries is not None:
            w: Writer = _looped(one, self.width, self.dtype, self.register_width)
        else:
            w = _FunctionWriter(self, one)
            w.straight()
        return w.define(name, parameters(one))


def parameters(one: Subprogram) -> str:
    """Of the function of a program."""
    arguments = [f"ptr noalias %a{i}_" for i in range(len(one.program.inputs))]
    return ", ".join(
        [*arguments, *(f"ptr noalias %r{i}_" for i in range(len(one.program.results)))]
    )


def _looped(one: Subprogram, width: int, dtype: Any, register_width: int) -> EntryWriter:
    """The same for each entry of arrays."""
    w = EntryWriter(width, dtype, register_width)

    def each() -> None:
        kinds = ["every" if x else "one" for x in one.looped]
        for i, x in enumerate(emit(w, one.program, lambda i: w.read(f"%a{i}_", kinds[i]))):
            w.write_at(f"%r{i}_", x)

    w.for_each(one.entries, each)
    return w


class _FunctionWriter(Writer):
    """A writer that knows where arguments are, and keeps room for those of calls."""

    def __init__(self, library: _Library, one: Subprogram):
        super().__init__(library.width, library.dtype)
        self._library, self._program, self._graph = library, one.program, one.program.graph
        self._sizes = [int(np.prod(x.shape)) for x in one.program.inputs]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._shared = one.shared(library.shared)
        # Where arrays are in memory that were stored for a call, by the nodes of their entries.
        self._known: dict[tuple[int, ...], str] = {}
        self._results: dict[int, list[tuple[str, int]]] = {}
        self._places = placed(one.program, self._shared)
        self.written = self._places.written

    def straight(self) -> None:
        """Write all of the program."""
        registers = iter(emit(self, self._program, self.input, self))
        for i, result in enumerate(self._program.results):
            for j in range(int(np.prod(result.shape))):
                register = next(registers)
                if register is not None:
                    self.store(self.vector, register, self._place(f"%r{i}_", j))
        for x in self._places.runs:
            source = self._in_memory(x.nodes)
            assert source is not None
            target = self._place(f"%r{x.result}_", x.start)
            self.copy_vectors(source.pointer, target, len(x.nodes))

    def input(self, number: int) -> str:
        """Register that holds an input."""
        array, j = self._argument(number)
        return self._load(f"%a{array}_", j, self._shared[array])

    def write(self, node: int, callee: Callee, arguments, register) -> None:
        """Call a function. What is in memory already is not copied."""
        operands = [
            self._in_memory(x) or Operand(self._stored(x, register), False) for x in arguments
        ]
        shared = self._accepted(callee, [x.shared for x in operands])
        for i, nodes in enumerate(arguments):
            if shared[i] != operands[i].shared:
                operands[i] = Operand(self._stored(nodes, register), False)
        name = self._function(callee, shared)
        sizes = [int(np.prod(x.shape)) for x in callee.results]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        rooms = [
            self._places.direct.get((node, start)) or self.room(size)
            for start, size in zip(starts, sizes, strict=True)
        ]
        count = [f"i64 {callee.size}"] if isinstance(callee, Map) else []
        words = [*(f"ptr {x}" for x in (*(x.pointer for x in operands), *rooms)), *count]
        self.invoke("void", name, *words)
        self._results[node] = [(p, j) for p, n in zip(rooms, sizes, strict=True) for j in range(n)]

    def result(self, node: int, number: int) -> str:
        """Register that holds a result of a call."""
        return self._load(*self._results[node][number])

    def _accepted(self, callee: Callee, shared: list[bool]) -> tuple[bool, ...]:
        """Which arguments a function takes as numbers that all lanes share."""
        if isinstance(callee, Subprogram):
            return tuple(callee.shared(self._library.shared))
        if isinstance(callee, ConditionalCall):
            return (False, *callee.program.shared(self._library.shared))
        if isinstance(callee, Loop):  # what is handed on changes, and differs
            handed = range(callee.constants, callee.constants + callee.handed)
            return tuple(x and i not in handed for i, x in enumerate(shared))
        if isinstance(callee, Map):
            return tuple(x and not one for x, one in zip(shared, callee.single, strict=True))
        if isinstance(callee, Row):
            return shared[0], False
        if isinstance(callee, Factorization | OntoRow):
            return (False,) * len(shared)
        return tuple(shared)

    def _function(self, callee: Callee, shared: tuple[bool, ...]) -> str:
        """Name of the function that is called, which is written where it is not of a program."""
        if isinstance(callee, Subprogram):
            return callee.name
        names: dict[Any, Any] = {
            Product: product_name, Map: map_name, Loop: loop_name, Row: row_name,
        }  # fmt: skip
        make, beside = names.get(type(callee)), self._library.beside
        name = callee.name if make is None else make(callee, shared)
        if name not in beside:
            beside[name] = self._written(callee, shared, name)
        return name

    def _written(self, callee, shared: tuple[bool, ...], name: str) -> Definition:
        kind, wide = (self.width, self.dtype), self._library.register_width
        if isinstance(callee, Product):
            return product_function(callee, shared, *kind, wide)
        if isinstance(callee, Factorization):
            return factorization_function(callee, *kind, wide)
        if isinstance(callee, Map):
            return map_function(callee, shared, *kind, wide)
        if isinstance(callee, Row):
            return row_function(callee, shared, *kind)
        if isinstance(callee, OntoRow):
            return onto_row_function(callee, *kind)
        if isinstance(callee, ConditionalCall):
            return conditional_function(callee, *kind)
        turn, constants = callee.turn.name, shared[: callee.constants]
        if any(constants):
            turn = f"{turn}_{name.rsplit('_', 1)[1]}"
            numbers = tuple(0 if x else None for x in constants)
            rest = (None,) * (len(shared) - len(constants))
            one = Subprogram(turn, callee.turn.program, parameters=(*numbers, *rest))
            within = _Library([], *kind, wide, frozenset({0}))
            within.beside = self._library.beside
            within.beside[turn] = within.function(one, turn)
        for row in (*callee.tables.read, *callee.tables.replaced):
            places = places_of(row)
            self._library.beside[places.name] = places
        return loop_function(callee, shared, turn, *kind)

    def _argument(self, number: int) -> tuple[int, int]:
        """Which argument has an input, and its number there."""
        array = int(np.searchsorted(self._starts, number, side="right")) - 1
        return array, number - int(self._starts[array])

    def _in_memory(self, nodes: tuple[int, ...]) -> Operand | None:
        if not nodes or not are_consecutive(self._graph, nodes):
            return None
        operation, (first, *rest) = self._graph.nodes[nodes[0]]
        if operation == CONSTANT:
            return self._constants(nodes) if len(nodes) >= LARGE else None
        if operation == INPUT:
            array, j = self._argument(first)
            inside = j + len(nodes) <= self._sizes[array]
            shared = self._shared[array]
            return Operand(self._place(f"%a{array}_", j, shared), shared) if inside else None
        places, number = self._results[first], rest[0]
        pointer, j = places[number]
        inside = places[number + len(nodes) - 1][0] == pointer
        return Operand(self._place(pointer, j), False) if inside else None

    def _constants(self, nodes: tuple[int, ...]) -> Operand:
        """Known numbers, which all lanes share."""
        values = [float(self._graph.nodes[x].arguments[0]) for x in nodes]
        text = ", ".join(f"{self.scalar} {self.constant(self.scalar, x)}" for x in values)
        name = f"@numbers_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        kind = f"[{len(values)} x {self.scalar}]"
        content = f"{name} = internal unnamed_addr constant {kind} [{text}], align {ALIGNMENT}"
        self._library.beside[name] = Definition(name, content)
        return Operand(name, True)

    def _stored(self, nodes, register) -> str:
        if nodes not in self._known:
            room = self.room(len(nodes))
            for start, stop in runs(self._graph, nodes):
                source = self._in_memory(nodes[start:stop]) if stop - start >= COPIED else None
                if source is not None and not source.shared:
                    self.copy_vectors(source.pointer, self._place(room, start), stop - start)
                    continue
                if stop - start >= COPIED and len(set(nodes[start:stop])) == 1:
                    value = register(nodes[start])
                    with self.turns(start, stop) as turns:
                        self.store(self.vector, value, self.place(self.vector, room, turns.index))
                    continue
                for j in range(start, stop):
                    self.store(self.vector, register(nodes[j]), self._place(room, j))
            self._known[nodes] = room
        return self._known[nodes]

    def _load(self, pointer: str, j: int, shared: bool = False) -> str:
        place = self._place(pointer, j, shared)
        if shared:
            return self.repeated(self.load(self.scalar, place))
        return self.load(self.vector, place)

    def _place(self, pointer: str, j: int, shared: bool = False) -> str:
        return self.place(self.scalar if shared else self.vector, pointer, j)
