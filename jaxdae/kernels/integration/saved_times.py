"""How a lane of a run saves states at given times."""

from typing import Any, NamedTuple

from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes


class Step(NamedTuple):
    """Arrays of one step: its two ends in time, the states there, and the increments."""

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k: Any


class TimeRows:
    """Saves states at given times: for each lane, what lies in the step it has just made.

    Args:
        lanes: the builder.
        states: numbers of a state.
        times: the given times.
        rows: where states are saved.
        first: the row of the first given time.
    """

    def __init__(self, lanes: Lanes, states: int, times: Buffer, rows: Buffer, first: int):
        self.lanes, self.states, self.times, self.rows = lanes, states, times, rows
        self.first = first
        self.saved = lanes.counters()
        self._t, self._y = lanes.array(1), lanes.array(states)
        self._any = lanes.variable(0)

    def save(self, step: Step, members, wanted, until=None) -> None:
        """Save what is due.

        Args:
            step: the step; the same increments serve all lanes.
            members: member of the batch in each lane.
            wanted: whether a lane's step counts, as a function of the lane; `None` for all.
            until: up to where it does, a time of each lane; `None` for its end.
        """
        lanes = self.lanes
        until = step.t1 if until is None else until
        with lanes.while_(lambda: self._find(until, members, wanted)):
            lanes.call("interpolate", *step, self._t, self._y)
            each = lanes.loop(lanes.width)
            with each as lane, lanes.if_then(self._due(until, members, wanted, lane)):
                member, row = lanes.count(members, lane), lanes.count(self.saved, lane)
                start = (row + self.first) * self.states
                self.rows.store(self.states, self._y, lane, member, start)
                lanes.set_count(row + 1, self.saved, lane)

    def _find(self, until, members, wanted):
        """Set the time of each lane; whether any has one that is due."""
        lanes = self.lanes
        self._any.set(0)
        with lanes.loop(lanes.width) as lane:
            lanes.set(lanes.get(until, lane), self._t, lane)
            with lanes.if_then(self._due(until, members, wanted, lane)):
                lanes.set(self._time(members, lane), self._t, lane)
                self._any.set(1)
        return self._any.get().differs(0)

    def _due(self, until, members, wanted, lane):
        lanes = self.lanes
        last = self.times.size - 1
        more = lanes.count(self.saved, lane) <= last
        # Beyond the last time there is none to read.
        reached = self._time(members, lane) <= lanes.get(until, lane)
        due = more & reached
        return due if wanted is None else due & wanted(lane)

    def _time(self, members, lane):
        lanes = self.lanes
        last = self.times.size - 1
        index = lanes.minimum(lanes.count(self.saved, lane), last)
        return self.times.read(lanes.count(members, lane), index)
