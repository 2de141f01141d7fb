"""Cotangents of the arguments of a run, and what each step of an adjoint adds to them."""

import math
from typing import Any, NamedTuple

from jaxdae.kernels.emission.loops import padded, product_onto, Total, total_function
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition
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
        # Functions that add the products.
        self.definitions: list[Definition] = []
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
                lanes.set(0.0, array, lane, i)

    def clear(self) -> None:
        """Make it zero."""
        self.lanes.clear(self.pieces.result.size, self.array)

    def add(self) -> None:
        """Add what the step gives."""
        lanes, at = self.lanes, 0
        for start, stop in self.pieces.rest:
            source = lanes.offset(self.step[0], at)
            lanes.add(stop - start, source, lanes.offset(self.array, start))
            at += stop - start
        for one in self._products:
            function = product_onto(one.rank, lanes.width, lanes.dtype)
            self.definitions.append(function)
            target = lanes.offset(self.array, one.rank.start)
            lanes.call(function.name, one.left, one.right, target)

    def spoil(self) -> None:
        """Make it not a number."""
        self.lanes.clear(self.pieces.result.size, self.array, math.nan)

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
        lanes, wide = self.lanes, self.lanes.register_width
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
            self.definitions.append(total_function(total, lanes.dtype))
            lanes.call(total.name, one.left, one.right, turned, sums)

    def spoil(self) -> None:
        lanes = self.lanes
        rooms = zip(self._sums, self._rooms, strict=True)
        sums = [(-(-one.size // lanes.width), room) for one, (_, room) in rooms]
        for size, array in [(self._rest, self.array), *sums]:
            lanes.clear(size, array, math.nan)

    def store(self, lane, member) -> None:
        pass

    def store_block(self, block) -> None:
        lanes, at = self.lanes, 0
        for start, stop in self.pieces.rest:
            with lanes.loop(stop - start) as i:
                total = lanes.total(self.array, i + at)
                self.out.write(total, block, i + start)
            at += stop - start
        for rank, (_, sums) in zip(self.pieces.ranks, self._rooms, strict=True):
            columns = padded(rank.columns, lanes.register_width)
            with lanes.loop(rank.rows) as i, lanes.loop(rank.columns) as j:
                source = i * columns + j
                target = i * rank.columns + (j + rank.start)
                place = lanes.place(lanes.scalar, sums, source)
                self.out.write(lanes.read(place), block, target)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for x in shape:
        size *= x
    return size
