"""Loops over the entries of arrays, of which a single lane takes as many as a vector holds."""

from collections.abc import Callable
from typing import Any

from jaxdae.kernels.llvm.writer import Writer


class EntryWriter(Writer):
    """A writer of what is done for each entry of arrays.

    Args:
        lanes: entries of the vectors that arrays are made of.
        dtype: float64 or float32.
        register_width: numbers of a vector register.
    """

    def __init__(self, lanes: int, dtype: Any, register_width: int):
        super().__init__(lanes, dtype)
        self._register_width = register_width
        self._lanes, self._entry, self._index = lanes, self.vector, ""

    def for_each(self, count: Any, each: Callable[[], None]) -> None:
        """Write loops over so many entries: of a single lane over vectors, then over the rest."""
        wide = self._register_width if self._lanes == 1 else 1
        stop: Any = 0
        if wide > 1:
            vectors = self.put("i64", f"sdiv i64 {count}, {wide}")
            stop = self.put("i64", f"mul i64 {vectors}, {wide}")
            self.resize(wide)
            self._loop(0, stop, wide, each)
            self.resize(1)
        self._loop(stop, count, 1, each)

    def _loop(self, start: Any, stop: Any, step: int, each: Callable[[], None]) -> None:
        with self.turns(start, stop, step) as turns:
            self._index = turns.index
            each()

    def read(self, pointer: str, kind: str) -> str:
        """An argument in this turn.

        Args:
            pointer: where it is.
            kind: `every` for an array of numbers of every lane, `shared` for one of numbers that
                all lanes share, `one` for a single number of every lane.
        """
        if kind == "every" or (kind == "shared" and self._lanes == 1):
            return self.load(self.vector, self._place(pointer, self._entry), self.bits // 8)
        if kind == "one" and self._lanes == self.width:
            return self.load(self.vector, pointer, self.bits // 8)
        place = pointer if kind == "one" else self._place(pointer, self.scalar)
        return self.repeated(self.load(self.scalar, place))

    def write(self, pointer: str, value: Any) -> None:
        """Store what this turn gives."""
        self.store(self.vector, value, self._place(pointer, self._entry), self.bits // 8)

    def _place(self, pointer: str, kind: str) -> str:
        return self.place(kind, pointer, self._index)
