"""Runs with adaptive steps: each lane has its own, and takes the next member when it is done."""

from typing import Any

import diffrax

from jaxdae.kernels.integration.fixed_steps import Start
from jaxdae.kernels.integration.saved_times import Step, TimeRows
from jaxdae.kernels.integration.saving import Saving, Summary
from jaxdae.kernels.integration.step_ends import StepEnds
from jaxdae.kernels.integration.step_programs import control_shape
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition

_REACHED: Any = diffrax.RESULTS.max_steps_reached
_OCCURRED: Any = diffrax.RESULTS.event_occurred
_SUCCESSFUL, _MAX_STEPS, _EVENT = 0.0, float(_REACHED._value), float(_OCCURRED._value)


class Control:
    """Step size control of all lanes: the arrays that `advance` takes and gives.

    Args:
        lanes: the builder.
        start: the members' starts and parameters.
        ranks: axes of the batch in each argument.
        run: what is compiled.
    """

    def __init__(self, lanes: Lanes, run: Any, start: Start, ranks):
        problem, given_first = run.problem, run.given_first
        self.lanes, self.problem, self.start = lanes, problem, start
        self._dense = run.saving.times or problem.event is not None
        n = problem.states
        self.states = int(control_shape(problem).size)
        count = len(start.arrays)
        self._given = [
            Buffer(lanes, lanes.arguments, count + i, 1, ranks[count + i], 0)
            for i in range(3 + given_first)
        ]
        self.given = [lanes.array(1) for _ in self._given]
        self.begin, self.end, self.floor, *self._first = self.given
        self.step = Step(*(lanes.array(k) for k in (1, 1, n, n, problem.dense)))
        self.control, self._next_control = lanes.array(self.states), lanes.array(self.states)
        self._carry, self._next_carry = lanes.array(problem.carried), lanes.array(problem.carried)
        self.keep, self.code, self._t0, self._t1 = (lanes.array(1) for _ in range(4))
        self._ends = None
        if run.step_ends:
            index = count + len(self._given)
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self._ends = StepEnds(lanes, times)
        self.event = None if problem.event is None else _Event(lanes, n)

    def load(self, lane, member) -> None:
        """Put the start of a member into a lane."""
        lanes = self.lanes
        self.start.load(lane, member)
        for argument, array in zip(self._given, self.given, strict=True):
            argument.load(1, array, lane, member)
        lanes.copy_lane(self.problem.states, self.start.state, self.step.y0, lane)
        lanes.set(lanes.get(self.begin, lane), self.step.t0, lane)
        if self._ends is not None:
            self._ends.load(lane, member)
            self._ends.proceed(self.step.t0, self.end, lane)

    def begin_steps(self, wanted) -> None:
        """Find the first steps of those lanes that want one; `wanted(lane)` is a boolean."""
        lanes, start = self.lanes, self.start
        start.prepare()
        lanes.call(
            "start", self.step.t0, self.end, *self._first, self.step.y0, *start.fixed,
            self._t1, self._next_control, self._next_carry,
        )  # fmt: skip
        with lanes.loop(lanes.width) as lane, lanes.if_then(wanted(lane)):
            lanes.copy_lane(1, self._t1, self.step.t1, lane)
            if self._ends is not None:
                self._ends.limit(self.step.t0, self.step.t1, lane)
            self._take(lane)
        if self.event is not None:
            self.event.begin(self.step, self.start.fixed, wanted)

    def advance(self) -> None:
        """Try a step of all lanes."""
        self.lanes.call(
            "advance", self.step.t0, self.step.t1, self.end, self.floor, self.control,
            self.step.y0, self._carry, *self.start.fixed,
            self.keep, self.code, self._t0, self._t1, self._next_control, self.step.y1,
            self._next_carry, *([self.step.k] if self._dense else []),
        )  # fmt: skip

    def accepted(self, lane):
        """Whether the step of a lane is kept."""
        return self.lanes.get(self.keep, lane).differs(0.0)

    def proceed(self, lane) -> None:
        """Take over what a tried step of a lane gave: the next step, and the state if kept."""
        lanes = self.lanes
        lanes.copy_lane(1, self._t0, self.step.t0, lane)
        lanes.copy_lane(1, self._t1, self.step.t1, lane)
        lanes.copy_lane(self.states, self._next_control, self.control, lane)
        with lanes.if_then(self.accepted(lane)):
            lanes.copy_lane(self.problem.states, self.step.y1, self.step.y0, lane)
            lanes.copy_lane(self.problem.carried, self._next_carry, self._carry, lane)
        if self._ends is not None:
            self._ends.proceed(self.step.t0, self.end, lane)
            self._ends.limit(self.step.t0, self.step.t1, lane)

    def begin_after_jumps(self, any_lane) -> None:
        """Evaluate anew, in lanes that passed a jump, what a step takes over from the last one.

        Args:
            any_lane: room for an integer.
        """
        lanes, ends, carried = self.lanes, self._ends, self.problem.carried
        if ends is None or not carried:
            return
        any_lane.set(0)
        with lanes.loop(lanes.width) as lane, lanes.if_then(ends.jumped(lane)):
            any_lane.set(1)
        with lanes.if_then(any_lane.get().differs(0)):
            lanes.call("begin", self.step.t0, self.step.y0, *self.start.fixed, self._next_carry)
            with lanes.loop(lanes.width) as lane, lanes.if_then(ends.jumped(lane)):
                lanes.copy_lane(carried, self._next_carry, self._carry, lane)

    def failed(self, lane):
        """Whether the controller gave up a lane."""
        return self.lanes.get(self.code, lane).differs(0.0)

    def unfinished(self, lane):
        """Whether a lane is before its end."""
        lanes = self.lanes
        return lanes.get(self.step.t0, lane) < lanes.get(self.end, lane)

    def _take(self, lane) -> None:
        self.lanes.copy_lane(self.states, self._next_control, self.control, lane)
        self.lanes.copy_lane(self.problem.carried, self._next_carry, self._carry, lane)


class _Event:
    """Where the runs of all lanes end before their time.

    Args:
        lanes: the builder.
        states: numbers of a state.
    """

    def __init__(self, lanes: Lanes, states: int):
        self.lanes, self.states = lanes, states
        self.until, self.state = lanes.array(1), lanes.array(states)
        self._value, self._following, self._time = (lanes.array(1) for _ in range(3))
        self._located, self._fallen = lanes.array(states), lanes.counters()

    def begin(self, step: Step, fixed, wanted) -> None:
        """Evaluate the function at the starts of those lanes that want it."""
        lanes = self.lanes
        lanes.call("value", step.t0, step.y0, *fixed, self._following)
        with lanes.loop(lanes.width) as lane, lanes.if_then(wanted(lane)):
            lanes.copy_lane(1, self._following, self._value, lane)

    def find(self, step: Step, fixed, wanted, any_lane) -> None:
        """Find where a step ends in each lane: at its end, or where the function falls to zero.

        Args:
            step: that was tried.
            fixed: what programs take behind the state.
            wanted: whether the step of a lane is kept.
            any_lane: room for an integer.
        """
        lanes = self.lanes
        lanes.call("value", step.t1, step.y1, *fixed, self._following)
        any_lane.set(0)
        with lanes.loop(lanes.width) as lane:
            lanes.copy_lane(1, step.t1, self.until, lane)
            lanes.set_count(0, self._fallen, lane)
            with lanes.if_then(wanted(lane)):
                above = lanes.get(self._value, lane) > 0.0
                with lanes.if_then(above & (lanes.get(self._following, lane) <= 0.0)):
                    lanes.set_count(1, self._fallen, lane)
                    any_lane.set(1)
                lanes.copy_lane(1, self._following, self._value, lane)
        with lanes.if_then(any_lane.get().differs(0)):
            # Lanes of other members have a step as well, in which nothing is found.
            lanes.call("fall", *step, *fixed, self._time, self._located)
            with lanes.loop(lanes.width) as lane, lanes.if_then(self.occurred(lane)):
                lanes.copy_lane(1, self._time, self.until, lane)
                lanes.copy_lane(self.states, self._located, self.state, lane)

    def occurred(self, lane):
        """Whether the function has fallen in the step of a lane."""
        return self.lanes.count(self._fallen, lane).differs(0)

    def end(self, step: Step, lane) -> None:
        """End the step of a lane where the function has fallen."""
        self.lanes.copy_lane(1, self.until, step.t0, lane)
        self.lanes.copy_lane(self.states, self.state, step.y0, lane)


def adaptive_steps(run: Any, lanes: Lanes, ranks: tuple[int, ...], rank: int) -> Definition:
    """`@run` for adaptive steps.

    Arguments are the start, the parameters, the two ends of the run, the time from which on a step
    reaches the end, the length of the first step where it is given, times at which steps end where
    there are any (`step_ends`), and the times to save; results
    the saved states, the final one, the saved times, and what the run tells of itself.

    Args:
        run: what is compiled.
        lanes: what the function is written to.
        ranks: axes of the batch in each argument; zero where its members share it.
        rank: axes of the batch.

    Returns:
        The definition.
    """
    _AdaptiveSteps(lanes, run, ranks, rank).write()
    return lanes.finish()


class _AdaptiveSteps:
    def __init__(self, lanes: Lanes, run: Any, ranks, rank: int):
        problem, self.saving = run.problem, run.saving
        saving: Saving = run.saving
        self.lanes, self.max_steps, self.n = lanes, run.max_steps, problem.states
        self.start = Start(lanes, problem, ranks)
        self.control = Control(lanes, run, self.start, ranks)
        self.rows = Buffer(lanes, lanes.results, 0, None, rank, 2)
        self.final = Buffer(lanes, lanes.results, 1, self.n, rank, 1)
        self.row_times = Buffer(lanes, lanes.results, 2, None, rank, 1)
        self.summary = Buffer(lanes, lanes.results, 3, len(Summary._fields), rank, 1)
        self.members, self.busy, self.fresh = (lanes.counters() for _ in range(3))
        self.steps, self.kept_steps = lanes.counters(), lanes.counters()
        # Rows of each lane that are written: those at given times are counted elsewhere.
        self.written = lanes.counters()
        self.next = lanes.variable(lanes.begin)
        self.any = lanes.variable(0)
        self.at_times = None
        if saving.times:
            index = len(self.start.arrays) + run.times - 1
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self.at_times = TimeRows(lanes, self.n, times, self.rows, int(saving.start))

    def write(self) -> None:
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            # A lane that is never busy computes the first member, without keeping anything.
            self.control.load(lane, lanes.begin)
            lanes.set_count(lanes.begin, self.members, lane)
        with lanes.while_(self._refilled):
            self.control.advance()
            step, until, event = self.control.step, None, self.control.event
            if event is not None:
                event.find(step, self.start.fixed, self._kept, self.any)
                until = event.until
            if self.at_times is not None:
                self.at_times.save(step, self.members, self._kept, until)
            with lanes.loop(lanes.width) as lane, lanes.if_then(self._is(self.busy, lane)):
                self._proceed(lane)
            self.control.begin_after_jumps(self.any)

    def _kept(self, lane):
        return self._is(self.busy, lane) & self.control.accepted(lane)

    def _is(self, flags, lane):
        return self.lanes.count(flags, lane).differs(0)

    def _refilled(self):
        """Give members to idle lanes; whether any lane is busy."""
        lanes = self.lanes
        self.any.set(0)
        with lanes.loop(lanes.width) as lane:
            self._fill(lane)
            with lanes.if_then(self._is(self.fresh, lane)):
                self.any.set(1)
        with lanes.if_then(self._anything()):
            self.control.begin_steps(lambda lane: self._is(self.fresh, lane))
        self.any.set(0)
        with lanes.loop(lanes.width) as lane:
            lanes.set_count(0, self.fresh, lane)
            with lanes.if_then(self._is(self.busy, lane)):
                self.any.set(1)
        return self._anything()

    def _anything(self):
        return self.any.get().differs(0)

    def _fill(self, lane) -> None:
        """Members for an idle lane until there is one whose run has any steps."""
        lanes = self.lanes

        def wanting():
            more = self.next.get() < lanes.end
            return more & ~self._is(self.busy, lane)

        with lanes.while_(wanting):
            member = self.next.get()
            self.next.set(member + lanes.stride)
            lanes.set_count(member, self.members, lane)
            self.control.load(lane, member)
            for counter in (self.steps, self.kept_steps, self.written):
                lanes.set_count(0, counter, lane)
            if self.at_times is not None:
                lanes.set_count(0, self.at_times.saved, lane)
            if self.saving.start:
                self._save(lane)
            with lanes.if_else(self.control.unfinished(lane)) as (then, otherwise):
                with then:
                    for flag in (self.busy, self.fresh):
                        lanes.set_count(1, flag, lane)
                with otherwise:
                    self._save_at_start(lane)
                    self._finish(lane, _SUCCESSFUL)

    def _save_at_start(self, lane) -> None:
        """All given times of a run that ends where it begins are that one."""
        lanes, at_times = self.lanes, self.at_times
        if at_times is None:
            return
        member, state = lanes.count(self.members, lane), self.control.step.y0
        with lanes.loop(at_times.times.size) as i:
            start = (i + at_times.first) * self.n
            self.rows.store(self.n, state, lane, member, start)
        lanes.set_count(at_times.times.size, at_times.saved, lane)

    def _proceed(self, lane) -> None:
        lanes, control = self.lanes, self.control
        control.proceed(lane)
        if control.event is not None:
            with lanes.if_then(control.event.occurred(lane)):
                control.event.end(control.step, lane)
        self._increase(self.steps, lane)
        with lanes.if_then(control.accepted(lane)):
            self._increase(self.kept_steps, lane)
            if self.saving.every:
                self._save_every(lane)
        exhausted = lanes.count(self.steps, lane) >= self.max_steps
        on = control.unfinished(lane) & ~control.failed(lane)
        if control.event is not None:
            occurred = control.event.occurred(lane)
            with lanes.if_then(occurred):
                self._finish(lane, _EVENT)
            on, ended = on & ~occurred, ~on & ~occurred
        else:
            ended = ~on
        with lanes.if_then(ended):
            self._finish(lane, lanes.get(control.code, lane))
        with lanes.if_then(on & exhausted):
            self._finish(lane, _MAX_STEPS)

    def _increase(self, counter, lane) -> None:
        more = self.lanes.count(counter, lane) + 1
        self.lanes.set_count(more, counter, lane)

    def _save_every(self, lane) -> None:
        every = self.saving.every
        rest = self.lanes.count(self.kept_steps, lane) % every
        with self.lanes.if_then(rest.equals(0)):
            self._save(lane)

    def _save(self, lane) -> None:
        """Write the state of a lane to its next row."""
        lanes = self.lanes
        member, row = lanes.count(self.members, lane), lanes.count(self.written, lane)
        self.rows.store(self.n, self.control.step.y0, lane, member, row * self.n)
        self.row_times.write(lanes.get(self.control.step.t0, lane), member, row)
        self._increase(self.written, lane)

    def _finish(self, lane, code) -> None:
        """Write what is known at the end of a member's run, and make the lane idle."""
        lanes = self.lanes
        member = lanes.count(self.members, lane)
        if self.at_times is not None:
            self._write_times(lane, member)
        rows = lanes.count(self.written, lane)
        self._clear_rows(member, rows)
        self.final.store(self.n, self.control.step.y0, lane, member)
        summary = Summary(
            lanes.get(self.control.step.t0, lane),
            code,
            self._number(lanes.count(self.steps, lane)),
            self._number(lanes.count(self.kept_steps, lane)),
            self._number(rows),
        )
        for i, value in enumerate(summary):
            self.summary.write(value, member, i)
        lanes.set_count(0, self.busy, lane)

    def _number(self, count):
        return count.as_number()

    def _write_times(self, lane, member) -> None:
        """The given times that were reached belong to the rows behind those written so far."""
        lanes, at_times = self.lanes, self.at_times
        if at_times is None:
            return
        saved, first = lanes.count(at_times.saved, lane), at_times.first
        with lanes.loop(saved) as i:
            self.row_times.write(at_times.times.read(member, i), member, first + i)
        lanes.set_count(first + saved, self.written, lane)

    def _clear_rows(self, member, rows) -> None:
        """Infinity in the rows that were not reached, as diffrax marks them."""
        lanes, infinity = self.lanes, float("inf")
        missing = self.row_times.size - rows
        with lanes.loop(missing) as i:
            self.row_times.write(infinity, member, rows + i)
        start = rows * self.n
        with lanes.loop(missing * self.n) as i:
            self.rows.write(infinity, member, start + i)
