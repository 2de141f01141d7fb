"""Discrete adjoints: runs repeated, and gone through backwards, in one kernel.

The states of a run are not handed over from its first computation. They are computed again, block
by block of lanes, and kept only while the block is served: memory does not grow with the batch.
"""

import math
import operator
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

from jaxdae.kernels.emission.loops import product_onto, row_onto, row_onto_sum, SummedProduct
from jaxdae.kernels.integration.initial_value import adjoint_programs
from jaxdae.kernels.integration.steps import LaneInputs, read_time, StepSizeControl
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.tracing.product_parts import OneRow, Pieces, Rank, Zeros


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
    """
    kind = _AdaptiveAdjoint if run.adaptive else _FixedAdjoint
    adjoint = kind(lanes, run, active, ranks, rank, summed)
    adjoint.write()
    return adjoint.definitions()


def _entries(run: Any) -> int:
    """Numbers that are kept of a fixed step: what it begins from, and rates."""
    evaluations = run.problem.method.evaluations(run.saving.times)
    return _extended(run) + run.problem.moving.count * evaluations


def _extended(run: Any) -> int:
    """Numbers that a step begins from: the state, and behind it what the last step left."""
    return run.problem.states + run.problem.remembered


def _logged(run: Any) -> int:
    """Numbers kept of an adaptive step: its ends, whether it was begun anew, where it begins."""
    return 3 + _extended(run)


def _most(run: Any, lanes: Lanes) -> int:
    """Fixed steps of which all is kept."""
    return max(lanes.kept_bytes // (_entries(run) * lanes.width * lanes.dtype.itemsize), 1)


def kept_numbers(run: Any, lanes: Lanes, arguments) -> int:
    """How many numbers an adjoint keeps for each lane, at most, by the shapes of what it takes."""
    if run.adaptive:
        return run.max_steps * _logged(run)
    # The ends of the steps follow start and parameters.
    steps = arguments[1 + len(run.problem.parameters)].shape[-1] - 1
    length = steps if steps <= _most(run, lanes) else math.isqrt(steps - 1) + 1
    sections = -(-steps // max(length, 1))
    return sections * _extended(run) + length * _entries(run)


class _Adjoint:
    """What adjoints of fixed and of adaptive steps have in common."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        problem = run.problem
        self.lanes, self.problem, self.saving, self.run = lanes, problem, run.saving, run
        self.n, self.extended = problem.states, _extended(run)
        self.start = LaneInputs(lanes, problem, ranks, active, run.stepped)
        count = len(self.start.arrays) + run.times
        self.row_bars = Buffer(lanes, lanes.arguments, count, None, ranks[count], 2)
        self.final_bar = Buffer(lanes, lanes.arguments, count + 1, self.n, ranks[count + 1], 1)
        self.members = lanes.counters()
        _, pieces = adjoint_programs(problem, active, run.saving.times)
        sizes = [self.n, *(x.result.size for x in pieces[1:])]
        self.cotangents = [
            self._cotangent(x, Buffer(lanes, lanes.results, i, size, 1 if one else rank, 1), one)
            for i, (x, size, one) in enumerate(zip(pieces, sizes, (False, *summed), strict=True))
        ]
        # The cotangent of what a step begins from, and what is left of it by a step.
        self.bar, self.step_bar = self.cotangents[0].array, self.cotangents[0].step[0]
        # That of what first steps begin from beside the state, and what it brings to all others.
        self.begun_bar = lanes.array(problem.remembered)
        self.brought = [
            lanes.array(x.out.size if problem.remembered else 0) for x in self.cotangents
        ]
        self.dense = problem.dense if run.saving.times else 0
        self.k_bar = lanes.array(self.dense)
        self.t0, self.t1, self.y = lanes.array(1), lanes.array(1), lanes.array(self.extended)
        # The rates of one step, which follow its state where both are kept.
        self.rate_size = problem.method.evaluations(run.saving.times) * problem.moving.count
        self.rates = lanes.array(self.rate_size)
        self.any = lanes.variable(0)
        self.rows = None
        if run.saving.times:
            index = count - 1
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self.rows = _RowsAtTimes(self, times)

    def _cotangent(self, pieces: Pieces, out: Buffer, summed: bool) -> "_Cotangent":
        # What steps were begun with adds to lanes.
        kept_as_sums = summed and self.lanes.width > 1 and not self.problem.remembered
        return (_SummedCotangent if kept_as_sums else _Cotangent)(self.lanes, pieces, out, summed)

    def definitions(self) -> list[Definition]:
        """Functions that are called beside programs, and that of the loops."""
        return [*(y for x in self.cotangents for y in x.definitions), self.lanes.finish()]

    def blocks(self):
        """For each block of members, the first of them."""
        lanes, apart = self.lanes, self.lanes.stride * self.lanes.width
        size = lanes.end - lanes.begin
        count = (size + (apart - 1)) // apart
        return lanes.loop(count)

    def _first(self, index):
        """The first member of a block."""
        return self.lanes.begin + index * (self.lanes.stride * self.lanes.width)

    def load(self, index) -> None:
        """The members of a block; where there are too few, the last one more than once."""
        lanes = self.lanes
        first, last = self._first(index), lanes.end - 1
        with lanes.loop(lanes.width) as lane:
            member = lanes.minimum(first + lane, last)
            lanes.set_count(member, self.members, lane)
            self.begin(lane, member)
            self.final_bar.load(self.n, self.bar, lane, member)
            if self.rows is not None:
                lanes.set_count(self.rows.times.size - 1, self.rows.left, lane)
        lanes.clear(self.extended - self.n, lanes.offset(self.bar, self.n))
        self.start.prepare()
        self.inside = lanes.serves(first, lanes.end)
        for one in self.cotangents[1:]:
            one.clear()

    @contextmanager
    def rooms(self, *vectors):
        """Memory for numbers of vectors; where there is too little, all results are NaN."""
        lanes = self.lanes
        taken = [lanes.reserve(x) for x in vectors]
        missing = [lanes.missing(x) for x, _ in taken]
        with lanes.if_else(reduce(operator.or_, missing)) as (then, otherwise):
            with then, self.blocks() as index:
                self.load(index)
                for one in self.cotangents:
                    one.spoil()
                self.store(index)
            with otherwise:
                yield [room for _, room in taken]
        for x, _ in taken:
            lanes.release(x)

    def begin(self, lane, member) -> None:
        """Put a member into a lane."""
        self.start.load(lane, member)

    def reverse_step(self, t0, t1, y, rates, first, begun, done=None) -> None:
        """Go back over one step, of all lanes.

        Functions of a lane say whether it is its `first` step, whether it was `begun` without
        looking at the one before, and whether it is `done` before.
        """
        lanes = self.lanes
        if self.rows is not None:
            lanes.clear(self.dense, self.k_bar)
            self.rows.collect(t0, t1, first)
        # What nothing depends on has no derivative, also where that of the step is not finite.
        dense = [] if self.rows is None else [(self.problem.dense, self.k_bar)]
        wanted = lanes.nonzero([(self.extended, self.bar), *dense])
        lanes.call(
            "transposed_step", t0, t1, y, *self.start.fixed_back, rates, self.bar,
            *([] if self.rows is None else [self.k_bar]),
            *(array for one in self.cotangents for array in one.step),
        )  # fmt: skip
        for one in self.cotangents:
            one.keep(wanted & self.inside if one.summed else wanted)
        if done is not None:
            # What a step adds to lanes that are done is nothing, whatever their equations give.
            with lanes.loop(lanes.width) as lane, lanes.if_then(done(lane)):
                lanes.copy_lane(self.extended, self.bar, self.step_bar, lane)
                for one in self.cotangents[1:]:
                    one.leave(lane)
                if self.rows is not None:
                    with lanes.loop(self.n) as i:
                        lanes.set(0.0, self.rows.y0_bar, lane, i)
        lanes.copy(self.extended, self.step_bar, self.bar)
        if self.rows is not None:
            lanes.add(self.n, self.rows.y0_bar, self.bar)
        for one in self.cotangents[1:]:
            one.add()
        if self.problem.remembered:
            self._reverse_beginning(t0, y, begun)

    def _reverse_beginning(self, t0, y, begun) -> None:
        """Go back over what steps were begun with beside the state, of lanes where one was."""
        lanes, size = self.lanes, self.problem.remembered
        remembered = lanes.offset(self.bar, self.n)
        lanes.clear(size, self.begun_bar)
        self.any.set(0)
        with lanes.loop(lanes.width) as lane, lanes.if_then(begun(lane)):
            self.any.set(1)
            lanes.copy_lane(size, remembered, self.begun_bar, lane)
            with lanes.loop(size) as i:
                lanes.set(0.0, remembered, lane, i)
        with lanes.if_then(self.any.get().differs(0)):
            wanted, fixed = lanes.nonzero([(size, self.begun_bar)]), self.start.fixed_back
            lanes.call("transposed_begin", t0, y, *fixed, self.begun_bar, *self.brought)
            for one, array in zip(self.cotangents, self.brought, strict=True):
                lanes.keep(one.out.size, array, wanted & self.inside if one.summed else wanted)
                lanes.add(one.out.size, array, one.array)

    def add_row(self, row, lane) -> None:
        """Add the cotangent of a saved state to that of a lane's state."""
        lanes, member = self.lanes, self.lanes.count(self.members, lane)
        with lanes.loop(self.n) as i:
            more = self.row_bars.read(member, row * self.n + i)
            lanes.set(lanes.get(self.bar, lane, i) + more, self.bar, lane, i)

    def store(self, index) -> None:
        """Write the results of a block."""
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            if self.saving.start:
                self.add_row(0, lane)
            member = lanes.count(self.members, lane)
            for one in self.cotangents:
                one.store(lane, member)
        block = self._first(index) // lanes.width
        for one in self.cotangents:
            one.store_block(block)


class _RowsAtTimes:
    """Cotangents of the states at given times, taken up step by step from the last one on."""

    def __init__(self, adjoint: _Adjoint, times: Buffer):
        lanes, n = adjoint.lanes, adjoint.n
        self.adjoint, self.lanes, self.times = adjoint, lanes, times
        self.left = lanes.counters()
        self.y0_bar = lanes.array(n)
        self._t, self._bar = lanes.array(1), lanes.array(n)
        self._parts = [lanes.array(size) for size in (n, n, adjoint.problem.dense)]
        self._any = lanes.variable(0)

    def collect(self, t0, t1, first) -> None:
        """Add what the rows within a step bring to the cotangents of its parts."""
        lanes, adjoint = self.lanes, self.adjoint
        lanes.clear(adjoint.n, self.y0_bar)
        with lanes.while_(lambda: self._find(t0, first)):
            lanes.call("transposed_interpolation", t0, t1, self._t, self._bar, *self._parts)
            lanes.add(adjoint.n, self._parts[0], self.y0_bar)
            lanes.add(adjoint.n, self._parts[1], adjoint.bar)
            lanes.add(adjoint.problem.dense, self._parts[2], adjoint.k_bar)

    def skip_unreached(self, reached) -> None:
        """Leave out rows behind the time that each lane reached."""
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:

            def beyond(lane=lane):
                row, member = lanes.count(self.left, lane), lanes.count(self.adjoint.members, lane)
                exists = row >= 0
                time = self.times.read(member, exists.choose(row, 0))
                late = ~(time <= lanes.get(reached, lane))
                return exists & late

            with lanes.while_(beyond):
                left = lanes.count(self.left, lane) - 1
                lanes.set_count(left, self.left, lane)

    def _find(self, t0, first):
        """The next row of each lane, zero where this step has none; whether there is any."""
        lanes = self.lanes
        self._any.set(0)
        lanes.clear(self.adjoint.n, self._bar)
        lanes.copy(1, t0, self._t)
        with lanes.loop(lanes.width) as lane:
            row = lanes.count(self.left, lane)
            member = lanes.count(self.adjoint.members, lane)
            safe = (row < 0).choose(0, row)
            time = self.times.read(member, safe)
            inside = (time > lanes.get(t0, lane)) | first(lane)
            with lanes.if_then((row >= 0) & inside):
                self._any.set(1)
                lanes.set(time, self._t, lane)
                start = (row + int(self.adjoint.saving.start)) * self.adjoint.n
                with lanes.loop(self.adjoint.n) as i:
                    lanes.set(self.adjoint.row_bars.read(member, start + i), self._bar, lane, i)
                lanes.set_count(row - 1, self.left, lane)
        return self._any.get().differs(0)


class _FixedAdjoint(_Adjoint):
    """All lanes go through the same steps; of many, only the states of one section are kept."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        count = len(self.start.arrays)
        self.grid = Buffer(lanes, lanes.arguments, count, None, ranks[count], 1)
        self.steps = self.grid.size - 1
        self.entries = _entries(run)
        few = self.steps <= _most(run, lanes)
        length = few.choose(self.steps, self._root(self.steps))
        self.length = (length > 0).choose(length, 1)
        self.sections = (self.steps + (self.length - 1)) // self.length

    def _root(self, count):
        """The square root of an integer, rounded up."""
        guess = self.lanes.variable(1)
        with self.lanes.while_(lambda: guess.get() * guess.get() < count):
            guess.set(guess.get() + 1)
        return guess.get()

    def write(self) -> None:
        lanes = self.lanes
        rooms = self.rooms(self.sections * self.extended, self.length * self.entries)
        with rooms as (starts, inner), self.blocks() as index:
            self.load(index)
            self._forward(starts)
            with lanes.down(self.sections) as section:
                self._reverse_section(section, starts, inner)
            self.store(index)

    def _kept_step(self, inner, j):
        return self.lanes.kept(inner, j * self.entries, self.entries)

    def _forward(self, starts) -> None:
        """Keep what the first step of each section begins from."""
        lanes, n = self.lanes, self.extended
        lanes.copy(self.n, self.start.state, self.y)
        if self.problem.remembered:
            read_time(lanes, self.grid, 0, self.members, self.t0)
            begun = lanes.offset(self.y, self.n)
            lanes.call("begin", self.t0, self.start.state, *self.start.fixed, begun)
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
        self.lanes.copy(self.extended, self.step_bar, self.y)

    def _set_times(self, i) -> None:
        for end, array in ((i, self.t0), (i + 1, self.t1)):
            read_time(self.lanes, self.grid, end, self.members, array)

    def _reverse_section(self, section, starts, inner) -> None:
        lanes, n = self.lanes, self.extended
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
            start = lambda lane: i.equals(0)  # noqa: ARG005, E731
            kept = lanes.recalled(inner, j * self.entries, self.entries)
            rates = lanes.offset(kept, n)
            self.reverse_step(self.t0, self.t1, kept, rates, start, start)

    def _add_rows_at_steps(self, i) -> None:
        lanes, every = self.lanes, self.saving.every
        if not every:
            return
        with lanes.if_then(((i + 1) % every).equals(0)), lanes.loop(lanes.width) as lane:
            self.add_row(i // every + int(self.saving.start), lane)


class _AdaptiveAdjoint(_Adjoint):
    """Each lane has its own steps: the accepted ones are listed, and gone through backwards."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        self.control = StepSizeControl(lanes, run, self.start, ranks)
        self.tried, self.listed = lanes.counters(), lanes.counters()
        self.busy = lanes.counters()
        self.most = lanes.variable(0)
        self.entries = _logged(run)
        self.entry = lanes.array(self.entries)
        # Whether the next step of a lane does not look at the one before.
        self.begun = lanes.counters()

    def begin(self, lane, member) -> None:
        self.control.load(lane, member)
        for counter, value in ((self.tried, 0), (self.listed, 0), (self.begun, 1)):
            self.lanes.set_count(value, counter, lane)

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
                lanes.set(lanes.count(self.begun, lane).as_number(), place, lane, 2)
                start, remembered = (lanes.offset(place, 3 + i) for i in (0, self.n))
                lanes.copy_lane(self.n, control.step.y0, start, lane)
                lanes.copy_lane(self.extended - self.n, control.carry, remembered, lane)
            lanes.set_count(count + 1, self.listed, lane)
            lanes.set_count(0, self.begun, lane)
        control.proceed(lane)
        if control.ends is not None:
            with lanes.if_then(control.ends.jumped(lane)):
                lanes.set_count(1, self.begun, lane)
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
                lanes.copy_lane(self.n, self.start.state, lanes.offset(self.entry, 3), lane)
            with lanes.if_then(index >= 0):
                self._add_row_of_step(index, lane)
        t0, t1, begun, y = (lanes.offset(self.entry, i) for i in range(4))
        lanes.call("plain_step", t0, t1, y, *self.start.fixed_back, self.step_bar, self.rates)
        self.reverse_step(
            t0,
            t1,
            y,
            self.rates,
            lambda lane: self._index(turn, lane).equals(0),
            lambda lane: lanes.get(begun, lane).differs(0.0),
            lambda lane: self._index(turn, lane) < 0,
        )

    def _add_rows_of_no_steps(self) -> None:
        """Where a run ends where it begins, all rows at given times are its start."""
        lanes = self.lanes
        if self.rows is None:
            return
        size = self.rows.times.size
        with lanes.loop(lanes.width) as lane:
            begin, end = lanes.get(self.control.begin, lane), lanes.get(self.control.end, lane)
            with lanes.if_then(begin >= end), lanes.loop(size) as i:
                self.add_row(i + int(self.saving.start), lane)

    def _index(self, turn, lane):
        return self.lanes.count(self.listed, lane) - 1 - turn

    def _add_row_of_step(self, index, lane) -> None:
        every = self.saving.every
        if every:
            with self.lanes.if_then(((index + 1) % every).equals(0)):
                self.add_row(index // every + int(self.saving.start), lane)


class _Pair(NamedTuple):
    """What a step gives of a part: factors, the first transposed; or a row and its number."""

    part: Rank | OneRow
    first: Any
    second: Any


class _Cotangent:
    """The cotangent of one argument, for each lane; steps add `pieces` to it.

    Where it is `summed` over the lanes of a block, each block writes one row.
    """

    def __init__(self, lanes: Lanes, pieces: Pieces, out: Buffer, summed: bool):
        self.lanes, self.pieces, self.out, self.summed = lanes, pieces, out, summed
        sizes = [math.prod(x) for x in pieces.shapes]
        # What one step gives.
        self.step = [lanes.array(x) for x in sizes]
        self._sizes = sizes
        given = iter(self.step[1:] if pieces.rest else self.step)
        pairs = (x for x in pieces.parts if not isinstance(x, Zeros))
        self._pairs = [_Pair(x, next(given), next(given)) for x in pairs]
        # Functions that add the parts.
        self.definitions: list[Definition] = []
        self.array = lanes.array(self.size)

    @property
    def size(self) -> int:
        """Numbers that are kept of each lane."""
        return self.pieces.result.size

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
        self.fill(0.0)

    def spoil(self) -> None:
        """Make it not a number."""
        self.fill(math.nan)

    def fill(self, value: float) -> None:
        """Make it a number."""
        self.lanes.clear(self.size, self.array, value)

    def add(self) -> None:
        """Add what the step gives; of products nothing where a factor is zero in all lanes."""
        lanes, at = self.lanes, 0
        for start, stop in self.pieces.rest:
            source = lanes.offset(self.step[0], at)
            lanes.add(stop - start, source, self.rest_from(start, at))
            at += stop - start
        for i, one in enumerate(self._pairs):
            function, target = self.adding(one.part, i)
            self.definitions.append(function)
            size = one.part.size if isinstance(one.part, OneRow) else math.prod(_first(one.part))
            with lanes.if_then(lanes.nonzero([(size, one.first)]).anywhere()):
                lanes.call(function.name, one.first, one.second, target)

    def rest_from(self, start: int, at: int) -> Any:
        """Place of what is of no part, from a number of all and a number of the rest on."""
        del at
        return self.lanes.offset(self.array, start)

    def adding(self, part: Rank | OneRow, number: int) -> tuple[Definition, Any]:
        """What adds a part, by its number, and where to."""
        del number
        kind = self.lanes.width, self.lanes.dtype
        function = row_onto(part, *kind) if isinstance(part, OneRow) else product_onto(part, *kind)
        return function, self.lanes.offset(self.array, part.start)

    def store(self, lane, member) -> None:
        """Write that of a lane as that of a member."""
        if not self.summed:
            self.out.store(self.out.size, self.array, lane, member)

    def store_block(self, block) -> None:
        """Write the sum over a block of members."""
        if self.summed:
            with self.lanes.loop(self.size) as i:
                self.out.write(self.lanes.total(self.array, i), block, i)


def _first(part: Rank) -> tuple[int, int]:
    """Shape of the first factor that is given of a product."""
    return part.terms, part.rows


class _SummedCotangent(_Cotangent):
    """The same that is kept as a sum over the lanes, but for what is of no part.

    Products of many numbers then lie in memory that is near to the processor.
    """

    def __init__(self, lanes: Lanes, pieces: Pieces, out: Buffer, summed: bool):
        super().__init__(lanes, pieces, out, summed)
        self._products: list[SummedProduct | None] = []
        self._vectors: list[int] = []
        for one in self._pairs:
            part, product = one.part, None
            if isinstance(part, Rank):
                product = SummedProduct(part, lanes.width)
                self._vectors.append(product.vectors)
            else:
                self._vectors.append(-(-part.rows * part.size // lanes.width))
            self._products.append(product)
        self._tables = [lanes.array(x) for x in self._vectors]

    @property
    def size(self) -> int:
        return sum(stop - start for start, stop in self.pieces.rest)

    def fill(self, value: float) -> None:
        super().fill(value)
        for size, table in zip(self._vectors, self._tables, strict=True):
            self.lanes.clear(size, table, value)

    def rest_from(self, start: int, at: int) -> Any:
        del start
        return self.lanes.offset(self.array, at)

    def adding(self, part: Rank | OneRow, number: int) -> tuple[Definition, Any]:
        product, kind = self._products[number], (self.lanes.width, self.lanes.dtype)
        if isinstance(part, OneRow):
            return row_onto_sum(part, *kind), self._tables[number]
        assert product is not None
        return product.function(self.lanes.dtype), self._tables[number]

    def store_block(self, block) -> None:
        lanes, out, at = self.lanes, self.out, 0
        for start, stop in self.pieces.rest:
            with lanes.loop(stop - start) as i:
                out.write(lanes.total(self.array, i + at), block, i + start)
            at += stop - start
        for part in self.pieces.parts:
            if isinstance(part, Zeros):
                with lanes.loop(part.stop - part.start) as i:
                    out.write(0.0, block, i + part.start)
        parts = zip(self._pairs, self._products, self._tables, strict=True)
        for pair, product, table in parts:
            part = pair.part
            size = part.stop - part.start
            with lanes.loop(size) as i:
                place = i if product is None else self._place(product, i)
                value = lanes.read(lanes.place(lanes.scalar, table, place))
                out.write(value, block, i + part.start)

    def _place(self, product: SummedProduct, i):
        """Where an entry of a product is kept, by its number."""
        columns = product.rank.columns
        row, column = i // columns, i % columns
        line, place = (row, column) if product.along_rows else (column, row)
        return line * product.apart + place
