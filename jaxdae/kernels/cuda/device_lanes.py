"""Functions for members of a batch as entries of GPU kernels, one member a thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxdae.kernels.cuda.ptx import ENTRY
from jaxdae.kernels.llvm.batch_loops import Index, Lanes, Place, Signature
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer

# Memory that a thread of an adjoint with fixed steps keeps before it computes states anew [bytes].
_KEPT_BYTES = 2**15


class DeviceLanes(Lanes):
    """Writer of the kernel's entry: what `Lanes` is on a processor, with one lane for each thread.

    Parameters are pointers and dimensions by value. Arrays with axes of the batch have these last
    in memory, so that threads beside each other read and write numbers beside each other.
    """

    kept_bytes = _KEPT_BYTES

    signature: Signature

    def bounds(self) -> tuple[Integer, Integer]:
        thread, block, count, blocks = (
            self._special(x) for x in ("tid.x", "ctaid.x", "ntid.x", "nctaid.x")
        )
        self.thread = block * count + thread
        self._threads = self.stride = count * blocks
        self._reserved: Index = 0
        # The one lane of a thread.
        self._alone = Integer(self, "0")
        members = Integer(self, "%members")
        with self.if_then(self.thread >= members):
            # Nothing is read for a thread that has no member.
            self.line("  ret void")
            self.start_block(self.label("never"))
        return self.thread, members

    def buffer(self, table: Place, index: int, first: int, axes: int) -> tuple[Place, list]:
        name = _name(table, index)
        data = self.put("ptr", f"addrspacecast ptr addrspace(1) {name} to ptr")
        return data, [Integer(self, f"{name}_{first + i}") for i in range(axes)]

    def position(self, size: Index, member: Index, i: Index) -> Integer:
        del size
        return self.end * i + member

    def finish(self) -> Definition:
        parameters = [
            *self._parameters(self.arguments, self.signature.arguments, "noalias readonly "),
            # The last one is scratch memory: numbers of each thread.
            *self._parameters(self.results, (*self.signature.results, 2), "noalias "),
            "i64 %members",
        ]
        self.line("  ret void")
        return self.returned("ptx_kernel void", ENTRY, ", ".join(parameters))

    def reserve(self, vectors: Integer) -> tuple[Any, Place]:
        """Room of this thread in the scratch memory: whether there is too little, and the room."""
        base, (_, capacity) = self.buffer(self.results, len(self.signature.results), 0, 2)
        start = self._reserved
        self._reserved = vectors + start
        place = self.place(self.scalar, base, self._threads * start + self.thread)
        return self._reserved > capacity, place

    @contextmanager
    def kept(self, room: Place, start: Index, size: int) -> Iterator[Place]:
        place = self.room(size)
        yield place
        with self.loop(size) as i:
            self.write(self.get(place, self._alone, i), self._of_room(room, i + start))

    def recalled(self, room: Place, start: Index, size: int) -> Place:
        place = self.room(size)
        with self.loop(size) as i:
            self.write(self.read(self._of_room(room, i + start)), self.at(place, i, self._alone))
        return place

    def _of_room(self, room: Place, i: Integer) -> Place:
        """Place of the number `i` of a thread: threads beside each other have it side by side."""
        return self.place(self.scalar, room, self._threads * i)

    def missing(self, taken: Any) -> Condition:
        return taken

    def release(self, taken: Any) -> None:
        """Nothing: the memory is XLA's."""

    def _special(self, name: str) -> Integer:
        """A number that the GPU gives to each thread."""
        value = self.invoke("i32", f"llvm.nvvm.read.ptx.sreg.{name}", declared="")
        return Integer(self, self.put("i64", f"zext i32 {value} to i64"))

    def _parameters(self, table: Place, axes: tuple[int, ...], about: str) -> list[str]:
        names = [_name(table, i) for i in range(len(axes))]
        return [
            text
            for name, count in zip(names, axes, strict=True)
            for text in (
                f"ptr addrspace(1) {about}{name}",
                *(f"i64 {name}_{k}" for k in range(count)),
            )
        ]


def _name(table: Place, index: int) -> str:
    return f"{table}_{index}"
