"""Cotangents of states at given times, on the way back over the steps of a run."""

from typing import Any

from jaxdae.kernels.llvm.batch_loops import Buffer, INTEGER, integer


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
        self._any = lanes.variable(INTEGER, integer(0))

    def collect(self, t0, t1, first) -> None:
        """Add what the rows within a step bring to the cotangents of its parts."""
        lanes, adjoint, b = self.lanes, self.adjoint, self.lanes.b
        lanes.clear(adjoint.n, self.y0_bar)

        def more():
            self._find(t0, first)
            return b.icmp_signed("!=", b.load(self._any, typ=INTEGER), integer(0))

        with lanes.while_(more):
            lanes.call("transposed_interpolation", t0, t1, self._t, self._bar, *self._parts)
            lanes.add(adjoint.n, self._parts[0], self.y0_bar)
            lanes.add(adjoint.n, self._parts[1], adjoint.bar)
            lanes.add(adjoint.problem.dense, self._parts[2], adjoint.k_bar)

    def skip_unreached(self, reached) -> None:
        """Leave out rows behind the time that each lane reached."""
        lanes, b = self.lanes, self.lanes.b
        with lanes.loop(lanes.width) as lane:

            def beyond(lane=lane):
                row, member = lanes.count(self.left, lane), lanes.count(self.adjoint.members, lane)
                exists = b.icmp_signed(">=", row, integer(0))
                time = self.times.read(member, b.select(exists, row, integer(0)))
                late = b.fcmp_unordered(">", time, lanes.get(reached, lane))
                return b.and_(exists, late)

            with lanes.while_(beyond):
                left = b.sub(lanes.count(self.left, lane), integer(1))
                lanes.set_count(left, self.left, lane)

    def _find(self, t0, first) -> None:
        """The next row of each lane; zero for lanes that have none in this step."""
        lanes, b = self.lanes, self.lanes.b
        b.store(integer(0), self._any)
        lanes.clear(self.adjoint.n, self._bar)
        lanes.copy(1, t0, self._t)
        with lanes.loop(lanes.width) as lane:
            row = lanes.count(self.left, lane)
            member = lanes.count(self.adjoint.members, lane)
            safe = b.select(b.icmp_signed("<", row, integer(0)), integer(0), row)
            time = self.times.read(member, safe)
            inside = b.or_(b.fcmp_ordered(">", time, lanes.get(t0, lane)), first(lane))
            with b.if_then(b.and_(b.icmp_signed(">=", row, integer(0)), inside)):
                self._take(row, time, member, lane)

    def _take(self, row, time, member, lane) -> None:
        lanes, b, n = self.lanes, self.lanes.b, self.adjoint.n
        b.store(integer(1), self._any)
        lanes.set(time, self._t, lane)
        start = b.mul(b.add(row, integer(int(self.adjoint.saving.start))), integer(n))
        with lanes.loop(n) as i:
            bar = self.adjoint.row_bars.read(member, b.add(start, i))
            lanes.set(bar, self._bar, lane, i)
        lanes.set_count(b.sub(row, integer(1)), self.left, lane)
