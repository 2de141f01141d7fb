"""Discrete adjoints: runs repeated, and gone through backwards, in one kernel.

The states of a run are not handed over from its first computation. They are computed again, block
by block of lanes, and kept only while the block is served: memory does not grow with the batch.
"""

import math
from typing import Any

from jaxdae.kernels.integration.adaptive_steps import Control
from jaxdae.kernels.integration.adjoint import Adjoint
from jaxdae.kernels.integration.fixed_steps import read_time
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition


class AdaptiveAdjoint(Adjoint):
    """Each lane has its own steps: the accepted ones are listed, and gone through backwards."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        self.control = Control(lanes, run, self.start, ranks)
        self.tried, self.listed = lanes.counters(), lanes.counters()
        self.busy, self.any = lanes.counters(), lanes.variable(0)
        self.most = lanes.variable(0)
        # Of each step: its two ends, and the state at its beginning.
        self.entries = self.n + 2
        self.entry = lanes.array(self.entries)

    def begin(self, lane, member) -> None:
        self.control.load(lane, member)
        for counter in (self.tried, self.listed):
            self.lanes.set_count(0, counter, lane)

    def write(self) -> None:
        lanes = self.lanes
        size = self.run.max_steps * self.entries
        with self.rooms(size) as (log,), self.blocks() as index:
            self.load(index)
            self._forward(log)
            if self.rows is not None:
                self.rows.skip_unreached(self.control.step.t0)
            self.most.set(0)
            with lanes.loop(lanes.width) as lane:
                count, most = lanes.count(self.listed, lane), self.most.get()
                self.most.set((count > most).choose(count, most))
            with lanes.loop(self.most.get()) as i:
                self._reverse(i, log)
            self._add_rows_of_no_steps()
            self.store(index)

    def _forward(self, log) -> None:
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            lanes.set_count(self.control.unfinished(lane).as_integer(), self.busy, lane)
        self.control.begin_steps(self._is_busy)
        with lanes.while_(self._any_busy):
            self.control.advance()
            with lanes.loop(lanes.width) as lane, lanes.if_then(self._is_busy(lane)):
                self._proceed(log, lane)
            self.control.begin_after_jumps(self.any)

    def _is_busy(self, lane):
        return self.lanes.count(self.busy, lane).differs(0)

    def _any_busy(self):
        lanes = self.lanes
        self.any.set(0)
        with lanes.loop(lanes.width) as lane:
            self.any.set(self.any.get() | lanes.count(self.busy, lane))
        return self.any.get().differs(0)

    def _proceed(self, log, lane) -> None:
        lanes, control = self.lanes, self.control
        with lanes.if_then(control.accepted(lane)):
            count = lanes.count(self.listed, lane)
            with lanes.kept(log, count * self.entries, self.entries) as place:
                lanes.copy_lane(1, control.step.t0, place, lane)
                lanes.copy_lane(1, control.step.t1, lanes.offset(place, 1), lane)
                state = lanes.offset(place, 2)
                lanes.copy_lane(self.n, control.step.y0, state, lane)
            lanes.set_count(count + 1, self.listed, lane)
        control.proceed(lane)
        tried = lanes.count(self.tried, lane) + 1
        lanes.set_count(tried, self.tried, lane)
        more = tried < self.run.max_steps
        on = control.unfinished(lane) & ~control.failed(lane)
        lanes.set_count((on & more).as_integer(), self.busy, lane)

    def _reverse(self, turn, log) -> None:
        """Go back over the last step of each lane that is not done yet.

        A lane that is done goes over a step of no length, which leaves its cotangents as they are.
        """
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            index = self._index(turn, lane)
            safe = (index < 0).choose(0, index)
            place = lanes.recalled(log, safe * self.entries, self.entries)
            lanes.copy_lane(self.entries, place, self.entry, lane)
            with lanes.if_then(index < 0):
                for end in (self.entry, lanes.offset(self.entry, 1)):
                    lanes.copy_lane(1, self.control.begin, end, lane)
                lanes.copy_lane(self.n, self.start.state, lanes.offset(self.entry, 2), lane)
            with lanes.if_then(index >= 0):
                self._add_row_of_step(index, lane)
        t0, t1, y = (lanes.offset(self.entry, i) for i in range(3))
        lanes.call("plain_step", t0, t1, y, *self.start.fixed_back, self.step_bar, self.rates)
        self.reverse_step(
            t0,
            t1,
            y,
            self.rates,
            lambda lane: self._index(turn, lane).equals(0),
            lambda lane: self._index(turn, lane) < 0,
        )

    def _add_rows_of_no_steps(self) -> None:
        """Where a run ends where it begins, all rows at given times are its start."""
        lanes = self.lanes
        if self.rows is None:
            return
        first = int(self.saving.start)
        size = self.rows.times.size
        with lanes.loop(lanes.width) as lane:
            begin, end = lanes.get(self.control.begin, lane), lanes.get(self.control.end, lane)
            with lanes.if_then(begin >= end), lanes.loop(size) as i:
                self.add_row(first + i, lane)

    def _index(self, turn, lane):
        return self.lanes.count(self.listed, lane) - 1 - turn

    def _add_row_of_step(self, index, lane) -> None:
        every = self.saving.every
        if not every:
            return
        rest = (index + 1) % every
        with self.lanes.if_then(rest.equals(0)):
            self.add_row(index // every + int(self.saving.start), lane)


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
