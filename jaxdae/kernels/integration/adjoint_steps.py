"""Discrete adjoints: runs repeated, and gone through backwards, in one kernel.

The states of a run are not handed over from its first computation. They are computed again, block
by block of lanes, and kept only while the block is served: memory does not grow with the batch.
"""

import math
from typing import Any

from jaxdae.kernels.integration.adaptive_adjoint import AdaptiveAdjoint
from jaxdae.kernels.integration.adjoint import Adjoint
from jaxdae.kernels.integration.fixed_steps import read_time
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition


def adjoint_steps(
    run: Any,
    active: tuple[int, ...],
    lanes: Lanes,
    ranks: tuple[int, ...],
    rank: int,
    summed: tuple[bool, ...],
) -> list[Definition]:
    """`@run` for the adjoint of a run, and what it calls beside programs.

    Arguments are those of the run, then the cotangents of the saved states and of the final one;
    results the cotangents of the start and of the parameters with numbers in `active`.

    Args:
        run: what is differentiated.
        active: numbers of the parameters.
        lanes: what the function is written to.
        ranks: axes of the batch in each argument; zero where its members share it.
        rank: axes of the batch.
        summed: for each of these parameters, whether its cotangent is the sum over each block of
            as many members as a vector has entries.

    Returns:
        The definitions.
    """
    kind = AdaptiveAdjoint if run.adaptive else _FixedAdjoint
    adjoint = kind(lanes, run, active, ranks, rank, summed)
    adjoint.write()
    return adjoint.definitions()


def _entries(run: Any) -> int:
    """Numbers that are kept of a fixed step: the state at its beginning, and rates."""
    return run.problem.states * (1 + run.problem.method.evaluations(run.saving.times))


def _most(run: Any, lanes: Lanes) -> int:
    """Fixed steps of which all is kept."""
    return max(lanes.kept_bytes // (_entries(run) * lanes.width * lanes.dtype.itemsize), 1)


def kept_numbers(run: Any, lanes: Lanes, arguments) -> int:
    """What an adjoint keeps for each lane, at most.

    Args:
        run: what is differentiated.
        lanes: what its adjoint is written to.
        arguments: shapes of what it takes.

    Returns:
        How many numbers.
    """
    n = run.problem.states
    if run.adaptive:
        return run.max_steps * (n + 2)
    # The ends of the steps follow start and parameters.
    steps = arguments[1 + len(run.problem.parameters)].shape[-1] - 1
    length = steps if steps <= _most(run, lanes) else math.isqrt(steps - 1) + 1
    sections = -(-steps // max(length, 1))
    return sections * n + length * _entries(run)


class _FixedAdjoint(Adjoint):
    """All lanes go through the same steps; of many, only the states of one section are kept."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        count = len(self.start.arrays)
        self.grid = Buffer(lanes, lanes.arguments, count, None, ranks[count], 1)
        self.steps = self.grid.size - 1
        self.entries = _entries(run)
        few = self.steps <= _most(run, lanes)
        root = self._root(self.steps)
        length = few.choose(self.steps, root)
        self.length = (length > 0).choose(length, 1)
        rounded = self.steps + (self.length - 1)
        self.sections = rounded // self.length

    def _root(self, count):
        """The square root of an integer, rounded up."""
        guess = self.lanes.variable(1)

        def small():
            g = guess.get()
            return g * g < count

        with self.lanes.while_(small):
            guess.set(guess.get() + 1)
        return guess.get()

    def write(self) -> None:
        lanes = self.lanes
        rooms = self.rooms(self.sections * self.n, self.length * self.entries)
        with rooms as (starts, inner), self.blocks() as index:
            self.load(index)
            self._forward(starts)
            with lanes.down(self.sections) as section:
                self._reverse_section(section, starts, inner)
            self.store(index)

    def _kept_step(self, inner, j):
        return self.lanes.kept(inner, j * self.entries, self.entries)

    def _forward(self, starts) -> None:
        """Keep the state at the start of each section."""
        lanes, n = self.lanes, self.n
        lanes.copy(n, self.start.state, self.y)
        with lanes.loop(self.sections) as section:
            with lanes.kept(starts, section * n, n) as start:
                lanes.copy(n, self.y, start)
            last = section.equals(self.sections - 1)
            with lanes.loop(last.choose(0, self.length)) as j:
                self._step(section * self.length + j, self.rates)

    def _step(self, i, rates) -> None:
        self._set_times(i)
        arguments = (self.t0, self.t1, self.y, *self.start.fixed_back)
        self.lanes.call("plain_step", *arguments, self.step_bar, rates)
        self.lanes.copy(self.n, self.step_bar, self.y)

    def _set_times(self, i) -> None:
        for end, array in ((i, self.t0), (i + 1, self.t1)):
            read_time(self.lanes, self.grid, end, self.members, array)

    def _reverse_section(self, section, starts, inner) -> None:
        lanes, n = self.lanes, self.n
        first = section * self.length
        count = lanes.minimum(self.length, self.steps - first)
        lanes.copy(n, lanes.recalled(starts, section * n, n), self.y)
        with lanes.loop(count) as j, self._kept_step(inner, j) as kept:
            lanes.copy(n, self.y, kept)
            self._step(first + j, lanes.offset(kept, n))
        with lanes.down(count) as j:
            i = first + j
            self._set_times(i)
            self._add_rows_at_steps(i)
            start = i.equals(0)
            kept = lanes.recalled(inner, j * self.entries, self.entries)
            rates = lanes.offset(kept, n)
            self.reverse_step(self.t0, self.t1, kept, rates, lambda lane: start)  # noqa: ARG005

    def _add_rows_at_steps(self, i) -> None:
        lanes, every = self.lanes, self.saving.every
        if not every:
            return
        rest = (i + 1) % every
        with lanes.if_then(rest.equals(0)):
            row = i // every + int(self.saving.start)
            with lanes.loop(lanes.width) as lane:
                self.add_row(row, lane)
