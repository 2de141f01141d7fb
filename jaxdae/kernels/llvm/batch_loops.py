"""Loops over the members of a batch, around functions that work on vectors of them."""

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number, Variable
from jaxdae.kernels.llvm.writer import ALIGNMENT, Writer
from jaxdae.kernels.llvm.xla_interface import BufferLayout

# Where in memory something is: a register. Integers are known, or in registers, too.
Place = str
Index = Integer | int


class Signature(NamedTuple):
    """Axes of the arguments and results of a kernel, those of the batch included."""

    arguments: tuple[int, ...]
    results: tuple[int, ...]


class Lanes(Writer):
    """Writer of `@run(arguments, results, begin, end)`, which serves members of a batch.

    A lane is one entry of the vectors. An array of `k` numbers is kept as `k` vectors, so that its
    number `i` in lane `l` is found at `i width + l`. This is the function of a processor: its
    arguments and results are tables of XLA's buffers.

    Args:
        width: entries of a vector.
        dtype: float64 or float32.
        register_width: numbers that a vector register holds, for loops over entries of one lane.
        signature: of the kernel; what is read from XLA's buffers here, other targets want to know.

    Attributes:
        begin: the first member that is served.
        end: behind the last one.
        stride: distance of members that are served one after the other.
    """

    stride: Index = 1
    # Fixed steps whose states take more than this are kept in part by adjoints, and computed once
    # more [bytes].
    kept_bytes = 2**23

    def __init__(
        self, width: int, dtype: Any, register_width: int = 1, signature: Signature | None = None
    ):
        super().__init__(width, dtype)
        self.register_width, self.signature = register_width, signature
        self.arguments, self.results = "%arguments", "%results"
        self.begin, self.end = self.bounds()

    # How the function is called, and where its arguments lie.

    def bounds(self) -> tuple[Integer, Integer]:
        """The first member, and the end."""
        return Integer(self, "%begin"), Integer(self, "%end")

    def buffer(
        self, table: Place, index: int, first: int, axes: int
    ) -> tuple[Place, list[Integer]]:
        """Data of an argument or result, and lengths of some of its axes."""
        buffer = self.load("ptr", self.place("ptr", table, index))
        data = self.load("ptr", self.field(buffer, BufferLayout.data))
        dimensions = self.load("ptr", self.field(buffer, BufferLayout.dims))
        return data, [self.count(dimensions, Integer(self, str(first + i))) for i in range(axes)]

    def position(self, size: Index, member: Index, i: Index) -> Integer:
        """Where the number `i` of a member is among those of all members."""
        return Integer(self, str(member)) * size + i

    def finish(self) -> Definition:
        """The function."""
        return self.define("run", "ptr %arguments, ptr %results, i64 %begin, i64 %end")

    def minimum(self, a: Integer, b: Integer) -> Integer:
        """The smaller of two integers."""
        return (a < b).choose(a, b)

    def variable(self, value: Index) -> Variable:
        """An integer that changes, set to a value here."""
        return Variable(self, value)

    # Loops.

    @contextmanager
    def loop(self, count: Index) -> Iterator[Integer]:
        """For each integer below a count."""
        with self.turns(0, count) as turns:
            yield Integer(self, turns.index)

    @contextmanager
    def down(self, count: Integer) -> Iterator[Integer]:
        """For each integer below a count, the largest first."""
        with self.loop(count) as i:
            yield count - 1 - i

    # Arrays of lanes.

    def array(self, size: int) -> Place:
        """Room for numbers of all lanes, zero at first."""
        place = self.room(size)
        self.clear(size, place)
        return place

    def counters(self) -> Place:
        """Room for an integer of each lane, zero at first."""
        place = self.room(self.width, "i64")
        for lane in range(self.width):
            self.set_count(0, place, lane)
        return place

    def offset(self, pointer: Place, vectors: Index) -> Place:
        """A place so many vectors further."""
        return self.place(self.vector, pointer, vectors)

    def at(self, array: Place, i: Index, lane: Integer) -> Place:
        """Place of the number `i` of a lane."""
        return self.place(self.scalar, array, lane + i * self.width)

    def get(self, array: Place, lane: Integer, i: Index = 0) -> Number:
        """The number `i` of a lane."""
        return self.read(self.at(array, i, lane))

    def set(self, value: Number | float, array: Place, lane: Integer, i: Index = 0) -> None:
        """Change the number `i` of a lane."""
        self.write(value, self.at(array, i, lane))

    def read(self, place: Place) -> Number:
        """The number at a place."""
        return Number(self, self.load(self.scalar, place), self.scalar)

    def write(self, value: Number | str | float, place: Place) -> None:
        """Change the number at a place."""
        known = isinstance(value, float)
        self.store(self.scalar, self.constant(self.scalar, value) if known else value, place)

    def fill(self, value: Number, array: Place) -> None:
        """Set the first number of all lanes to one value."""
        self.store(self.vector, self.repeated(value), array)

    def count(self, counters: Place, lane: Integer) -> Integer:
        """The integer of a lane."""
        return Integer(self, self.load("i64", self.place("i64", counters, lane)))

    def set_count(self, value: Index, counters: Place, lane: Index) -> None:
        """Change the integer of a lane."""
        self.store("i64", value, self.place("i64", counters, lane))

    def copy(self, size: int, source: Place, target: Place) -> None:
        """Copy the numbers of all lanes."""
        with self.loop(size) as i:
            self._put_vector(self._vector(source, i), target, i)

    def copy_lane(self, size: int, source: Place, target: Place, lane: Integer) -> None:
        """Copy the numbers of one lane."""
        with self.loop(size) as i:
            self.set(self.get(source, lane, i), target, lane, i)

    def add(self, size: int, source: Place, target: Place) -> None:
        """Add the numbers of all lanes to others."""
        with self.loop(size) as i:
            self._put_vector(self._vector(target, i) + self._vector(source, i), target, i)

    def clear(self, size: int, array: Place, value: float = 0.0) -> None:
        """Make the numbers of all lanes zero, or another value."""
        with self.loop(size) as i:
            self._put_vector(self.number(value), array, i)

    def keep(self, size: int, array: Place, wanted: Condition) -> None:
        """Make the numbers of all other lanes zero."""
        with self.loop(size) as i:
            self._put_vector(wanted.choose(self._vector(array, i), 0.0), array, i)

    def nonzero(self, parts: list[tuple[int, Place]]) -> Condition:
        """Which lanes have a number in some arrays, given with their sizes, that is not zero."""
        place = self.room(1, self.integers)
        self.store(self.integers, "zeroinitializer", place)

        def bits() -> Integer:
            return Integer(self, self.load(self.integers, place), self.integers)

        for size, array in parts:
            with self.loop(size) as i:
                without_sign = self._vector(array, i).bits() << 1
                self.store(self.integers, bits() | without_sign, place)
        return bits().differs(0)

    def total(self, array: Place, i: Index) -> Number:
        """The sum of the number `i` of all lanes, from the first to the last."""
        first, *rest = (self.get(array, Integer(self, str(x)), i) for x in range(self.width))
        return sum(rest, first)

    def serves(self, first: Integer, end: Integer) -> Condition:
        """Which lanes serve a member of their own, from the first one of a block and the last.

        Where there are too few members, the last one is served more than once.
        """
        kind = f"<{self.width} x i64>"
        lanes = f"<{', '.join(f'i64 {i}' for i in range(self.width))}>"
        return Integer(self, lanes, kind) < Integer(self, self.repeated(end - first, kind), kind)

    def call(self, name: str, *arrays: Place) -> None:
        """Call a function of arrays."""
        self.invoke("void", name, *(f"ptr {x}" for x in arrays))

    def _vector(self, array: Place, i: Index) -> Number:
        return Number(self, self.load(self.vector, self.offset(array, i)))

    def _put_vector(self, value: Number | str, array: Place, i: Index) -> None:
        self.store(self.vector, value, self.offset(array, i))

    # Memory of unknown size.

    def reserve(self, vectors: Integer) -> tuple[Place, Place]:
        """Room for a number of vectors, to be released: what to release, and the room."""
        size = self._padded(vectors * (self.width * self.bits // 8))
        taken = self.invoke("ptr", "malloc", f"i64 {size}", declared="i64")
        address = Integer(self, self.put("i64", f"ptrtoint ptr {taken} to i64"))
        aligned = self._padded(address) & -ALIGNMENT
        return taken, self.put("ptr", f"inttoptr i64 {aligned} to ptr")

    @contextmanager
    def kept(self, room: Place, start: Index, size: int) -> Iterator[Place]:
        """A place for numbers that are kept in a room, from a number of it on."""
        del size
        yield self.offset(room, start)

    def recalled(self, room: Place, start: Index, size: int) -> Place:
        """A place where numbers are that were kept, as long as nothing else is recalled there."""
        del size
        return self.offset(room, start)

    def missing(self, taken: Place) -> Condition:
        """Whether there was too little memory."""
        return Condition(self, self.put("i1", f"icmp eq ptr {taken}, null"), "i1")

    def release(self, taken: Place) -> None:
        """Give room back."""
        self.invoke("void", "free", f"ptr {taken}", declared="ptr")

    def _padded(self, x: Integer) -> Integer:
        return x + ALIGNMENT


class Buffer:
    """An argument or result: one array for all members of a batch, or one that they share.

    Args:
        lanes: the writer.
        table: pointers of all arguments or results.
        index: its number.
        size: numbers of a member; `None` where it is known only when the function runs.
        rank: axes of the batch; zero for a shared one.
        axes: axes of a member.
    """

    def __init__(
        self, lanes: Lanes, table: Place, index: int, size: int | None, rank: int, axes: int
    ):
        self.lanes, self.shared = lanes, rank == 0
        self.data, self.shape = lanes.buffer(table, index, rank, axes)
        self.size: Any = size
        if size is None:
            self.size = reduce(operator.mul, self.shape)

    def place(self, member: Index, i: Index) -> Place:
        """Place of the number `i` of a member."""
        index = i if self.shared else self.lanes.position(self.size, member, i)
        return self.lanes.place(self.lanes.scalar, self.data, index)

    def read(self, member: Index, i: Index) -> Number:
        """The number `i` of a member."""
        return self.lanes.read(self.place(member, i))

    def write(self, value: Number | str | float, member: Index, i: Index) -> None:
        """Set the number `i` of a member."""
        self.lanes.write(value, self.place(member, i))

    def load(self, size: int, array: Place, lane: Integer, member: Index) -> None:
        """Copy the numbers of a member to a lane."""
        with self.lanes.loop(size) as i:
            self.lanes.set(self.read(member, i), array, lane, i)

    def store(
        self, size: int, array: Place, lane: Integer, member: Index, start: Index = 0
    ) -> None:
        """Copy the numbers of a lane to a member, from a start on."""
        with self.lanes.loop(size) as i:
            self.write(self.lanes.get(array, lane, i), member, i + start)
