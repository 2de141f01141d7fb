"""Loops over turns of one program, as functions on arrays in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Number
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.long_loops import Loop


def loop_name(loop: Loop, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"{loop.name}_{''.join('s' if x else 'v' for x in shared)}"


def loop_function(
    loop: Loop, shared: tuple[bool, ...], turn: str, width: int, dtype: Any
) -> Definition:
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
    w = _LoopWriter(loop, shared, width, dtype)
    w.write(turn)
    inputs = [f"ptr noalias %a{i}_" for i in range(len(shared))]
    outputs = [f"ptr noalias %r{i}_" for i in range(len(loop.results))]
    return w.define(loop_name(loop, shared), ", ".join([*inputs, *outputs]), attributes="noinline ")


class _LoopWriter(Writer):
    def __init__(self, loop: Loop, shared: tuple[bool, ...], width: int, dtype: Any):
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
        for i, room in enumerate(old):
            self.copy_vectors(f"%a{first + i}_", room, self._inputs[first + i])
        with self._rows(old) as at:
            pointers = [
                *(f"%a{i}_" for i in range(first)),
                *old,
                *(self._row_of_argument(i, at) for i in range(rows, len(self._inputs))),
                *new,
                *(self._row_of_result(i, at) for i in range(loop.handed, len(self._outputs))),
            ]
            self.invoke("void", turn, *(f"ptr {x}" for x in pointers))
            for source, target, size in zip(new, old, self._outputs, strict=False):
                self.copy_vectors(source, target, size)
        for i, room in enumerate(old):
            self.copy_vectors(room, f"%r{i}_", self._outputs[i])

    @contextmanager
    def _rows(self, handed: list[str]) -> Iterator[str]:
        """Turns of the loop: numbers of their rows; one that is open-ended has none."""
        length = self._loop.length
        if length is None:
            with self.while_(lambda: self._wanted(handed[-1])):
                yield ""
            return
        with self.turns(0, length) as turns:
            reverse = self._loop.reverse
            yield (
                self.put("i64", f"sub i64 {length - 1}, {turns.index}") if reverse else turns.index
            )

    def _wanted(self, place: str) -> Condition:
        """Whether a number is not zero in any lane."""
        return Number(self, self.load(self.vector, place)).differs(0.0).anywhere()

    def _row(self, kind: str, pointer: str, at: str, size: int) -> str:
        return self.place(kind, pointer, self.put("i64", f"mul i64 {at}, {size}"))

    def _row_of_result(self, i: int, at: str) -> str:
        return self._row(self.vector, f"%r{i}_", at, self._outputs[i])

    def _row_of_argument(self, i: int, at: str) -> str:
        """Numbers that all lanes share become vectors."""
        size, pointer = self._inputs[i], f"%a{i}_"
        if not self._shared[i]:
            return self._row(self.vector, pointer, at, size)
        source, room = self._row(self.scalar, pointer, at, size), self.room(size)
        for j in range(size):
            value = self.repeated(self.load(self.scalar, self.place(self.scalar, source, j)))
            self.store(self.vector, value, self.place(self.vector, room, j))
        return room
