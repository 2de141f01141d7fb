"""Discrete adjoints: runs repeated, and gone through backwards, in one kernel.

The states of a run are not handed over from its first computation. They are computed again, block
by block of lanes, and kept only while the block is served: memory does not grow with the batch.
"""

from contextlib import contextmanager
from functools import reduce
from typing import Any

from llvmlite import ir

from jaxdae.kernels.adjoint_rows import RowsAtTimes
from jaxdae.kernels.controlled_steps import Control
from jaxdae.kernels.cotangents import Cotangent, inside, Totals
from jaxdae.kernels.given_steps import Start
from jaxdae.kernels.loops import Buffer, Lanes, POINTER, WHOLE, whole

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
    kind = _ControlledAdjoint if run.controlled else _GivenAdjoint
    adjoint = kind(lanes, run, active, ranks, rank, summed)
    adjoint.write()
    return "\n\n".join([*adjoint.texts(), lanes.finish()])


class _Adjoint:
    """What adjoints of given and of controlled steps have in common."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        problem = run.problem
        self.lanes, self.problem, self.saving, self.run = lanes, problem, run.saving, run
        self.n = problem.states
        self.start = Start(lanes, problem, ranks, active)
        count = len(self.start.arrays) + run.times
        self.row_bars = Buffer(lanes, lanes.arguments, count, None, ranks[count], 2)
        self.final_bar = Buffer(lanes, lanes.arguments, count + 1, self.n, ranks[count + 1], 1)
        self.members = lanes.counters()
        pieces = problem.transposed_pieces(active, run.saving.times)
        self.cotangents = [
            (Totals if one else Cotangent)(
                lanes, x, Buffer(lanes, lanes.results, i, x.result.size, 1 if one else rank, 1)
            )
            for i, (x, one) in enumerate(zip(pieces, (False, *summed), strict=True))
        ]
        # The cotangent of the state, and what is left of it by a step.
        self.bar, self.step_bar = self.cotangents[0].array, self.cotangents[0].step[0]
        self.k_bar = lanes.array(problem.stages * self.n)
        self.t0, self.t1, self.y = lanes.array(1), lanes.array(1), lanes.array(self.n)
        # The rates of one step, which follow its state where both are kept.
        self.rate_size = problem.rates_of_adjoint(run.saving.times) * self.n
        self.rates = lanes.array(self.rate_size)
        self.rows = None
        if run.saving.times:
            index = count - 1
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self.rows = RowsAtTimes(self, times)

    def texts(self) -> list[str]:
        """Functions that are called beside programs."""
        found: dict[str, str] = {}
        for x in self.cotangents:
            found.update(x.texts)
        return list(found.values())

    def blocks(self):
        """For each block of members, the first of them."""
        lanes, b = self.lanes, self.lanes.b
        size = b.sub(lanes.end, lanes.begin)
        count = b.sdiv(b.add(size, whole(lanes.width - 1)), whole(lanes.width))
        return lanes.loop(count)

    def load(self, index) -> None:
        """The members of a block; where there are too few, the last one more than once."""
        lanes, b = self.lanes, self.lanes.b
        first = b.add(lanes.begin, b.mul(index, whole(lanes.width)))
        last = b.sub(lanes.end, whole(1))
        with lanes.loop(lanes.width) as lane:
            member = lanes.minimum(b.add(first, lane), last)
            lanes.set_count(member, self.members, lane)
            self.begin(lane, member)
            self.final_bar.load(self.n, self.bar, lane, member)
            if self.rows is not None:
                left = b.sub(self.rows.times.size, whole(1))
                lanes.set_count(left, self.rows.left, lane)
        self.start.prepare()
        self.inside = inside(lanes, first, lanes.end)
        for one in self.cotangents[1:]:
            one.clear()

    @contextmanager
    def rooms(self, *vectors):
        """Memory for numbers of vectors; where there is too little, all results are NaN."""
        lanes, b = self.lanes, self.lanes.b
        taken = [lanes.reserve(x) for x in vectors]
        missing = [b.icmp_unsigned("==", x, ir.Constant(POINTER, None)) for x, _ in taken]
        with b.if_else(reduce(b.or_, missing)) as (then, otherwise):
            with then:
                self._spoil()
            with otherwise:
                yield [room for _, room in taken]
        for x, _ in taken:
            lanes.release(x)

    def _spoil(self) -> None:
        lanes = self.lanes
        nan = ir.Constant(lanes.vector, [lanes.number(float("nan"))] * lanes.width)
        with self.blocks() as index:
            self.load(index)
            for one in self.cotangents:
                one.spoil(nan)
            self.store(index)

    def begin(self, lane, member) -> None:
        """Put a member into a lane."""
        self.start.load(lane, member)

    def reverse_step(self, t0, t1, y, rates, first, done=None) -> None:
        """Go back over one step, of all lanes.

        Args:
            t0: its beginning.
            t1: its end.
            y: the state at its beginning.
            rates: those of its stages.
            first: whether it is the first step of a lane, as a function of the lane.
            done: whether a lane has no step any more, as a function of the lane; `None` for never.
        """
        lanes = self.lanes
        if self.rows is not None:
            lanes.clear(self.problem.stages * self.n, self.k_bar)
            self.rows.collect(t0, t1, first)
        # What nothing depends on has no derivative, also where that of the step is not finite.
        dense = [] if self.rows is None else [(self.problem.stages * self.n, self.k_bar)]
        wanted = lanes.nonzero([(self.n, self.bar), *dense])
        lanes.call(
            "transposed_step", t0, t1, y, *self.start.fixed_back, rates, self.bar,
            *([] if self.rows is None else [self.k_bar]),
            *(array for one in self.cotangents for array in one.step),
        )  # fmt: skip
        for one in self.cotangents:
            own = isinstance(one, Totals)
            one.keep(lanes.b.and_(wanted, self.inside) if own else wanted)
        if done is not None:
            self._leave(done)
        lanes.copy(self.n, self.step_bar, self.bar)
        if self.rows is not None:
            lanes.add(self.n, self.rows.y0_bar, self.bar)
        for one in self.cotangents[1:]:
            one.add()

    def _leave(self, done) -> None:
        """What a step adds to lanes that are done is nothing, whatever their equations give."""
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane, lanes.b.if_then(done(lane)):
            lanes.copy_lane(self.n, self.bar, self.step_bar, lane)
            for one in self.cotangents[1:]:
                one.leave(lane)
            if self.rows is not None:
                with lanes.loop(self.n) as i:
                    lanes.set(lanes.number(0.0), self.rows.y0_bar, lane, i)

    def add_row(self, row, lane) -> None:
        """Add the cotangent of a saved state to that of a lane's state."""
        lanes, b = self.lanes, self.lanes.b
        member, start = lanes.count(self.members, lane), b.mul(row, whole(self.n))
        with lanes.loop(self.n) as i:
            more = self.row_bars.read(member, b.add(start, i))
            total = b.fadd(lanes.get(self.bar, lane, i), more)
            lanes.set(total, self.bar, lane, i)

    def store(self, index) -> None:
        """Write the results of a block."""
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            if self.saving.start:
                self.add_row(whole(0), lane)
            member = lanes.count(self.members, lane)
            for one in self.cotangents:
                one.store(lane, member)
        block = lanes.b.sdiv(lanes.begin, whole(lanes.width))
        for one in self.cotangents:
            one.store_block(lanes.b.add(block, index))


class _GivenAdjoint(_Adjoint):
    """All lanes go through the same steps; of many, only the states of one section are kept."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        b = lanes.b
        self.grid = Buffer(lanes, lanes.arguments, len(self.start.arrays), None, 0, 1)
        self.steps = b.sub(self.grid.size, whole(1))
        self.entries = self.n + self.rate_size
        most = max(_KEPT_BYTES // (self.entries * lanes.width * run.problem.dtype.itemsize), 1)
        few = b.icmp_signed("<=", self.steps, whole(most))
        root = self._root(self.steps)
        length = b.select(few, self.steps, root)
        self.length = b.select(b.icmp_signed(">", length, whole(0)), length, whole(1))
        rounded = b.add(self.steps, b.sub(self.length, whole(1)))
        self.sections = b.sdiv(rounded, self.length)

    def _root(self, count):
        """The square root of a whole number, rounded up."""
        b = self.lanes.b
        guess = self.lanes.variable(WHOLE, whole(1))

        def small():
            g = b.load(guess, typ=WHOLE)
            return b.icmp_signed("<", b.mul(g, g), count)

        with self.lanes.while_(small):
            b.store(b.add(b.load(guess, typ=WHOLE), whole(1)), guess)
        return b.load(guess, typ=WHOLE)

    def write(self) -> None:
        lanes, b = self.lanes, self.lanes.b
        sizes = (self.sections, whole(self.n)), (self.length, whole(self.entries))
        with self.rooms(*(b.mul(*x) for x in sizes)) as (starts, inner), self.blocks() as index:
            self.load(index)
            self._forward(starts)
            with lanes.down(self.sections) as section:
                self._reverse_section(section, starts, inner)
            self.store(index)

    def _kept(self, room, i, size: int):
        return self.lanes.offset(room, self.lanes.b.mul(i, whole(size)))

    def _forward(self, starts) -> None:
        """Keep the state at the start of each section."""
        lanes, b, n = self.lanes, self.lanes.b, self.n
        lanes.copy(n, self.start.state, self.y)
        with lanes.loop(self.sections) as section:
            lanes.copy(n, self.y, self._kept(starts, section, n))
            last = b.icmp_signed("==", section, b.sub(self.sections, whole(1)))
            with lanes.loop(b.select(last, whole(0), self.length)) as j:
                self._step(b.add(b.mul(section, self.length), j), self.rates)

    def _step(self, i, rates) -> None:
        self._set_times(i)
        given = (self.t0, self.t1, self.y, *self.start.fixed_back)
        self.lanes.call("plain_step", *given, self.step_bar, rates)
        self.lanes.copy(self.n, self.step_bar, self.y)

    def _set_times(self, i) -> None:
        lanes = self.lanes
        lanes.fill(self.grid.read(whole(0), i), self.t0)
        lanes.fill(self.grid.read(whole(0), lanes.b.add(i, whole(1))), self.t1)

    def _reverse_section(self, section, starts, inner) -> None:
        lanes, b, n = self.lanes, self.lanes.b, self.n
        first = b.mul(section, self.length)
        count = lanes.minimum(self.length, b.sub(self.steps, first))
        lanes.copy(n, self._kept(starts, section, n), self.y)
        with lanes.loop(count) as j:
            kept = self._kept(inner, j, self.entries)
            lanes.copy(n, self.y, kept)
            self._step(b.add(first, j), lanes.offset(kept, whole(n)))
        with lanes.down(count) as j:
            i = b.add(first, j)
            self._set_times(i)
            self._add_rows_at_steps(i)
            start = b.icmp_signed("==", i, whole(0))
            kept = self._kept(inner, j, self.entries)
            rates = lanes.offset(kept, whole(n))
            self.reverse_step(self.t0, self.t1, kept, rates, lambda lane: start)  # noqa: ARG005

    def _add_rows_at_steps(self, i) -> None:
        lanes, b, every = self.lanes, self.lanes.b, self.saving.every
        if not every:
            return
        rest = b.srem(b.add(i, whole(1)), whole(every))
        with b.if_then(b.icmp_signed("==", rest, whole(0))):
            row = b.add(b.sdiv(i, whole(every)), whole(int(self.saving.start)))
            with lanes.loop(lanes.width) as lane:
                self.add_row(row, lane)


class _ControlledAdjoint(_Adjoint):
    """Each lane has its own steps: the accepted ones are listed, and gone through backwards."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        self.control = Control(lanes, run, self.start, ranks)
        self.tried, self.listed = lanes.counters(), lanes.counters()
        self.busy, self.any = lanes.counters(), lanes.variable(WHOLE, whole(0))
        self.most = lanes.variable(WHOLE, whole(0))
        # Of each step: its two ends, and the state at its beginning.
        self.entries = self.n + 2
        self.entry = lanes.array(self.entries)

    def begin(self, lane, member) -> None:
        self.control.load(lane, member)
        for counter in (self.tried, self.listed):
            self.lanes.set_count(whole(0), counter, lane)

    def write(self) -> None:
        lanes, b = self.lanes, self.lanes.b
        size = whole(self.run.max_steps * self.entries)
        with self.rooms(size) as (log,), self.blocks() as index:
            self.load(index)
            self._forward(log)
            if self.rows is not None:
                self.rows.skip_unreached(self.control.step.t0)
            b.store(whole(0), self.most)
            with lanes.loop(lanes.width) as lane:
                count, most = lanes.count(self.listed, lane), b.load(self.most, typ=WHOLE)
                b.store(b.select(b.icmp_signed(">", count, most), count, most), self.most)
            with lanes.loop(b.load(self.most, typ=WHOLE)) as i:
                self._reverse(i, log)
            self._add_rows_of_no_steps()
            self.store(index)

    def _forward(self, log) -> None:
        lanes, b = self.lanes, self.lanes.b
        with lanes.loop(lanes.width) as lane:
            lanes.set_count(b.zext(self.control.unfinished(lane), WHOLE), self.busy, lane)
        self.control.begin_steps(self._is_busy)
        with lanes.while_(self._any_busy):
            self.control.advance()
            with lanes.loop(lanes.width) as lane, b.if_then(self._is_busy(lane)):
                self._proceed(log, lane)

    def _is_busy(self, lane):
        return self.lanes.b.icmp_signed("!=", self.lanes.count(self.busy, lane), whole(0))

    def _any_busy(self):
        lanes, b = self.lanes, self.lanes.b
        b.store(whole(0), self.any)
        with lanes.loop(lanes.width) as lane:
            b.store(b.or_(b.load(self.any, typ=WHOLE), lanes.count(self.busy, lane)), self.any)
        return b.icmp_signed("!=", b.load(self.any, typ=WHOLE), whole(0))

    def _proceed(self, log, lane) -> None:
        lanes, b, control = self.lanes, self.lanes.b, self.control
        with b.if_then(control.accepted(lane)):
            count = lanes.count(self.listed, lane)
            place = self._logged(log, count)
            lanes.copy_lane(1, control.step.t0, place, lane)
            lanes.copy_lane(1, control.step.t1, lanes.offset(place, whole(1)), lane)
            state = lanes.offset(place, whole(2))
            lanes.copy_lane(self.n, control.step.y0, state, lane)
            lanes.set_count(b.add(count, whole(1)), self.listed, lane)
        control.proceed(lane)
        tried = b.add(lanes.count(self.tried, lane), whole(1))
        lanes.set_count(tried, self.tried, lane)
        more = b.icmp_signed("<", tried, whole(self.run.max_steps))
        on = b.and_(control.unfinished(lane), b.not_(control.failed(lane)))
        lanes.set_count(b.zext(b.and_(on, more), WHOLE), self.busy, lane)

    def _logged(self, log, i):
        return self.lanes.offset(log, self.lanes.b.mul(i, whole(self.entries)))

    def _reverse(self, turn, log) -> None:
        """Go back over the last step of each lane that is not done yet.

        A lane that is done goes over a step of no length, which leaves its cotangents as they are.
        """
        lanes, b = self.lanes, self.lanes.b
        with lanes.loop(lanes.width) as lane:
            index = self._index(turn, lane)
            safe = b.select(b.icmp_signed("<", index, whole(0)), whole(0), index)
            lanes.copy_lane(self.entries, self._logged(log, safe), self.entry, lane)
            with b.if_then(b.icmp_signed("<", index, whole(0))):
                for end in (self.entry, lanes.offset(self.entry, whole(1))):
                    lanes.copy_lane(1, self.control.begin, end, lane)
                lanes.copy_lane(self.n, self.start.state, lanes.offset(self.entry, whole(2)), lane)
            with b.if_then(b.icmp_signed(">=", index, whole(0))):
                self._add_row_of_step(index, lane)
        t0, t1, y = (lanes.offset(self.entry, whole(i)) for i in range(3))
        lanes.call("plain_step", t0, t1, y, *self.start.fixed_back, self.step_bar, self.rates)
        self.reverse_step(
            t0,
            t1,
            y,
            self.rates,
            lambda lane: b.icmp_signed("==", self._index(turn, lane), whole(0)),
            lambda lane: b.icmp_signed("<", self._index(turn, lane), whole(0)),
        )

    def _add_rows_of_no_steps(self) -> None:
        """Where a run ends where it begins, all rows at given times are its start."""
        lanes, b = self.lanes, self.lanes.b
        if self.rows is None:
            return
        first = whole(int(self.saving.start))
        size = self.rows.times.size
        with lanes.loop(lanes.width) as lane:
            begin, end = lanes.get(self.control.begin, lane), lanes.get(self.control.end, lane)
            with b.if_then(b.fcmp_ordered(">=", begin, end)), lanes.loop(size) as i:
                self.add_row(b.add(first, i), lane)

    def _index(self, turn, lane):
        b = self.lanes.b
        return b.sub(b.sub(self.lanes.count(self.listed, lane), whole(1)), turn)

    def _add_row_of_step(self, index, lane) -> None:
        b, every = self.lanes.b, self.saving.every
        if not every:
            return
        rest = b.srem(b.add(index, whole(1)), whole(every))
        with b.if_then(b.icmp_signed("==", rest, whole(0))):
            self.add_row(b.add(b.sdiv(index, whole(every)), whole(int(self.saving.start))), lane)
