"""Cotangents of states at given times, on the way back over the steps of a run."""

from typing import Any

from jaxdae.kernels.llvm.batch_loops import Buffer


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
