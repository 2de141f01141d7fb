"""What discrete adjoints of fixed and of adaptive steps have in common."""

import operator
from contextlib import contextmanager
from functools import reduce
from typing import Any

from jaxdae.kernels.integration.cotangents import Cotangent, Totals
from jaxdae.kernels.integration.fixed_steps import Start
from jaxdae.kernels.integration.step_programs import transposed_pieces
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition


class RowsAtTimes:
    """Cotangents of the states at given times, taken up step by step from the last one on.

    Args:
        adjoint: the run back, its `lanes`, `members`, cotangent `bar` of the state, and others.
        times: to which the states belong.
    """

    def __init__(self, adjoint: Any, times: Buffer):
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

        def more():
            self._find(t0, first)
            return self._any.get().differs(0)

        with lanes.while_(more):
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

    def _find(self, t0, first) -> None:
        """The next row of each lane; zero for lanes that have none in this step."""
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
                self._take(row, time, member, lane)

    def _take(self, row, time, member, lane) -> None:
        lanes, n = self.lanes, self.adjoint.n
        self._any.set(1)
        lanes.set(time, self._t, lane)
        start = (row + int(self.adjoint.saving.start)) * n
        with lanes.loop(n) as i:
            bar = self.adjoint.row_bars.read(member, start + i)
            lanes.set(bar, self._bar, lane, i)
        lanes.set_count(row - 1, self.left, lane)


class Adjoint:
    """What adjoints of fixed and of adaptive steps have in common."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        problem = run.problem
        self.lanes, self.problem, self.saving, self.run = lanes, problem, run.saving, run
        self.n = problem.states
        self.start = Start(lanes, problem, ranks, active)
        count = len(self.start.arrays) + run.times
        self.row_bars = Buffer(lanes, lanes.arguments, count, None, ranks[count], 2)
        self.final_bar = Buffer(lanes, lanes.arguments, count + 1, self.n, ranks[count + 1], 1)
        self.members = lanes.counters()
        pieces = transposed_pieces(problem, active, run.saving.times)
        self.cotangents = [
            (Totals if one else Cotangent)(
                lanes, x, Buffer(lanes, lanes.results, i, x.result.size, 1 if one else rank, 1)
            )
            for i, (x, one) in enumerate(zip(pieces, (False, *summed), strict=True))
        ]
        # The cotangent of the state, and what is left of it by a step.
        self.bar, self.step_bar = self.cotangents[0].array, self.cotangents[0].step[0]
        self.k_bar = lanes.array(problem.dense)
        self.t0, self.t1, self.y = lanes.array(1), lanes.array(1), lanes.array(self.n)
        # The rates of one step, which follow its state where both are kept.
        self.rate_size = problem.method.evaluations(run.saving.times) * self.n
        self.rates = lanes.array(self.rate_size)
        self.rows = None
        if run.saving.times:
            index = count - 1
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self.rows = RowsAtTimes(self, times)

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
        first = self._first(index)
        last = lanes.end - 1
        with lanes.loop(lanes.width) as lane:
            member = lanes.minimum(first + lane, last)
            lanes.set_count(member, self.members, lane)
            self.begin(lane, member)
            self.final_bar.load(self.n, self.bar, lane, member)
            if self.rows is not None:
                left = self.rows.times.size - 1
                lanes.set_count(left, self.rows.left, lane)
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
            with then:
                self._spoil()
            with otherwise:
                yield [room for _, room in taken]
        for x, _ in taken:
            lanes.release(x)

    def _spoil(self) -> None:
        with self.blocks() as index:
            self.load(index)
            for one in self.cotangents:
                one.spoil()
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
            lanes.clear(self.problem.dense, self.k_bar)
            self.rows.collect(t0, t1, first)
        # What nothing depends on has no derivative, also where that of the step is not finite.
        dense = [] if self.rows is None else [(self.problem.dense, self.k_bar)]
        wanted = lanes.nonzero([(self.n, self.bar), *dense])
        lanes.call(
            "transposed_step", t0, t1, y, *self.start.fixed_back, rates, self.bar,
            *([] if self.rows is None else [self.k_bar]),
            *(array for one in self.cotangents for array in one.step),
        )  # fmt: skip
        for one in self.cotangents:
            totals = isinstance(one, Totals)
            one.keep(wanted & self.inside if totals else wanted)
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
        with lanes.loop(lanes.width) as lane, lanes.if_then(done(lane)):
            lanes.copy_lane(self.n, self.bar, self.step_bar, lane)
            for one in self.cotangents[1:]:
                one.leave(lane)
            if self.rows is not None:
                with lanes.loop(self.n) as i:
                    lanes.set(0.0, self.rows.y0_bar, lane, i)

    def add_row(self, row, lane) -> None:
        """Add the cotangent of a saved state to that of a lane's state."""
        lanes = self.lanes
        member, start = lanes.count(self.members, lane), row * self.n
        with lanes.loop(self.n) as i:
            more = self.row_bars.read(member, start + i)
            total = lanes.get(self.bar, lane, i) + more
            lanes.set(total, self.bar, lane, i)

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
