"""Scalar programs as functions on arrays in memory, one vector for each number."""

from collections import Counter

import numpy as np

from jaxdae.kernels import vector_math
from jaxdae.kernels.calls import called, Subprogram
from jaxdae.kernels.emission import emit, functions
from jaxdae.kernels.graph import INPUT
from jaxdae.kernels.machine_code import host_width
from jaxdae.kernels.trace import ScalarProgram
from jaxdae.kernels.writer import Writer

# Operations that a small program and all its copies in those that call it may have.
_INLINED = 1536


def library(programs: list[Subprogram], width: int, dtype) -> str:
    """Text of the functions of programs, of all that they call, and of elementary functions.

    Each program becomes a function `@name(pointer of each argument, pointer of each result)`. An
    array of `k` numbers is `k` vectors, one after the other.

    Args:
        programs: what is to be had by name.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Definitions in LLVM's intermediate language.
    """
    every: dict[Subprogram, None] = {}
    for one in programs:
        every.update(dict.fromkeys([*called(one.program), one]))
    elementary = dict.fromkeys(name for one in every for name in functions(one.program))
    fast = fast_versions(list(every), width)
    near = [x for x in elementary if fast and x in vector_math.LIMITED]
    return "\n\n".join(
        [
            *(vector_math.function(name, width, dtype) for name in elementary),
            *(vector_math.near_function(name, width, dtype) for name in near),
            *(_function(one, width, dtype, fast) for one in every),
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
        limited = not set(vector_math.LIMITED).isdisjoint(functions(one.program))
        if one.entries is None and (limited or any(x in found for x in called(one.program))):
            size = len(one.program.graph.needed(one.program.outputs))
            found[one] = 0 < size * calls[one] <= _INLINED
    return found


def _function(one: Subprogram, width: int, dtype, fast: dict[Subprogram, bool]) -> str:
    """The function of a program, or of its versions."""
    careful = (_straight if one.entries is None else _looped)(one, width, dtype)
    if one not in fast:
        return _definition(one, "void", one.name, *careful)
    w = _FastWriter(one.program, width, dtype, fast)
    lines, far = w.fast()
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


def _straight(one: Subprogram, width: int, dtype) -> tuple[list[str], set[str]]:
    w = _FunctionWriter(one.program, width, dtype)
    return w.straight(), w.declared


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

    def __init__(self, program: ScalarProgram, width: int, dtype):
        super().__init__(width, dtype)
        self._program = program
        self._sizes = [int(np.prod(x.shape)) for x in program.inputs]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        # Where arrays are in memory, by the nodes of their entries.
        self._known: dict[tuple[int, ...], str] = {}
        self._results: dict[int, list[tuple[str, int]]] = {}
        inputs = {
            program.graph.nodes[x].arguments[0]: x
            for x in program.graph.needed(program.outputs)
            if program.graph.nodes[x].operation == INPUT
        }
        for i, size in enumerate(self._sizes):
            nodes = tuple(inputs.get(int(self._starts[i]) + j, -1) for j in range(size))
            self._known[nodes] = f"%a{i}_"

    def straight(self, far: list[str] | None = None) -> list[str]:
        """Lines of the whole program."""
        found = iter(emit(self, self._program, self.input, self, far))
        for i, result in enumerate(self._program.results):
            for j in range(int(np.prod(result.shape))):
                self.store(next(found), f"%r{i}_", j)
        return self.lines

    def input(self, number: int) -> str:
        """Register that holds an input."""
        array = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._load(f"%a{array}_", number - int(self._starts[array]))

    def write(self, node: int, callee: Subprogram, arguments, register) -> None:
        """Call a function. What is in memory already is not copied."""
        pointers = [self._known.get(x) or self._stored(x, register) for x in arguments]
        sizes = [int(np.prod(x.shape)) for x in callee.results]
        rooms = [self._room(size) for size in sizes]
        self.call(callee, ", ".join(f"ptr {x}" for x in pointers + rooms))
        self._results[node] = [(p, j) for p, n in zip(rooms, sizes, strict=True) for j in range(n)]
        first = node + 1  # results follow their call
        for room, size in zip(rooms, sizes, strict=True):
            self._known[tuple(range(first, first + size))] = room
            first += size

    def call(self, callee: Subprogram, given: str) -> None:
        """Write the call itself."""
        self.line(f"  call void @{callee.name}({given})")

    def result(self, node: int, number: int) -> str:
        """Register that holds a result of a call."""
        return self._load(*self._results[node][number])

    def _stored(self, nodes, register) -> str:
        room = self._room(len(nodes))
        for j, node in enumerate(nodes):
            self.store(register(node), room, j)
        self._known[nodes] = room
        return room

    def _room(self, size: int) -> str:
        return self.put(f"alloca {self.vector}, i64 {max(size, 1)}, align 64")

    def _load(self, pointer: str, j: int) -> str:
        return self.put(f"load {self.vector}, ptr {self._place(pointer, j)}")

    def store(self, register: str, pointer: str, j: int) -> None:
        """Store a vector as the number `j` of an array."""
        self.line(f"  store {self.vector} {register}, ptr {self._place(pointer, j)}")

    def _place(self, pointer: str, j: int) -> str:
        return self.put(f"getelementptr {self.vector}, ptr {pointer}, i64 {j}")


class _FastWriter(_FunctionWriter):
    """A writer of a fast version, which knows how far arguments of functions are."""

    def __init__(self, program: ScalarProgram, width: int, dtype, fast: dict[Subprogram, bool]):
        super().__init__(program, width, dtype)
        self._fast = fast
        self._far: list[str] = []

    def fast(self) -> tuple[list[str], str]:
        """Lines of the whole program, and the register of how far its arguments are."""
        lines = self.straight(self._far)
        return lines, vector_math.farthest(self, self._far)

    def call(self, callee: Subprogram, given: str) -> None:
        """Write the call itself: of the fast version, where there is one."""
        if callee not in self._fast:
            super().call(callee, given)
        else:
            self._far.append(self.put(f"call {self.vector} @{callee.name}.near({given})"))
