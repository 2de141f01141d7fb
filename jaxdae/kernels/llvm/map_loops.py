"""Operations on each of many numbers as loops of vector instructions."""

import numpy as np

from jaxdae.kernels.graph.maps import ARITHMETIC, Map
from jaxdae.kernels.llvm.emission import instruction
from jaxdae.kernels.llvm.machine_code import host_width
from jaxdae.kernels.llvm.mathematics import vector_math
from jaxdae.kernels.llvm.vectors import Vector
from jaxdae.kernels.llvm.writer import Writer


def map_name(one: Map, shared: tuple[bool, ...]) -> str:
    """Name of the function for arguments of which all lanes share some."""
    return f"map_{one.operation}_{'_'.join(one.kinds(shared))}"


def map_text(one: Map, shared: tuple[bool, ...], width: int, dtype) -> str:
    """The function `@name(pointer to each argument, pointer to the values, how many)`.

    A single lane takes many numbers at a time, and then the rest one by one.

    Args:
        one: the operation.
        shared: for each argument, whether it is numbers that all lanes share, and not vectors.
        width: entries of a vector.
        dtype: float64 or float32.
    """
    wide = width if width > 1 else host_width(8 * np.dtype(dtype).itemsize)
    kinds = one.kinds(shared)
    given = "".join(f"ptr noalias %a{i}_, " for i in range(len(kinds)))
    loops = [_Turns(one.operation, kinds, width, wide, dtype)]
    if wide > width:
        loops.append(_Turns(one.operation, kinds, width, width, dtype))
    head = f"define internal void @{map_name(one, shared)}({given}ptr noalias %r_, i64 %count)"
    declared = sorted({line for w in loops for line in w.declared})
    lines = [line for w in loops for line in w.lines]
    return "\n".join([*declared, f"{head} noinline {{", "entry:", *lines, "  ret void", "}"])


class _Turns(Writer):
    """A loop over vectors of so many numbers; of one number each, the second loop of a function."""

    def __init__(self, operation: str, kinds: tuple[str, ...], lanes: int, wide: int, dtype):
        super().__init__(wide, dtype)
        second = lanes < wide or lanes > 1
        self._lanes, self._loop = lanes, "many" if second else "rest"
        self._write(operation, kinds, "entry" if second else "many.done")

    def _write(self, operation: str, kinds: tuple[str, ...], before: str) -> None:
        at, first = self._loop, "0" if before == "entry" else "%many.after"
        self.line(f"  %{at}.stop = sdiv i64 %count, {self.width // self._lanes}")
        self.line(f"  br label %{at}.test")
        self.line(f"{at}.test:")
        self.line(f"  %{at}.i = phi i64 [ {first}, %{before} ], [ %{at}.next, %{at} ]")
        self.line(f"  %{at}.more = icmp slt i64 %{at}.i, %{at}.stop")
        self.line(f"  br i1 %{at}.more, label %{at}, label %{at}.done")
        self.line(f"{at}:")
        given = [self._read(f"%a{i}_", kind) for i, kind in enumerate(kinds)]
        value, place = self._value(operation, given), self._place("%r_", self.vector)
        self.line(f"  store {self.vector} {value}, ptr {place}, align {self._align}")
        self.line(f"  %{at}.next = add i64 %{at}.i, 1")
        self.line(f"  br label %{at}.test")
        self.line(f"{at}.done:")
        # Where those that are left begin, which are taken one by one.
        self.line(f"  %{at}.after = mul i64 %{at}.stop, {self.width}")

    @property
    def _align(self) -> int:
        return self.bits // 8

    def name(self) -> str:
        """A new register, apart from those of the other loop."""
        return f"{super().name()}.{self._loop}"

    def _place(self, pointer: str, kind: str) -> str:
        return self.put(f"getelementptr {kind}, ptr {pointer}, i64 %{self._loop}.i")

    def _read(self, pointer: str, kind: str) -> str:
        if kind == "every" or (kind == "shared" and self._lanes == 1):
            place = self._place(pointer, self.vector)
            return self.put(f"load {self.vector}, ptr {place}, align {self._align}")
        if kind == "one" and self._lanes == self.width:
            return self.put(f"load {self.vector}, ptr {pointer}, align {self._align}")
        place = pointer if kind == "one" else self._place(pointer, self.scalar)
        return self.repeated(self.put(f"load {self.scalar}, ptr {place}"))

    def _value(self, operation: str, given: list[str]) -> str:
        if operation in ARITHMETIC:
            return instruction(self, operation, given, False)
        return vector_math.body(operation)(*(Vector(self, x) for x in given))[0].register
