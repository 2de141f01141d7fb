"""Discrete adjoints of adaptive steps."""

from typing import Any

from jaxdae.kernels.integration.adaptive_steps import Control
from jaxdae.kernels.integration.adjoint import Adjoint
from jaxdae.kernels.llvm.batch_loops import INTEGER, integer, Lanes


class AdaptiveAdjoint(Adjoint):
    """Each lane has its own steps: the accepted ones are listed, and gone through backwards."""

    def __init__(self, lanes: Lanes, run: Any, active, ranks, rank: int, summed):
        super().__init__(lanes, run, active, ranks, rank, summed)
        self.control = Control(lanes, run, self.start, ranks)
        self.tried, self.listed = lanes.counters(), lanes.counters()
        self.busy, self.any = lanes.counters(), lanes.variable(INTEGER, integer(0))
        self.most = lanes.variable(INTEGER, integer(0))
        # Of each step: its two ends, and the state at its beginning.
        self.entries = self.n + 2
        self.entry = lanes.array(self.entries)

    def begin(self, lane, member) -> None:
        self.control.load(lane, member)
        for counter in (self.tried, self.listed):
            self.lanes.set_count(integer(0), counter, lane)

    def write(self) -> None:
        lanes, b = self.lanes, self.lanes.b
        size = integer(self.run.max_steps * self.entries)
        with self.rooms(size) as (log,), self.blocks() as index:
            self.load(index)
            self._forward(log)
            if self.rows is not None:
                self.rows.skip_unreached(self.control.step.t0)
            b.store(integer(0), self.most)
            with lanes.loop(lanes.width) as lane:
                count, most = lanes.count(self.listed, lane), b.load(self.most, typ=INTEGER)
                b.store(b.select(b.icmp_signed(">", count, most), count, most), self.most)
            with lanes.loop(b.load(self.most, typ=INTEGER)) as i:
                self._reverse(i, log)
            self._add_rows_of_no_steps()
            self.store(index)

    def _forward(self, log) -> None:
        lanes, b = self.lanes, self.lanes.b
        with lanes.loop(lanes.width) as lane:
            lanes.set_count(b.zext(self.control.unfinished(lane), INTEGER), self.busy, lane)
        self.control.begin_steps(self._is_busy)
        with lanes.while_(self._any_busy):
            self.control.advance()
            with lanes.loop(lanes.width) as lane, b.if_then(self._is_busy(lane)):
                self._proceed(log, lane)

    def _is_busy(self, lane):
        return self.lanes.b.icmp_signed("!=", self.lanes.count(self.busy, lane), integer(0))

    def _any_busy(self):
        lanes, b = self.lanes, self.lanes.b
        b.store(integer(0), self.any)
        with lanes.loop(lanes.width) as lane:
            b.store(b.or_(b.load(self.any, typ=INTEGER), lanes.count(self.busy, lane)), self.any)
        return b.icmp_signed("!=", b.load(self.any, typ=INTEGER), integer(0))

    def _proceed(self, log, lane) -> None:
        lanes, b, control = self.lanes, self.lanes.b, self.control
        with b.if_then(control.accepted(lane)):
            count = lanes.count(self.listed, lane)
            place = self._logged(log, count)
            lanes.copy_lane(1, control.step.t0, place, lane)
            lanes.copy_lane(1, control.step.t1, lanes.offset(place, integer(1)), lane)
            state = lanes.offset(place, integer(2))
            lanes.copy_lane(self.n, control.step.y0, state, lane)
            lanes.set_count(b.add(count, integer(1)), self.listed, lane)
        control.proceed(lane)
        tried = b.add(lanes.count(self.tried, lane), integer(1))
        lanes.set_count(tried, self.tried, lane)
        more = b.icmp_signed("<", tried, integer(self.run.max_steps))
        on = b.and_(control.unfinished(lane), b.not_(control.failed(lane)))
        lanes.set_count(b.zext(b.and_(on, more), INTEGER), self.busy, lane)

    def _logged(self, log, i):
        return self.lanes.offset(log, self.lanes.b.mul(i, integer(self.entries)))

    def _reverse(self, turn, log) -> None:
        """Go back over the last step of each lane that is not done yet.

        A lane that is done goes over a step of no length, which leaves its cotangents as they are.
        """
        lanes, b = self.lanes, self.lanes.b
        with lanes.loop(lanes.width) as lane:
            index = self._index(turn, lane)
            safe = b.select(b.icmp_signed("<", index, integer(0)), integer(0), index)
            lanes.copy_lane(self.entries, self._logged(log, safe), self.entry, lane)
            with b.if_then(b.icmp_signed("<", index, integer(0))):
                for end in (self.entry, lanes.offset(self.entry, integer(1))):
                    lanes.copy_lane(1, self.control.begin, end, lane)
                lanes.copy_lane(
                    self.n, self.start.state, lanes.offset(self.entry, integer(2)), lane
                )
            with b.if_then(b.icmp_signed(">=", index, integer(0))):
                self._add_row_of_step(index, lane)
        t0, t1, y = (lanes.offset(self.entry, integer(i)) for i in range(3))
        lanes.call("plain_step", t0, t1, y, *self.start.fixed_back, self.step_bar, self.rates)
        self.reverse_step(
            t0,
            t1,
            y,
            self.rates,
            lambda lane: b.icmp_signed("==", self._index(turn, lane), integer(0)),
            lambda lane: b.icmp_signed("<", self._index(turn, lane), integer(0)),
        )

    def _add_rows_of_no_steps(self) -> None:
        """Where a run ends where it begins, all rows at given times are its start."""
        lanes, b = self.lanes, self.lanes.b
        if self.rows is None:
            return
        first = integer(int(self.saving.start))
        size = self.rows.times.size
        with lanes.loop(lanes.width) as lane:
            begin, end = lanes.get(self.control.begin, lane), lanes.get(self.control.end, lane)
            with b.if_then(b.fcmp_ordered(">=", begin, end)), lanes.loop(size) as i:
                self.add_row(b.add(first, i), lane)

    def _index(self, turn, lane):
        b = self.lanes.b
        return b.sub(b.sub(self.lanes.count(self.listed, lane), integer(1)), turn)

    def _add_row_of_step(self, index, lane) -> None:
        b, every = self.lanes.b, self.saving.every
        if not every:
            return
        rest = b.srem(b.add(index, integer(1)), integer(every))
        with b.if_then(b.icmp_signed("==", rest, integer(0))):
            self.add_row(
                b.add(b.sdiv(index, integer(every)), integer(int(self.saving.start))), lane
            )
