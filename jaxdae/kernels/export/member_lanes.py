"""An integration as a function of a few runs, whose arrays lie where pointers say."""

from typing import Any, NamedTuple

from jaxdae.kernels.llvm.batch_loops import Index, Lanes, Place
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer


class Given(NamedTuple):
    """An array of each member.

    Args:
        shape: lengths of its axes.
        stride: numbers from one member's to the next one's; zero for one that members share.
    """

    shape: tuple[int, ...]
    stride: int


class _OfMember(NamedTuple):
    """Which number of which member."""

    member: Index
    i: Index


class MemberLanes(Lanes):
    """Writer of `@run(pointer of each argument, pointer of each result, members)`.

    Args:
        width: entries of a vector, one for each of so many members.
        dtype: float64 or float32.
        register_width: numbers that a vector register holds.
        arguments: which are known.
        results: the same of the results.
    """

    def __init__(
        self,
        width: int,
        dtype: Any,
        register_width: int,
        arguments: list[Given],
        results: list[Given],
    ):
        self._given = {"%arguments": arguments, "%results": results}
        self._strides = {
            f"{table}_{i}": x.stride
            for table, every in self._given.items()
            for i, x in enumerate(every)
        }
        super().__init__(width, dtype, register_width)

    def bounds(self) -> tuple[Integer, Integer]:
        return Integer(self, "0"), Integer(self, "%members")

    def buffer(
        self, table: Place, index: int, first: int, axes: int
    ) -> tuple[Place, list[Integer]]:
        del first  # axes of a batch come before those of the shape
        lengths = self._given[table][index].shape[:axes]
        return f"{table}_{index}", [Integer(self, str(x)) for x in lengths]

    def position(self, size: Index, member: Index, i: Index) -> Any:
        del size
        return _OfMember(member, i)

    def place(self, kind: str, pointer: Any, index: Any) -> str:
        if isinstance(index, _OfMember):
            index = Integer(self, str(index.member)) * self._strides[pointer] + index.i
        return super().place(kind, pointer, index)

    def finish(self) -> Definition:
        pointers = [f"ptr noalias {x}" for x in self._strides]
        return self.define("run", ", ".join([*pointers, "i64 %members"]))
