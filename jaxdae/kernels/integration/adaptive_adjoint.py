"""Discrete adjoints of adaptive steps."""

from typing import Any

from jaxdae.kernels.integration.adaptive_steps import Control
from jaxdae.kernels.integration.adjoint import Adjoint
from jaxdae.kernels.llvm.batch_loops import Lanes


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
