"""Cotangents of the arguments of a run, and what each step of an adjoint adds to them."""

from typing import Any, NamedTuple

from llvmlite import ir

from jaxdae.kernels.llvm.batch_loops import Buffer, integer, Lanes
from jaxdae.kernels.llvm.dense_loops import padded, product_onto, Total, total_text
from jaxdae.kernels.llvm.machine_code import host_width
from jaxdae.kernels.tracing.product_parts import Pieces, Rank


class _Product(NamedTuple):
    """Factors that a step gives, by their arrays.

    Args:
        rank: shapes.
        left: of the left one, transposed.
        right: of the right one.
    """

    rank: Rank
    left: Any
    right: Any


class Cotangent:
    """The cotangent of one argument, for each lane.

    Args:
        lanes: the builder.
        pieces: how a step gives what is added to it.
        out: where it is written.
    """

    def __init__(self, lanes: Lanes, pieces: Pieces, out: Buffer):
        self.lanes, self.pieces, self.out = lanes, pieces, out
        sizes = [_size(x) for x in pieces.shapes]
        # What one step gives.
        self.step = [lanes.array(x) for x in sizes]
        self._sizes = sizes
        self._rest = sizes[0] if pieces.rest else 0
        factors = iter(self.step[1:] if pieces.rest else self.step)
        self._products = [_Product(x, next(factors), next(factors)) for x in pieces.ranks]
        self.texts: dict[str, str] = {}
        self._reserve()

    def _reserve(self) -> None:
        self.array = self.lanes.array(self.pieces.result.size)

    def keep(self, wanted) -> None:
        """Make nothing of what the step gives in all other lanes."""
        for size, array in zip(self._sizes, self.step, strict=True):
            self.lanes.keep(size, array, wanted)

    def leave(self, lane) -> None:
        """Make nothing of what the step gives in one lane."""
        lanes = self.lanes
        for size, array in zip(self._sizes, self.step, strict=True):
            with lanes.loop(size) as i:
                lanes.set(lanes.number(0.0), array, lane, i)

    def clear(self) -> None:
        """Make it zero."""
        self.lanes.clear(self.pieces.result.size, self.array)

    def add(self) -> None:
        """Add what the step gives."""
        lanes, at = self.lanes, 0
        for start, stop in self.pieces.rest:
            source = lanes.offset(self.step[0], integer(at))
            lanes.add(stop - start, source, lanes.offset(self.array, integer(start)))
            at += stop - start
        for one in self._products:
            name, text = product_onto(one.rank, lanes.width, lanes.dtype)
            self.texts[name] = text
            target = lanes.offset(self.array, integer(one.rank.start))
            lanes.call(name, one.left, one.right, target)

    def spoil(self, nan) -> None:
        """Make it not a number."""
        with self.lanes.loop(self.pieces.result.size) as i:
            self.lanes.b.store(nan, self.lanes.vector_at(self.array, i))

    def store(self, lane, member) -> None:
        """Write that of a lane as that of a member."""
        self.out.store(self.pieces.result.size, self.array, lane, member)

    def store_block(self, block) -> None:
        """Write what belongs to a block of members."""


class Totals(Cotangent):
    """The cotangent of an argument that all members share, summed over the lanes of a block.

    Where all weights of a network are one argument, that of each member would fill the memory.
    """

    def _reserve(self) -> None:
        lanes, wide = self.lanes, host_width(8 * self.lanes.dtype.itemsize)
        self.array = lanes.array(self._rest)
        self._sums = [Total(x, lanes.width, wide) for x in self.pieces.ranks]
        self._rooms = [
            (lanes.array(-(-x.turned // lanes.width)), lanes.array(-(-x.size // lanes.width)))
            for x in self._sums
        ]

    def clear(self) -> None:
        lanes = self.lanes
        lanes.clear(self._rest, self.array)
        for one, (_, sums) in zip(self._sums, self._rooms, strict=True):
            lanes.clear(-(-one.size // lanes.width), sums)

    def add(self) -> None:
        lanes = self.lanes
        if self._rest:
            lanes.add(self._rest, self.step[0], self.array)
        parts = zip(self._products, self._sums, self._rooms, strict=True)
        for one, total, (turned, sums) in parts:
            self.texts[total.name] = total_text(total, lanes.dtype)
            lanes.call(total.name, one.left, one.right, turned, sums)

    def spoil(self, nan) -> None:
        lanes = self.lanes
        rooms = zip(self._sums, self._rooms, strict=True)
        sums = [(-(-one.size // lanes.width), room) for one, (_, room) in rooms]
        for size, array in [(self._rest, self.array), *sums]:
            with lanes.loop(size) as i:
                lanes.b.store(nan, lanes.vector_at(array, i))

    def store(self, lane, member) -> None:
        pass

    def store_block(self, block) -> None:
        lanes, b, at = self.lanes, self.lanes.b, 0
        for start, stop in self.pieces.rest:
            with lanes.loop(stop - start) as i:
                total = lanes.total(self.array, b.add(integer(at), i))
                self.out.write(total, block, b.add(integer(start), i))
            at += stop - start
        for rank, (_, sums) in zip(self.pieces.ranks, self._rooms, strict=True):
            columns = padded(rank.columns, host_width(8 * lanes.dtype.itemsize))
            with lanes.loop(rank.rows) as i, lanes.loop(rank.columns) as j:
                source = b.add(b.mul(i, integer(columns)), j)
                target = b.add(b.mul(i, integer(rank.columns)), b.add(j, integer(rank.start)))
                place = b.gep(sums, [source], source_etype=lanes.scalar)
                self.out.write(b.load(place, typ=lanes.scalar), block, target)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for x in shape:
        size *= x
    return size


def inside(lanes: Lanes, first, end):
    """Which lanes serve a member of their own, from the first one of a block and the last of all.

    Where there are too few members, the last one is served more than once.
    """
    b = lanes.b
    kind = ir.VectorType(integer(0).type, lanes.width)
    numbers = ir.Constant(kind, list(range(lanes.width)))
    index = ir.IntType(32)
    one = b.insert_element(ir.Constant(kind, ir.Undefined), b.sub(end, first), index(0))
    everywhere = ir.Constant(ir.VectorType(index, lanes.width), None)
    return b.icmp_signed("<", numbers, b.shuffle_vector(one, one, everywhere))
