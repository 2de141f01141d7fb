"""Loops over turns of one program, as functions on arrays in memory."""

import numpy as np

from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.long_loops import Loop


def loop_name(loop: Loop, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"{loop.name}_{''.join('s' if x else 'v' for x in shared)}"


def loop_text(loop: Loop, shared: tuple[bool, ...], turn: str, width: int, dtype) -> str:
    """The function `@name(pointer of each argument, pointer of each result)`.

    Args:
        loop: what is turned.
        shared: for each argument, whether it is numbers that all lanes share, and not vectors.
        turn: name of the function of one turn, which takes constants as they are given here, and
            everything else as vectors.
        width: entries of a vector.
        dtype: float64 or float32.

    Returns:
        Its definition.
    """
    w = _Turns(loop, shared, width, dtype)
    w.write(turn)
    inputs = ", ".join(f"ptr noalias %a{i}_" for i in range(len(shared)))
    outputs = ", ".join(f"ptr noalias %r{i}_" for i in range(len(loop.results)))
    given = ", ".join(x for x in (inputs, outputs) if x)
    head = f"define internal void @{loop_name(loop, shared)}({given}) noinline {{\nentry:"
    return "\n".join([*sorted(w.declared), head, *w.lines, "  ret void", "}"])


class _Turns(Writer):
    def __init__(self, loop: Loop, shared: tuple[bool, ...], width: int, dtype):
        super().__init__(width, dtype)
        self._loop, self._shared = loop, shared
        program = loop.turn.program
        self._inputs = [int(np.prod(x.shape)) for x in program.inputs]
        self._outputs = [int(np.prod(x.shape)) for x in program.results]

    def write(self, turn: str) -> None:
        """Turn after turn: what is handed on is copied from the results of the last one."""
        loop, first = self._loop, self._loop.constants
        rows = first + loop.handed
        old = [self.room(x) for x in self._inputs[first:rows]]
        new = [self.room(x) for x in self._outputs[: loop.handed]]
        spread = {i: self.room(self._inputs[i]) for i in self._shared_rows()}
        for i, room in enumerate(old):
            self.copy(f"%a{first + i}_", room, self._inputs[first + i])
        self.line("  br label %turn")
        self.line("turn:")
        self.line("  %i = phi i64 [ 0, %entry ], [ %next, %turn ]")
        at = self.put(f"sub i64 {loop.length - 1}, %i") if loop.reverse else "%i"
        given = [f"%a{i}_" for i in range(first)] + old
        for i in range(rows, len(self._inputs)):
            place = self._row(f"%a{i}_", at, self._inputs[i], self._shared[i])
            given.append(self._spread(place, spread[i], self._inputs[i]) if i in spread else place)
        given += new
        for i in range(loop.handed, len(self._outputs)):
            given.append(self._row(f"%r{i}_", at, self._outputs[i], False))
        self.line(f"  call void @{turn}({', '.join(f'ptr {x}' for x in given)})")
        for source, target, size in zip(new, old, self._outputs, strict=False):
            self.copy(source, target, size)
        self.line("  %next = add i64 %i, 1")
        self.line(f"  %more = icmp slt i64 %next, {loop.length}")
        self.line("  br i1 %more, label %turn, label %done")
        self.line("done:")
        for i, room in enumerate(old):
            self.copy(room, f"%r{i}_", self._outputs[i])

    def _shared_rows(self) -> list[int]:
        first = self._loop.constants + self._loop.handed
        return [i for i in range(first, len(self._inputs)) if self._shared[i]]

    def _row(self, pointer: str, at: str, size: int, shared: bool) -> str:
        kind = self.scalar if shared else self.vector
        return self.put(
            f"getelementptr {kind}, ptr {pointer}, i64 {self.put(f'mul i64 {at}, {size}')}"
        )

    def _spread(self, source: str, room: str, size: int) -> str:
        """Numbers that all lanes share, as vectors."""
        for j in range(size):
            place = self.put(f"getelementptr {self.scalar}, ptr {source}, i64 {j}")
            value = self.repeated(self.put(f"load {self.scalar}, ptr {place}"))
            target = self.put(f"getelementptr {self.vector}, ptr {room}, i64 {j}")
            self.line(f"  store {self.vector} {value}, ptr {target}")
        return room
