"""Loops over the members of a batch, around functions that work on vectors of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir

from jaxdae.kernels.llvm.xla_interface import DATA, DIMENSIONS

POINTER = ir.PointerType()
INTEGER = ir.IntType(64)
TRUTH = ir.IntType(1)
_BYTE = ir.IntType(8)
# Of vectors in memory [bytes]: that of the widest registers.
_ALIGNMENT = 64


def integer(value: int) -> ir.Constant:
    """A constant integer."""
    return ir.Constant(INTEGER, value)


class Lanes:
    """Builder of `@run(arguments, results, begin, end)`, which serves members of a batch.

    A lane is one entry of the vectors. An array of `k` numbers is kept as `k` vectors, so that its
    number `i` in lane `l` is found at `i width + l`.

    Args:
        width: entries of a vector.
        dtype: float64 or float32.
    """

    def __init__(self, width: int, dtype):
        self.width, self.dtype = width, np.dtype(dtype)
        self.scalar = ir.DoubleType() if self.dtype == np.float64 else ir.FloatType()
        self.vector = ir.VectorType(self.scalar, width)
        self.module = ir.Module()
        kind = ir.FunctionType(ir.VoidType(), [POINTER, POINTER, INTEGER, INTEGER])
        function = ir.Function(self.module, kind, "run")
        function.linkage = "internal"
        self.arguments, self.results, self.begin, self.end = function.args
        # What is reserved once stands in a block of its own, before everything else.
        self._entry = function.append_basic_block("entry")
        self._body = function.append_basic_block("body")
        self.b = ir.IRBuilder(self._body)

    def finish(self) -> str:
        """The text of the function."""
        self.b.ret_void()
        ir.IRBuilder(self._entry).branch(self._body)
        # What is declared here is defined, or declared, in other parts of the text.
        return "\n".join(
            x for x in str(self.module).splitlines() if not x.startswith(("target", "declare", ";"))
        )

    # Numbers.

    def number(self, value: float) -> ir.Constant:
        """A constant number."""
        return ir.Constant(self.scalar, value)

    def minimum(self, a, b):
        """The smaller of two integers."""
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    # Loops.

    def variable(self, kind, value):
        """Room for something that changes, set to a value here."""
        place = self._room(kind, 1)
        self.b.store(value, place)
        return place

    def _room(self, kind, count: int):
        place: Any = ir.IRBuilder(self._entry).alloca(kind, integer(count))
        place.align = _ALIGNMENT
        place.type = POINTER  # without the type of what it points at, as all others
        return place

    @contextmanager
    def loop(self, count) -> Iterator[Any]:
        """For each integer below a count, which is one itself or a Python `int`."""
        counter = self.variable(INTEGER, integer(0))
        count = integer(count) if isinstance(count, int) else count

        def goes_on():
            return self.b.icmp_signed("<", self.b.load(counter, typ=INTEGER), count)

        with self.while_(goes_on):
            index = self.b.load(counter, typ=INTEGER)
            yield index
            self.b.store(self.b.add(index, integer(1)), counter)

    @contextmanager
    def down(self, count) -> Iterator[Any]:
        """For each integer below a count, the largest first."""
        with self.loop(count) as i:
            count = integer(count) if isinstance(count, int) else count
            yield self.b.sub(self.b.sub(count, integer(1)), i)

    @contextmanager
    def while_(self, condition: Callable[[], Any]) -> Iterator[None]:
        """As long as a condition holds, which is computed before each turn."""
        test, turn, done = (self.b.append_basic_block(x) for x in ("test", "turn", "done"))
        self.b.branch(test)
        self.b.position_at_end(test)
        self.b.cbranch(condition(), turn, done)
        self.b.position_at_end(turn)
        yield
        self.b.branch(test)
        self.b.position_at_end(done)

    # Arrays of lanes.

    def array(self, size: int):
        """Room for numbers of all lanes, zero at first."""
        place = self._room(self.vector, max(size, 1))
        with self.loop(size) as i:
            self.b.store(ir.Constant(self.vector, None), self.vector_at(place, i))
        return place

    def counters(self):
        """Room for an integer of each lane, zero at first."""
        place = self._room(INTEGER, self.width)
        for lane in range(self.width):
            self.b.store(integer(0), self.b.gep(place, [integer(lane)], source_etype=INTEGER))
        return place

    def vector_at(self, array, i):
        """Place of the number `i` of all lanes."""
        return self.b.gep(array, [i], source_etype=self.vector)

    def at(self, array, i, lane):
        """Place of the number `i` of a lane."""
        index = self.b.add(self.b.mul(i, integer(self.width)), lane)
        return self.b.gep(array, [index], source_etype=self.scalar)

    def get(self, array, lane, i=None):
        """The number `i` of a lane; without `i` the first."""
        return self.b.load(self.at(array, integer(0) if i is None else i, lane), typ=self.scalar)

    def set(self, value, array, lane, i=None) -> None:
        """Change the number `i` of a lane; without `i` the first."""
        self.b.store(value, self.at(array, integer(0) if i is None else i, lane))

    def fill(self, value, array) -> None:
        """Set the first number of all lanes to one value."""
        index = ir.IntType(32)
        one = self.b.insert_element(ir.Constant(self.vector, ir.Undefined), value, index(0))
        everywhere = ir.Constant(ir.VectorType(index, self.width), None)
        self.b.store(self.b.shuffle_vector(one, one, everywhere), self.vector_at(array, integer(0)))

    def count(self, counters, lane):
        """The integer of a lane."""
        return self.b.load(self.b.gep(counters, [lane], source_etype=INTEGER), typ=INTEGER)

    def set_count(self, value, counters, lane) -> None:
        """Change the integer of a lane."""
        self.b.store(value, self.b.gep(counters, [lane], source_etype=INTEGER))

    def copy(self, size: int, source, target) -> None:
        """Copy the numbers of all lanes."""
        with self.loop(size) as i:
            value = self.b.load(self.vector_at(source, i), typ=self.vector)
            self.b.store(value, self.vector_at(target, i))

    def copy_lane(self, size: int, source, target, lane) -> None:
        """Copy the numbers of one lane."""
        with self.loop(size) as i:
            self.set(self.get(source, lane, i), target, lane, i)

    def add(self, size: int, source, target) -> None:
        """Add the numbers of all lanes to others."""
        with self.loop(size) as i:
            place = self.vector_at(target, i)
            more = self.b.load(self.vector_at(source, i), typ=self.vector)
            self.b.store(self.b.fadd(self.b.load(place, typ=self.vector), more), place)

    def clear(self, size: int, array) -> None:
        """Make the numbers of all lanes zero."""
        with self.loop(size) as i:
            self.b.store(ir.Constant(self.vector, None), self.vector_at(array, i))

    def nonzero(self, parts):
        """Which lanes have a number in some arrays, given with their sizes, that is not zero."""
        bits = ir.VectorType(ir.IntType(8 * self._bytes()), self.width)
        found = self.variable(bits, ir.Constant(bits, None))
        sign = ir.Constant(bits, [1] * self.width)
        for size, array in parts:
            with self.loop(size) as i:
                number = self.b.load(self.vector_at(array, i), typ=self.vector)
                rest = self.b.shl(self.b.bitcast(number, bits), sign)
                self.b.store(self.b.or_(self.b.load(found, typ=bits), rest), found)
        return self.b.icmp_unsigned("!=", self.b.load(found, typ=bits), ir.Constant(bits, None))

    def keep(self, size: int, array, wanted) -> None:
        """Make the numbers of all other lanes zero."""
        with self.loop(size) as i:
            place = self.vector_at(array, i)
            value = self.b.load(place, typ=self.vector)
            zero = ir.Constant(self.vector, None)
            self.b.store(self.b.select(wanted, value, zero), place)

    def total(self, array, i):
        """The sum of the number `i` of all lanes, from the first to the last."""
        b = self.b
        values = [self.get(array, integer(lane), i) for lane in range(self.width)]
        total = values[0]
        for value in values[1:]:
            total = b.fadd(total, value)
        return total

    def call(self, name: str, *arrays) -> None:
        """Call a function of arrays."""
        if name not in self.module.globals:
            kind = ir.FunctionType(ir.VoidType(), [POINTER] * len(arrays))
            ir.Function(self.module, kind, name)
        self.b.call(self.module.globals[name], arrays)

    # Memory of unknown size.

    def reserve(self, vectors):
        """Room for a number of vectors, to be released: what to release, and the room."""
        size = self.b.mul(vectors, integer(self.width * self._bytes()))
        taken = self.b.call(self._c("malloc", POINTER, [INTEGER]), [self._padded(size)])
        address = self.b.ptrtoint(taken, INTEGER)
        aligned = self.b.and_(self._padded(address), integer(-_ALIGNMENT))
        return taken, self.b.inttoptr(aligned, POINTER)

    def release(self, taken) -> None:
        """Give room back."""
        self.b.call(self._c("free", ir.VoidType(), [POINTER]), [taken])

    def _padded(self, x):
        return self.b.add(x, integer(_ALIGNMENT))

    def _bytes(self) -> int:
        return 8 if isinstance(self.scalar, ir.DoubleType) else 4

    def _c(self, name: str, result, arguments):
        if name not in self.module.globals:
            ir.Function(self.module, ir.FunctionType(result, arguments), name)
        return self.module.globals[name]

    def offset(self, pointer, vectors):
        """A place so many vectors further."""
        return self.b.gep(pointer, [vectors], source_etype=self.vector)


class Buffer:
    """An argument or result: one array for all members of a batch, or one that they share.

    Args:
        lanes: the builder.
        table: pointers of all arguments or results.
        index: its number.
        size: numbers of a member; `None` where it is known only when the function runs.
        rank: axes of the batch; zero for a shared one.
        own: axes of a member.
    """

    def __init__(self, lanes: Lanes, table, index: int, size: int | None, rank: int, own: int):
        self.lanes, b = lanes, lanes.b
        slot = b.gep(table, [integer(index)], source_etype=POINTER)
        buffer = b.load(slot, typ=POINTER)
        self.shared = rank == 0
        self.data = _field(b, buffer, DATA)
        dimensions = _field(b, buffer, DIMENSIONS)
        self.shape = [
            b.load(b.gep(dimensions, [integer(rank + i)], source_etype=INTEGER), typ=INTEGER)
            for i in range(own)
        ]
        self.size: Any = integer(1) if size is None else integer(size)
        if size is None:
            for x in self.shape:
                self.size = b.mul(self.size, x)

    def place(self, member, i):
        """Place of the number `i` of a member."""
        b = self.lanes.b
        index = i if self.shared else b.add(b.mul(member, self.size), i)
        return b.gep(self.data, [index], source_etype=self.lanes.scalar)

    def read(self, member, i):
        """The number `i` of a member."""
        return self.lanes.b.load(self.place(member, i), typ=self.lanes.scalar)

    def write(self, value, member, i) -> None:
        """Set the number `i` of a member."""
        self.lanes.b.store(value, self.place(member, i))

    def load(self, size: int, array, lane, member) -> None:
        """Copy the numbers of a member to a lane."""
        with self.lanes.loop(size) as i:
            self.lanes.set(self.read(member, i), array, lane, i)

    def store(self, size: int, array, lane, member, start=None) -> None:
        """Copy the numbers of a lane to a member, from a start on."""
        with self.lanes.loop(size) as i:
            at = i if start is None else self.lanes.b.add(start, i)
            self.write(self.lanes.get(array, lane, i), member, at)


def _field(b, buffer, offset: int):
    return b.load(b.gep(buffer, [integer(offset)], source_etype=_BYTE), typ=POINTER)
