"""Discrete adjoints: runs repeated, and gone through backwards, in one kernel.

The states of a run are not handed over from its first computation. They are computed again, block
by block of lanes, and kept only while the block is served: memory does not grow with the batch.
"""

from typing import Any

from jaxdae.kernels.integration.adaptive_adjoint import AdaptiveAdjoint
from jaxdae.kernels.integration.adjoint import Adjoint
from jaxdae.kernels.llvm.batch_loops import Buffer, INTEGER, integer, Lanes

# Given steps whose states take more than this are kept in part, and computed once more [bytes].
_KEPT_BYTES = 2**23


def adjoint_steps(
    run: Any,
    active: tuple[int, ...],
    width: int,
    ranks: tuple[int, ...],
    rank: int,
    summed: tuple[bool, ...],
) -> str:
    """Text of `@run` for the adjoint of a run.

    Arguments are those of the run, then the cotangents of the saved states and of the final one;
    results the cotangents of the start and of the parameters with numbers in `active`.

    Args:
        run: what is differentiated.
        active: numbers of the parameters.
        width: entries of a vector.
        ranks: axes of the batch in each argument; zero where its members share it.
        rank: axes of the batch.
        summed: for each of these parameters, whether its cotangent is the sum over each block of
            as many members as a vector has entries.

    Returns:
        The definitions.
    """
    lanes = Lanes(width, run.problem.dtype)
    kind = AdaptiveAdjoint if run.adaptive else _FixedAdjoint
    adjoint = kind(lanes, run, active, ranks, rank, summed)
    adjoint.write()
    return "\n\n".join([*adjoint.texts(), lanes.finish()])


class _FixedAdjoint(Adjoint):
    """All lanes go through the same steps; of many, only the states of one section are kept."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        b = lanes.b
        self.grid = Buffer(lanes, lanes.arguments, len(self.start.arrays), None, 0, 1)
        self.steps = b.sub(self.grid.size, integer(1))
        self.entries = self.n + self.rate_size
        most = max(_KEPT_BYTES // (self.entries * lanes.width * run.problem.dtype.itemsize), 1)
        few = b.icmp_signed("<=", self.steps, integer(most))
        root = self._root(self.steps)
        length = b.select(few, self.steps, root)
        self.length = b.select(b.icmp_signed(">", length, integer(0)), length, integer(1))
        rounded = b.add(self.steps, b.sub(self.length, integer(1)))
        self.sections = b.sdiv(rounded, self.length)

    def _root(self, count):
        """The square root of an integer, rounded up."""
        b = self.lanes.b
        guess = self.lanes.variable(INTEGER, integer(1))

        def small():
            g = b.load(guess, typ=INTEGER)
            return b.icmp_signed("<", b.mul(g, g), count)

        with self.lanes.while_(small):
            b.store(b.add(b.load(guess, typ=INTEGER), integer(1)), guess)
        return b.load(guess, typ=INTEGER)

    def write(self) -> None:
        lanes, b = self.lanes, self.lanes.b
        sizes = (self.sections, integer(self.n)), (self.length, integer(self.entries))
        with self.rooms(*(b.mul(*x) for x in sizes)) as (starts, inner), self.blocks() as index:
            self.load(index)
            self._forward(starts)
            with lanes.down(self.sections) as section:
                self._reverse_section(section, starts, inner)
            self.store(index)

    def _kept(self, room, i, size: int):
        return self.lanes.offset(room, self.lanes.b.mul(i, integer(size)))

    def _forward(self, starts) -> None:
        """Keep the state at the start of each section."""
        lanes, b, n = self.lanes, self.lanes.b, self.n
        lanes.copy(n, self.start.state, self.y)
        with lanes.loop(self.sections) as section:
            lanes.copy(n, self.y, self._kept(starts, section, n))
            last = b.icmp_signed("==", section, b.sub(self.sections, integer(1)))
            with lanes.loop(b.select(last, integer(0), self.length)) as j:
                self._step(b.add(b.mul(section, self.length), j), self.rates)

    def _step(self, i, rates) -> None:
        self._set_times(i)
        given = (self.t0, self.t1, self.y, *self.start.fixed_back)
        self.lanes.call("plain_step", *given, self.step_bar, rates)
        self.lanes.copy(self.n, self.step_bar, self.y)

    def _set_times(self, i) -> None:
        lanes = self.lanes
        lanes.fill(self.grid.read(integer(0), i), self.t0)
        lanes.fill(self.grid.read(integer(0), lanes.b.add(i, integer(1))), self.t1)

    def _reverse_section(self, section, starts, inner) -> None:
        lanes, b, n = self.lanes, self.lanes.b, self.n
        first = b.mul(section, self.length)
        count = lanes.minimum(self.length, b.sub(self.steps, first))
        lanes.copy(n, self._kept(starts, section, n), self.y)
        with lanes.loop(count) as j:
            kept = self._kept(inner, j, self.entries)
            lanes.copy(n, self.y, kept)
            self._step(b.add(first, j), lanes.offset(kept, integer(n)))
        with lanes.down(count) as j:
            i = b.add(first, j)
            self._set_times(i)
            self._add_rows_at_steps(i)
            start = b.icmp_signed("==", i, integer(0))
            kept = self._kept(inner, j, self.entries)
            rates = lanes.offset(kept, integer(n))
            self.reverse_step(self.t0, self.t1, kept, rates, lambda lane: start)  # noqa: ARG005

    def _add_rows_at_steps(self, i) -> None:
        lanes, b, every = self.lanes, self.lanes.b, self.saving.every
        if not every:
            return
        rest = b.srem(b.add(i, integer(1)), integer(every))
        with b.if_then(b.icmp_signed("==", rest, integer(0))):
            row = b.add(b.sdiv(i, integer(every)), integer(int(self.saving.start)))
            with lanes.loop(lanes.width) as lane:
                self.add_row(row, lane)
