"""Scalar programs as functions on arrays in memory, one vector for each number."""

import numpy as np

from jaxdae.kernels import vector_math
from jaxdae.kernels.calls import called, Subprogram
from jaxdae.kernels.emission import emit, functions
from jaxdae.kernels.trace import ScalarProgram
from jaxdae.kernels.writer import Writer


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
    return "\n\n".join(
        [
            *(vector_math.function(name, width, dtype) for name in elementary),
            *(_function(one, width, dtype) for one in every),
        ]
    )


def _function(one: Subprogram, width: int, dtype) -> str:
    program = one.program
    w = _FunctionWriter(program, width, dtype)
    found = emit(w, program, w.input, w.call)
    at = 0
    for i, result in enumerate(program.results):
        for j in range(int(np.prod(result.shape))):
            w.store(found[at], f"%r{i}_", j)
            at += 1
    arguments = ", ".join(f"ptr noalias %a{i}_" for i in range(len(program.inputs)))
    results = ", ".join(f"ptr noalias %r{i}_" for i in range(len(program.results)))
    head = f"define internal void @{one.name}({arguments}, {results}) {{"
    return "\n".join([*sorted(w.declared), head, *w.lines, "  ret void", "}"])


class _FunctionWriter(Writer):
    """A writer that knows where arguments are, and keeps room for those of calls."""

    def __init__(self, program: ScalarProgram, width: int, dtype):
        super().__init__(width, dtype)
        self._sizes = [int(np.prod(x.shape)) for x in program.inputs]
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)])
        self._rooms: dict[tuple[str, int], str] = {}
        # Node of each input that is used, by its number.
        self._inputs = {
            program.graph.nodes[x].arguments[0]: x
            for x in program.graph.needed(program.outputs)
            if program.graph.nodes[x].operation == "input"
        }

    def input(self, number: int) -> str:
        """Register that holds an input."""
        array = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self._load(f"%a{array}_", number - int(self._starts[array]))

    def call(self, callee: Subprogram, nodes, registers: list[list[str]]) -> list[str]:
        """Call a function; registers of all its results."""
        pointers = [
            self._whole_input(own) or self._stored(f"{callee.name}.{i}", given)
            for i, (own, given) in enumerate(zip(nodes, registers, strict=True))
        ]
        sizes = [int(np.prod(x.shape)) for x in callee.program.results]
        rooms = [self._room(f"{callee.name}!{i}", size) for i, size in enumerate(sizes)]
        self.line(f"  call void @{callee.name}({', '.join(f'ptr {x}' for x in pointers + rooms)})")
        return [self._load(p, j) for p, size in zip(rooms, sizes, strict=True) for j in range(size)]

    def _whole_input(self, nodes) -> str | None:
        """Pointer of an argument of this function that is passed on as it is."""
        for i, size in enumerate(self._sizes):
            start = int(self._starts[i])
            if len(nodes) == size and all(
                self._inputs.get(start + j) == node for j, node in enumerate(nodes)
            ):
                return f"%a{i}_"
        return None

    def _stored(self, name: str, registers: list[str]) -> str:
        room = self._room(name, len(registers))
        for j, register in enumerate(registers):
            self.store(register, room, j)
        return room

    def _room(self, name: str, size: int) -> str:
        if (name, size) not in self._rooms:
            self._rooms[name, size] = self.put(f"alloca {self.vector}, i64 {size}, align 64")
        return self._rooms[name, size]

    def _load(self, pointer: str, j: int) -> str:
        return self.put(f"load {self.vector}, ptr {self._place(pointer, j)}")

    def store(self, register: str, pointer: str, j: int) -> None:
        """Store a vector as the number `j` of an array."""
        self.line(f"  store {self.vector} {register}, ptr {self._place(pointer, j)}")

    def _place(self, pointer: str, j: int) -> str:
        return self.put(f"getelementptr {self.vector}, ptr {pointer}, i64 {j}")
