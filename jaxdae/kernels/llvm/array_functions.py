"""Scalar programs as functions on arrays in memory, one vector for each number."""

import hashlib
from collections import Counter

import numpy as np

from jaxdae.kernels.graph.dense_products import are_consecutive, LARGE, Product
from jaxdae.kernels.graph.expressions import CONSTANT, INPUT
from jaxdae.kernels.graph.maps import Map
from jaxdae.kernels.llvm.dense_loops import product_name, product_text
from jaxdae.kernels.llvm.emission import emit, functions
from jaxdae.kernels.llvm.long_loops import loop_name, loop_text
from jaxdae.kernels.llvm.machine_code import host_width
from jaxdae.kernels.llvm.map_loops import map_name, map_text
from jaxdae.kernels.llvm.mathematics import vector_math
from jaxdae.kernels.llvm.placement import COPIED, Operand, placed, runs
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.long_loops import Loop
from jaxdae.kernels.tracing.subprograms import called, Shared, Subprogram

# Operations that a small program and all its copies in those that call it may have.
_INLINED = 1536


Fast = dict[Subprogram, bool]
Callee = Subprogram | Product | Loop | Map


def library(programs: list[Subprogram], width: int, dtype, shared: Shared = frozenset()) -> str:
    """Text of the functions of programs, of all that they call, and of elementary functions.

    Each program becomes a function `@name(pointer of each argument, pointer of each result)`. An
    array of `k` numbers is `k` vectors, one after the other.

    Args:
        programs: what is to be had by name.
        width: entries of a vector.
        dtype: float64 or float32.
        shared: parameters that are given as numbers for all lanes, one after the other, and not as
            vectors.

    Returns:
        Definitions in LLVM's intermediate language.
    """
    # By their names: equal loops in several programs have turns of one name.
    named: dict[str, Subprogram] = {}
    for one in programs:
        for own in (*called(one.program), one):
            named.setdefault(own.name, own)
    every = list(named.values())
    elementary = dict.fromkeys(name for one in every for name in functions(one.program))
    fast = fast_versions(every, width)
    near = [x for x in elementary if fast and x in vector_math.LIMITED]
    beside: dict[str, str] = {}
    own = [_function(one, width, dtype, shared, fast, beside) for one in every]
    return "\n\n".join(
        [
            *(vector_math.function(name, width, dtype) for name in elementary),
            *(vector_math.near_function(name, width, dtype) for name in near),
            *beside.values(),
            *own,
        ]
    )


def fast_versions(every: list[Subprogram], width: int) -> dict[Subprogram, bool]:
    """Programs that have a fast version too, and whether it becomes part of those that call it.

    It is one straight line, without branches to the C library for large arguments. Where there is
    such an argument, the program is done once more with care: `@name` calls `@name.near`, which
    returns the largest argument, and then perhaps `@name.careful`.

    Args:
        every: programs, each after those that it calls.
        width: entries of a vector; a single lane gains too little to be compiled twice.

    Returns:
        What has a fast version.
    """
    found: dict[Subprogram, bool] = {}
    calls = Counter(x for one in every for x in one.program.graph.calls(one.program.outputs))
    for one in every if width > 1 else ():
        callees = one.program.graph.callees(one.program.outputs)
        if any(isinstance(x, Product | Loop | Map) for x in callees):
            continue  # most of its time is theirs, and it is long to compile
        limited = not set(vector_math.LIMITED).isdisjoint(functions(one.program))
        if one.entries is None and (limited or any(x in found for x in called(one.program))):
            size = len(one.program.graph.needed(one.program.outputs))
            found[one] = 0 < size * calls[one] <= _INLINED
    return found


def _function(
    one: Subprogram, width: int, dtype, shared: Shared, fast: Fast, beside: dict[str, str]
) -> str:
    """The function of a program, or of its versions; products that it calls come beside."""
    if one.entries is None:
        w = _FunctionWriter(one, width, dtype, shared)
        careful = w.straight(), w.declared
        beside.update(w.beside)
    else:
        careful = _looped(one, width, dtype)
    if one not in fast:
        return _definition(one, "void", one.name, *careful)
    w = _FastWriter(one, width, dtype, shared, fast)
    lines, far = w.fast()
    beside.update(w.beside)
    inline = "alwaysinline " if fast[one] else ""
    return "\n".join(
        [
            _definition(one, w.vector, f"{one.name}.near", lines, w.declared, far, inline),
            _definition(one, "void", f"{one.name}.careful", *careful, attributes="cold noinline "),
            _definition(one, "void", one.name, *_choice(one, width, dtype)),
        ]
    )


def _parameters(one: Subprogram) -> str:
    arguments = [f"ptr noalias %a{i}_" for i in range(len(one.program.inputs))]
    return ", ".join(
        [*arguments, *(f"ptr noalias %r{i}_" for i in range(len(one.program.results)))]
    )


def _definition(
    one: Subprogram, kind: str, name: str, lines, declared, result: str = "", attributes: str = ""
) -> str:
    head = f"define internal {kind} @{name}({_parameters(one)}) {attributes}{{\nentry:"
    return "\n".join([*sorted(declared), head, *lines, f"  ret {kind} {result}", "}"])


def _choice(one: Subprogram, width: int, dtype) -> tuple[list[str], set[str]]:
    """The fast version, and the careful one where that is wrong."""
    w, given = Writer(width, dtype), _parameters(one)
    far = vector_math.is_far(w, w.put(f"call {w.vector} @{one.name}.near({given})"))
    w.line(f"  br i1 {far}, label %far, label %end")
    w.line("far:")
    w.line(f"  call void @{one.name}.careful({given})")
    w.line("  br label %end")
    w.line("end:")
    return w.lines, w.declared


def _looped(one: Subprogram, width: int, dtype) -> tuple[list[str], set[str]]:
    """The same for each entry; of one lane, many entries at a time and then the rest."""
    assert one.entries is not None
    wide = width if width > 1 else host_width(8 * np.dtype(dtype).itemsize)
    many = one.entries if width > 1 else one.entries // wide
    first, declared = _loop(one, width, wide, dtype, 0, many, "many")
    if width > 1 or many * wide == one.entries:
        return first, declared
    rest, _ = _loop(one, width, 1, dtype, many * wide, one.entries, "rest")
    return first + rest, declared


def _loop(one: Subprogram, width: int, wide: int, dtype, start: int, stop: int, name: str):
    """Turns of a loop over vectors of `wide` numbers, whether they are lanes or entries."""
    if start == stop:
        return [], set()
    w = _EntryWriter(one, width, wide, dtype, name)
    w.line(f"  br label %{name}.before")
    w.line(f"{name}.before:")
    w.line(f"  br label %{name}")
    w.line(f"{name}:")
    w.line(f"  %{name}.i = phi i64 [ {start}, %{name}.before ], [ %{name}.next, %{name} ]")
    for i, register in enumerate(emit(w, one.program, w.input)):
        w.line(f"  store {w.vector} {register}, ptr {w.place(f'%r{i}_')}, align {w.bits // 8}")
    w.line(f"  %{name}.next = add i64 %{name}.i, 1")
    w.line(f"  %{name}.more = icmp slt i64 %{name}.next, {stop}")
    w.line(f"  br i1 %{name}.more, label %{name}, label %{name}.done")
    w.line(f"{name}.done:")
    return w.lines, w.declared


class _EntryWriter(Writer):
    """A writer of what is done for each entry of arrays."""

    def __init__(self, one: Subprogram, width: int, wide: int, dtype, name: str):
        super().__init__(wide, dtype)
        self._one, self._lanes, self._loop = one, width, name

    def name(self) -> str:
        """A new register, apart from those of other loops."""
        return f"{super().name()}.{self._loop}"

    def place(self, pointer: str) -> str:
        """Where the entries of this turn are."""
        return self.put(f"getelementptr {self.vector}, ptr {pointer}, i64 %{self._loop}.i")

    def input(self, number: int) -> str:
        """Register that holds an argument's entries, or its one number."""
        pointer, align = f"%a{number}_", self.bits // 8
        if self._one.looped[number]:
            return self.put(f"load {self.vector}, ptr {self.place(pointer)}, align {align}")
        if self._lanes == self.width:
            return self.put(f"load {self.vector}, ptr {pointer}")
        return self.repeated(self.put(f"load {self.scalar}, ptr {pointer}"))


class _FunctionWriter(Writer):
    """A writer that knows where arguments are, and keeps room for those of calls."""

    def __init__(self, one: Subprogram, width: int, dtype, shared: Shared):
        super().__init__(width, dtype)
        self._program, self._graph, self._parameters = one.program, one.program.graph, shared
        self._sizes = [int(np.prod(x.shape)) for x in one.program.inputs]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._shared = one.shared(shared)
        # Where arrays are in memory that were stored for a call, by the nodes of their entries.
        self._known: dict[tuple[int, ...], str] = {}
        self._results: dict[int, list[tuple[str, int]]] = {}
        self._places = placed(one.program, self._shared)
        self.written = self._places.written
        # Products and constants that are called by their names.
        self.beside: dict[str, str] = {}

    def straight(self, far: list[str] | None = None) -> list[str]:
        """Lines of the whole program."""
        found = emit(self, self._program, self.input, self, far)
        at = 0
        for i, result in enumerate(self._program.results):
            for j in range(int(np.prod(result.shape))):
                if at not in self.written:
                    self.store(found[at], f"%r{i}_", j)
                at += 1
        for x in self._places.runs:
            source = self._found(x.nodes)
            assert source is not None
            self.copy(source.pointer, self._place(f"%r{x.result}_", x.start), len(x.nodes))
        return self.lines

    def input(self, number: int) -> str:
        """Register that holds an input."""
        array, j = self._argument(number)
        return self._load(f"%a{array}_", j, self._shared[array])

    def write(self, node: int, callee: Callee, arguments, register) -> None:
        """Call a function. What is in memory already is not copied."""
        found = [self._operand(x, register) for x in arguments]
        shared = self._accepted(callee, [x.shared for x in found])
        for i, nodes in enumerate(arguments):
            if shared[i] != found[i].shared:
                found[i] = Operand(self._stored(nodes, register), False)
        name = self._function(callee, shared)
        sizes = [int(np.prod(x.shape)) for x in callee.results]
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        rooms = [
            self._places.direct.get((node, start)) or self.room(size)
            for start, size in zip(starts, sizes, strict=True)
        ]
        given = ", ".join(f"ptr {x}" for x in [*(x.pointer for x in found), *rooms])
        self.call(callee, name, given)
        self._results[node] = [(p, j) for p, n in zip(rooms, sizes, strict=True) for j in range(n)]

    def call(self, callee: Callee, name: str, given: str) -> None:
        """Write the call itself."""
        count = f", i64 {callee.size}" if isinstance(callee, Map) else ""
        self.line(f"  call void @{name}({given}{count})")

    def result(self, node: int, number: int) -> str:
        """Register that holds a result of a call."""
        return self._load(*self._results[node][number])

    def _accepted(self, callee: Callee, shared: list[bool]) -> tuple[bool, ...]:
        """Which arguments a function takes as numbers that all lanes share."""
        if isinstance(callee, Subprogram):
            return tuple(callee.shared(self._parameters))
        if isinstance(callee, Loop):  # what is handed on changes, and differs
            handed = range(callee.constants, callee.constants + callee.handed)
            return tuple(x and i not in handed for i, x in enumerate(shared))
        if isinstance(callee, Map):
            return tuple(x and not one for x, one in zip(shared, callee.single, strict=True))
        return tuple(shared)

    def _function(self, callee: Callee, shared: tuple[bool, ...]) -> str:
        """Name of the function that is called, which is written where it is not of a program."""
        if isinstance(callee, Product):
            name = product_name(callee, shared)
            if name not in self.beside:
                self.beside[name] = product_text(callee, shared, self.width, self.dtype)
            return name
        if isinstance(callee, Map):
            name = map_name(callee, shared)
            self.beside[name] = map_text(callee, shared, self.width, self.dtype)
            return name
        return self._loop(callee, shared) if isinstance(callee, Loop) else callee.name

    def _loop(self, loop: Loop, shared: tuple[bool, ...]) -> str:
        name, turn = loop_name(loop, shared), loop.turn.name
        if name in self.beside:
            return name
        constants = tuple(x for i, x in enumerate(shared) if i < loop.constants)
        if any(constants):
            turn = f"{turn}_{name.rsplit('_', 1)[1]}"
            numbers = tuple(0 if x else None for x in constants)
            rest = (None,) * (len(shared) - len(constants))
            own = Subprogram(turn, loop.turn.program, parameters=(*numbers, *rest))
            text = _function(own, self.width, self.dtype, frozenset({0}), {}, self.beside)
            self.beside[turn] = text
        self.beside[name] = loop_text(loop, shared, turn, self.width, self.dtype)
        return name

    def _argument(self, number: int) -> tuple[int, int]:
        """Which argument has an input, and its number there."""
        array = int(np.searchsorted(self._starts, number, side="right")) - 1
        return array, number - int(self._starts[array])

    def _operand(self, nodes: tuple[int, ...], register) -> Operand:
        """Where an array is in memory; stored there, if it is not yet."""
        return self._found(nodes) or Operand(self._stored(nodes, register), False)

    def _found(self, nodes: tuple[int, ...]) -> Operand | None:
        if not nodes or not are_consecutive(self._graph, nodes):
            return None
        operation, own = self._graph.nodes[nodes[0]]
        if operation == CONSTANT:
            return self._constants(nodes) if len(nodes) >= LARGE else None
        if operation == INPUT:
            array, j = self._argument(own[0])
            inside = j + len(nodes) <= self._sizes[array]
            shared = self._shared[array]
            return Operand(self._place(f"%a{array}_", j, shared), shared) if inside else None
        places = self._results[own[0]]
        pointer, j = places[own[1]]
        inside = places[own[1] + len(nodes) - 1][0] == pointer
        return Operand(self._place(pointer, j), False) if inside else None

    def _constants(self, nodes: tuple[int, ...]) -> Operand:
        """Known numbers, which all lanes share."""
        values = [float(self._graph.nodes[x].arguments[0]) for x in nodes]
        text = ", ".join(f"{self.scalar} {self.literal(x)}" for x in values)
        name = f"@numbers_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        kind = f"[{len(values)} x {self.scalar}]"
        self.beside[name] = f"{name} = internal unnamed_addr constant {kind} [{text}], align 64"
        return Operand(name, True)

    def _stored(self, nodes, register) -> str:
        if nodes not in self._known:
            room = self.room(len(nodes))
            for start, stop in runs(self._graph, nodes):
                found = self._found(nodes[start:stop]) if stop - start >= COPIED else None
                if found is not None and not found.shared:
                    self.copy(found.pointer, self._place(room, start), stop - start)
                    continue
                for j in range(start, stop):
                    self.store(register(nodes[j]), room, j)
            self._known[nodes] = room
        return self._known[nodes]

    def _load(self, pointer: str, j: int, shared: bool = False) -> str:
        place = self._place(pointer, j, shared)
        if shared:
            return self.repeated(self.put(f"load {self.scalar}, ptr {place}"))
        return self.put(f"load {self.vector}, ptr {place}")

    def store(self, register: str, pointer: str, j: int) -> None:
        """Store a vector as the number `j` of an array."""
        self.line(f"  store {self.vector} {register}, ptr {self._place(pointer, j)}")

    def _place(self, pointer: str, j: int, shared: bool = False) -> str:
        kind = self.scalar if shared else self.vector
        return self.put(f"getelementptr {kind}, ptr {pointer}, i64 {j}")


class _FastWriter(_FunctionWriter):
    """A writer of a fast version, which knows how far arguments of functions are."""

    def __init__(self, one: Subprogram, width: int, dtype, shared: Shared, fast: Fast):
        super().__init__(one, width, dtype, shared)
        self._fast = fast
        self._far: list[str] = []

    def fast(self) -> tuple[list[str], str]:
        """Lines of the whole program, and the register of how far its arguments are."""
        lines = self.straight(self._far)
        return lines, vector_math.farthest(self, self._far)

    def call(self, callee: Callee, name: str, given: str) -> None:
        """Write the call itself: of the fast version, where there is one."""
        if callee not in self._fast:
            super().call(callee, name, given)
        else:
            self._far.append(self.put(f"call {self.vector} @{name}.near({given})"))
