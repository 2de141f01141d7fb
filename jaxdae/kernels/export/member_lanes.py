"""An integration as a function of one run, whose arrays lie where pointers say."""

from typing import Any

from jaxdae.kernels.llvm.batch_loops import Index, Lanes, Place
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer

# Lengths of the axes of each array.
Shapes = list[tuple[int, ...]]


class MemberLanes(Lanes):
    """Writer of `@run(pointer of each argument, pointer of each result)` for a single run.

    Args:
        dtype: float64 or float32.
        register_width: numbers that a vector register holds.
        arguments: shapes of the arguments, which are known.
        results: shapes of the results.
    """

    def __init__(self, dtype: Any, register_width: int, arguments: Shapes, results: Shapes):
        self._shapes = {"%arguments": arguments, "%results": results}
        super().__init__(1, dtype, register_width)

    def bounds(self) -> tuple[Integer, Integer]:
        return Integer(self, "0"), Integer(self, "1")

    def buffer(
        self, table: Place, index: int, first: int, axes: int
    ) -> tuple[Place, list[Integer]]:
        del first  # axes of a batch, which none of these has
        lengths = self._shapes[table][index][:axes]
        return f"{table}_{index}", [Integer(self, str(x)) for x in lengths]

    def position(self, size: Index, member: Index, i: Index) -> Any:
        del size, member
        return i

    def finish(self) -> Definition:
        names = [f"{table}_{i}" for table, x in self._shapes.items() for i in range(len(x))]
        return self.define("run", ", ".join(f"ptr noalias {x}" for x in names))
