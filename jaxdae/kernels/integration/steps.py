"""Loops over the steps of runs, from start to end, fixed and adaptive ones."""

from typing import Any, NamedTuple

import diffrax

from jaxdae.derivatives.perturbation import numerator, UNIT
from jaxdae.kernels.integration.arguments import Saving, StepSummary
from jaxdae.kernels.integration.initial_value import control_shape, InitialValueProblem
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition

_REACHED: Any = diffrax.RESULTS.max_steps_reached
_OCCURRED: Any = diffrax.RESULTS.event_occurred
_SUCCESSFUL, _MAX_STEPS, _EVENT = 0.0, float(_REACHED._value), float(_OCCURRED._value)


def loops(run: Any, lanes: Lanes, ranks: tuple[int, ...], rank: int) -> Definition:
    """`@run`, the loops over members and steps.

    Arguments are the start, the parameters and the times: of fixed steps their ends; of adaptive
    ones the two ends of the run, the time from which on a step reaches the end, the length of the
    first step where it is given, and times at which steps end where there are any (`step_ends`);
    then the times to save. Results are the saved states and the final one; of adaptive steps also
    the saved times, and what the run tells of itself.

    Args:
        run: what is compiled.
        lanes: what the function is written to.
        ranks: axes of the batch in each argument; zero where its members share it.
        rank: axes of the batch.
    """
    (_AdaptiveSteps if run.adaptive else _FixedSteps)(lanes, run, ranks, rank).write()
    return lanes.finish()


class LaneInputs:
    """The start and the parameters of the members in the lanes.

    An adjoint is by `active` parameters. Steps may be those of another problem, `stepped`, in which
    a perturbation follows the states, the same for all members.
    """

    def __init__(
        self,
        lanes: Lanes,
        problem: InitialValueProblem,
        ranks: tuple[int, ...],
        active: tuple[int, ...] | None = None,
        stepped: InitialValueProblem | None = None,
    ):
        self.lanes = lanes
        stepped = problem if stepped is None else stepped
        self.sizes = [problem.states, *(int(x.size) for x in problem.parameters)]
        self._given = [
            Buffer(lanes, lanes.arguments, i, size, ranks[i], 0)
            for i, size in enumerate(self.sizes)
        ]
        # Large parameters that all members share stay where they are.
        self._in_place = {1 + i for i in problem.shared(ranks)}
        self.arrays = [
            argument.data if i in self._in_place else lanes.array(size)
            for i, (argument, size) in enumerate(zip(self._given, self.sizes, strict=True))
        ]
        if stepped.perturbing:
            self.arrays[0] = lanes.array(stepped.states)
            self._perturb(stepped.perturbing)
        self.state, *self.parameters = self.arrays
        with lanes.loop(lanes.width) as lane:
            parts = zip(self._given, self.sizes, self.arrays, strict=True)
            for i, (argument, size, array) in enumerate(parts):
                if argument.shared and i not in self._in_place:
                    argument.load(size, array, lane, 0)
        forward = stepped.preparations()
        back = [] if active is None else problem.preparations(active)
        if stepped is problem and back:
            forward, back = back[: len(forward)], back[len(forward) :]
        self._preparations = [*forward, *back]
        self._prepared = [lanes.array(x.results[0].size) for x in self._preparations]
        self._forward = self._prepared[: len(forward)]
        self._back = self._prepared[0 if stepped is problem else len(forward) :]
        self._alike = all(x.shared for x in self._given[1:])
        if self._alike:
            self._prepare()

    @property
    def fixed(self) -> list:
        """What steps take behind the state: the parameters, and what is prepared of them."""
        return [*self.parameters, *self._forward]

    @property
    def fixed_back(self) -> list:
        """What steps of an adjoint take."""
        return [*self.parameters, *self._back]

    def _perturb(self, count: int) -> None:
        """Set the perturbation, behind the states."""
        lanes = self.lanes
        place = lanes.offset(self.arrays[0], self.sizes[0])
        with lanes.loop(count) as i:
            units = numerator(i, lambda condition, a, b: condition.choose(a, b))
            lanes.fill(units.as_number() * UNIT, lanes.offset(place, i))

    def load(self, lane, member) -> None:
        """Copy those of a member to a lane; what all members share is there already."""
        parts = zip(self._given, self.sizes, self.arrays, strict=True)
        for argument, size, array in parts:
            if not argument.shared:
                argument.load(size, array, lane, member)

    def prepare(self) -> None:
        """Compute what is made of the parameters alone, after members were loaded."""
        if not self._alike:
            self._prepare()

    def _prepare(self) -> None:
        for one, array in zip(self._preparations, self._prepared, strict=True):
            self.lanes.call(one.name, *self.parameters, array)


def read_time(lanes: Lanes, grid: Buffer, i, members, array) -> None:
    """Set a time of all lanes to an end of a step, the same for all members or each its own."""
    if grid.shared:
        lanes.fill(grid.read(0, i), array)
        return
    with lanes.loop(lanes.width) as lane:
        lanes.set(grid.read(lanes.count(members, lane), i), array, lane)


class _StepArrays(NamedTuple):
    """Arrays of one step: its two ends in time, the states there, and the increments."""

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k: Any


class _TimeRows:
    """Saves states at given times, from row `first` on: what lies in the step of each lane.

    Steps have so many `states`, of which the first are `saved_states`; without it all.
    """

    def __init__(
        self, lanes: Lanes, states: int, times: Buffer, rows: Buffer, first: int,
        saved_states: int | None = None,
    ):  # fmt: skip
        self.lanes, self.times, self.rows = lanes, times, rows
        self.states = states if saved_states is None else saved_states
        self.first = first
        self.saved = lanes.counters()
        self._t, self._y = lanes.array(1), lanes.array(states)
        self._any = lanes.variable(0)

    def save(self, step: _StepArrays, members, wanted, until=None) -> None:
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
        more = lanes.count(self.saved, lane) <= self.times.size - 1
        due = more & (self._time(members, lane) <= lanes.get(until, lane))
        return due if wanted is None else due & wanted(lane)

    def _time(self, members, lane):
        lanes = self.lanes
        # Beyond the last time there is none to read.
        index = lanes.minimum(lanes.count(self.saved, lane), self.times.size - 1)
        return self.times.read(lanes.count(members, lane), index)


class _FixedSteps:
    """All lanes make their steps together, block by block of members."""

    def __init__(self, lanes: Lanes, run: Any, ranks, rank: int):
        self.lanes, self.problem, self.saving = lanes, run.problem, run.saving
        problem, saving, n = run.problem, run.saving, run.problem.states
        self.start = LaneInputs(lanes, problem, ranks)
        count = len(self.start.arrays)
        self.grid = Buffer(lanes, lanes.arguments, count, None, ranks[count], 1)
        self.rows = Buffer(lanes, lanes.results, 0, None, rank, 2)
        self.final = Buffer(lanes, lanes.results, 1, n, rank, 1)
        self.steps = self.grid.size - 1
        dense = problem.dense if saving.times else 0
        self.step = _StepArrays(*(lanes.array(k) for k in (1, 1, n, n, dense)))
        self.carry, self.next_carry = lanes.array(problem.carried), lanes.array(problem.carried)
        self.members = lanes.counters()
        self.at_times = None
        if saving.times:
            times = Buffer(lanes, lanes.arguments, count + 1, None, ranks[count + 1], 1)
            self.at_times = _TimeRows(lanes, n, times, self.rows, int(saving.start))

    def write(self) -> None:
        lanes = self.lanes
        block = lanes.variable(lanes.begin)
        with lanes.while_(lambda: block.get() < lanes.end):
            first = block.get()
            self._load(first)
            with lanes.loop(self.steps) as i:
                self._advance(i)
            with lanes.loop(lanes.width) as lane:
                member = lanes.count(self.members, lane)
                self.final.store(self.problem.states, self.step.y0, lane, member)
            block.set(first + lanes.stride * lanes.width)

    def _load(self, first) -> None:
        """The members of a block; where there are too few, the last one more than once."""
        lanes, n = self.lanes, self.problem.states
        last = lanes.end - 1
        with lanes.loop(lanes.width) as lane:
            member = lanes.minimum(first + lane, last)
            lanes.set_count(member, self.members, lane)
            self.start.load(lane, member)
            if self.at_times is not None:
                lanes.set_count(0, self.at_times.saved, lane)
        self.start.prepare()
        lanes.copy(n, self.start.state, self.step.y0)
        if self.saving.start:
            self._save(0)
        if self.problem.carried:
            read_time(lanes, self.grid, 0, self.members, self.step.t0)
            lanes.call("begin", self.step.t0, self.step.y0, *self.start.fixed, self.carry)

    def _advance(self, i) -> None:
        lanes, step = self.lanes, self.step
        following = i + 1
        for end, array in ((i, step.t0), (following, step.t1)):
            read_time(lanes, self.grid, end, self.members, array)
        lanes.call(
            "step", step.t0, step.t1, step.y0, self.carry, *self.start.fixed,
            step.y1, self.next_carry, *([step.k] if self.saving.times else []),
        )  # fmt: skip
        if self.at_times is not None:
            self.at_times.save(step, self.members, None)
        lanes.copy(self.problem.states, step.y1, step.y0)
        lanes.copy(self.problem.carried, self.next_carry, self.carry)
        every = self.saving.every
        if every:
            with lanes.if_then((following % every).equals(0)):
                self._save(i // every + int(self.saving.start))

    def _save(self, row) -> None:
        lanes, n = self.lanes, self.problem.states
        with lanes.loop(lanes.width) as lane:
            member = lanes.count(self.members, lane)
            self.rows.store(n, self.step.y0, lane, member, row * n)


class _StepEnds:
    """The next time at which the step of each lane has to end, of those of `step_ends`."""

    def __init__(self, lanes: Lanes, times: Buffer):
        self.lanes, self.times = lanes, times
        self.count = times.size // 2
        self._members, self._next, self._jumped = (lanes.counters() for _ in range(3))

    def load(self, lane, member) -> None:
        """Begin with a member."""
        self.lanes.set_count(member, self._members, lane)
        self.lanes.set_count(0, self._next, lane)

    def proceed(self, t0, end, lane) -> None:
        """From the end of a step, `t0`, go on to where the next one begins, beyond a jump."""
        lanes = self.lanes
        lanes.set_count(0, self._jumped, lane)
        with lanes.while_(
            lambda: self._pending(lane) & (self._time(lane, 0) <= lanes.get(t0, lane))
        ):
            with lanes.if_then(self._time(lane, 0).equals(lanes.get(t0, lane))):
                begin, last = self._time(lane, 1), lanes.get(end, lane)
                jumps = begin.differs(lanes.get(t0, lane))
                lanes.set_count(jumps.as_integer(), self._jumped, lane)
                lanes.set((begin < last).choose(begin, last), t0, lane)
            lanes.set_count(lanes.count(self._next, lane) + 1, self._next, lane)

    def limit(self, t0, t1, lane) -> None:
        """Let a step end, at `t1`, no later than it has to."""
        lanes = self.lanes
        with lanes.if_then(self._pending(lane)):
            latest, wanted = self._time(lane, 0), lanes.get(t1, lane)
            # A step of less than the round-off of its time would end before it begins.
            free = (wanted < latest) & (wanted > lanes.get(t0, lane))
            lanes.set(free.choose(wanted, latest), t1, lane)

    def jumped(self, lane) -> Any:
        """Whether the step of a lane begins just after a jump."""
        return self.lanes.count(self._jumped, lane).differs(0)

    def _pending(self, lane):
        return self.lanes.count(self._next, lane) < self.count

    def _time(self, lane, which: int):
        lanes = self.lanes
        # Behind the last time there is none to read.
        index = lanes.minimum(lanes.count(self._next, lane), self.count - 1)
        return self.times.read(lanes.count(self._members, lane), index * 2 + which)


class StepSizeControl:
    """Step size control of all lanes: the arrays that `advance` takes and gives."""

    def __init__(self, lanes: Lanes, run: Any, start: LaneInputs, ranks):
        problem, given_first = run.stepped, run.given_first
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
        dense = problem.dense if self._dense else 0
        self.step = _StepArrays(*(lanes.array(k) for k in (1, 1, n, n, dense)))
        self.control, self._next_control = lanes.array(self.states), lanes.array(self.states)
        self.carry, self._next_carry = lanes.array(problem.carried), lanes.array(problem.carried)
        self.keep, self.code, self._t0, self._t1 = (lanes.array(1) for _ in range(4))
        self.ends = None
        if run.step_ends:
            index = count + len(self._given)
            times = Buffer(lanes, lanes.arguments, index, None, ranks[index], 1)
            self.ends = _StepEnds(lanes, times)
        self.event = None if problem.event is None else _EventSearch(lanes, n)

    def load(self, lane, member) -> None:
        """Put the start of a member into a lane."""
        lanes = self.lanes
        self.start.load(lane, member)
        for argument, array in zip(self._given, self.given, strict=True):
            argument.load(1, array, lane, member)
        lanes.copy_lane(self.problem.states, self.start.state, self.step.y0, lane)
        lanes.set(lanes.get(self.begin, lane), self.step.t0, lane)
        if self.ends is not None:
            self.ends.load(lane, member)
            self.ends.proceed(self.step.t0, self.end, lane)

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
            if self.ends is not None:
                self.ends.limit(self.step.t0, self.step.t1, lane)
            self._take(lane)
        if self.event is not None:
            self.event.begin(self.step, self.start.fixed, wanted)

    def advance(self) -> None:
        """Try a step of all lanes."""
        self.lanes.call(
            "advance", self.step.t0, self.step.t1, self.end, self.floor, self.control,
            self.step.y0, self.carry, *self.start.fixed,
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
            lanes.copy_lane(self.problem.carried, self._next_carry, self.carry, lane)
        if self.ends is not None:
            self.ends.proceed(self.step.t0, self.end, lane)
            self.ends.limit(self.step.t0, self.step.t1, lane)

    def begin_after_jumps(self, any_lane) -> None:
        """Evaluate anew, in lanes that passed a jump, what a step takes over from the last one."""
        lanes, ends, carried = self.lanes, self.ends, self.problem.carried
        if ends is None or not carried:
            return
        any_lane.set(0)
        with lanes.loop(lanes.width) as lane, lanes.if_then(ends.jumped(lane)):
            any_lane.set(1)
        with lanes.if_then(any_lane.get().differs(0)):
            lanes.call("begin", self.step.t0, self.step.y0, *self.start.fixed, self._next_carry)
            with lanes.loop(lanes.width) as lane, lanes.if_then(ends.jumped(lane)):
                lanes.copy_lane(carried, self._next_carry, self.carry, lane)

    def counts(self, lane) -> list:
        """What the iterations of a lane took so far."""
        first = self.states - self.problem.counted
        return [self.lanes.get(self.control, lane, i) for i in range(first, self.states)]

    def clear_counts(self, lane) -> None:
        """Begin them anew, for a run without any steps."""
        for i in range(self.states - self.problem.counted, self.states):
            self.lanes.set(0.0, self.control, lane, i)

    def failed(self, lane):
        """Whether the controller gave up a lane."""
        return self.lanes.get(self.code, lane).differs(0.0)

    def unfinished(self, lane):
        """Whether a lane is before its end."""
        lanes = self.lanes
        return lanes.get(self.step.t0, lane) < lanes.get(self.end, lane)

    def _take(self, lane) -> None:
        self.lanes.copy_lane(self.states, self._next_control, self.control, lane)
        self.lanes.copy_lane(self.problem.carried, self._next_carry, self.carry, lane)


class _EventSearch:
    """Where the runs of all lanes end before their time."""

    def __init__(self, lanes: Lanes, states: int):
        self.lanes, self.states = lanes, states
        self.until, self.state = lanes.array(1), lanes.array(states)
        self._value, self._following, self._time = (lanes.array(1) for _ in range(3))
        self._seen, self._low, self._misfit, self._which = (lanes.array(1) for _ in range(4))
        self._located, self._fallen = lanes.array(states), lanes.counters()
        # The largest misfit of a run: its size, number of the function, time of the step.
        self.misfit = lanes.array(3)

    def begin(self, step: _StepArrays, fixed, wanted) -> None:
        """Evaluate the function at the starts of those lanes that want it."""
        lanes = self.lanes
        lanes.call("value", step.t0, step.y0, *fixed, self._following)
        with lanes.loop(lanes.width) as lane, lanes.if_then(wanted(lane)):
            lanes.copy_lane(1, self._following, self._value, lane)
            for i, value in enumerate((0.0, 0.0, lanes.get(step.t0, lane))):
                lanes.set(value, self.misfit, lane, i)

    def find(self, step: _StepArrays, fixed, wanted, any_lane) -> None:
        """Find where a step that is kept ends: at its end, or where the function falls to zero."""
        lanes = self.lanes
        any_lane.set(0)
        with lanes.loop(lanes.width) as lane:
            lanes.copy_lane(1, step.t1, self.until, lane)
            lanes.set_count(0, self._fallen, lane)
            with lanes.if_then(wanted(lane)):
                any_lane.set(1)
        with lanes.if_then(any_lane.get().differs(0)):
            seen = (self._seen, self._low, self._misfit, self._which, self._following)
            lanes.call("watch", *step, *fixed, *seen)
            any_lane.set(0)
            with lanes.loop(lanes.width) as lane, lanes.if_then(wanted(lane)):
                self._compare(step, any_lane, lane)
        with lanes.if_then(any_lane.get().differs(0)):
            # Lanes of other members have a step as well, in which nothing is found.
            lanes.call("fall", *step, self._seen, *fixed, self._time, self._located)
            with lanes.loop(lanes.width) as lane, lanes.if_then(self.occurred(lane)):
                lanes.copy_lane(1, self._time, self.until, lane)
                lanes.copy_lane(self.states, self._located, self.state, lane)

    def _compare(self, step: _StepArrays, any_lane, lane) -> None:
        """What was seen in the step of a lane."""
        lanes = self.lanes
        above = lanes.get(self._value, lane) > 0.0
        with lanes.if_then(above & (lanes.get(self._low, lane) <= 0.0)):
            lanes.set_count(1, self._fallen, lane)
            any_lane.set(1)
        lanes.copy_lane(1, self._following, self._value, lane)
        size = lanes.get(self._misfit, lane)
        with lanes.if_then(size > lanes.get(self.misfit, lane)):
            worse = (size, lanes.get(self._which, lane), lanes.get(step.t0, lane))
            for i, value in enumerate(worse):
                lanes.set(value, self.misfit, lane, i)

    def occurred(self, lane):
        """Whether the function has fallen in the step of a lane."""
        return self.lanes.count(self._fallen, lane).differs(0)

    def end(self, step: _StepArrays, lane) -> None:
        """End the step of a lane where the function has fallen."""
        self.lanes.copy_lane(1, self.until, step.t0, lane)
        self.lanes.copy_lane(self.states, self.state, step.y0, lane)


class _AdaptiveSteps:
    """Each lane has its own steps, and takes the next member when it is done."""

    def __init__(self, lanes: Lanes, run: Any, ranks, rank: int):
        problem, saving = run.problem, run.saving
        self.saving: Saving = saving
        self.lanes, self.max_steps, self.n = lanes, run.max_steps, problem.states
        self.start = LaneInputs(lanes, problem, ranks, stepped=run.stepped)
        self.control = StepSizeControl(lanes, run, self.start, ranks)
        self.rows = Buffer(lanes, lanes.results, 0, None, rank, 2)
        self.final = Buffer(lanes, lanes.results, 1, self.n, rank, 1)
        self.row_times = Buffer(lanes, lanes.results, 2, None, rank, 1)
        self.summary = Buffer(lanes, lanes.results, 3, len(StepSummary._fields), rank, 1)
        monitored = problem.event is not None
        self.misfit = Buffer(lanes, lanes.results, 4, 3, rank, 1) if monitored else None
        self.counts = None
        if run.counts_steps:
            self.counts = Buffer(lanes, lanes.results, 4 + monitored, problem.counted, rank, 1)
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
            self.at_times = _TimeRows(
                lanes, run.stepped.states, times, self.rows, int(saving.start), self.n
            )

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
        with lanes.if_then(self.any.get().differs(0)):
            self.control.begin_steps(lambda lane: self._is(self.fresh, lane))
        self.any.set(0)
        with lanes.loop(lanes.width) as lane:
            lanes.set_count(0, self.fresh, lane)
            with lanes.if_then(self._is(self.busy, lane)):
                self.any.set(1)
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
            self.control.clear_counts(lane)
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
                rest = lanes.count(self.kept_steps, lane) % self.saving.every
                with lanes.if_then(rest.equals(0)):
                    self._save(lane)
        exhausted = lanes.count(self.steps, lane) >= self.max_steps
        on = control.unfinished(lane) & ~control.failed(lane)
        ended = ~on
        if control.event is not None:
            occurred = control.event.occurred(lane)
            with lanes.if_then(occurred):
                self._finish(lane, _EVENT)
            on, ended = on & ~occurred, ended & ~occurred
        with lanes.if_then(ended):
            self._finish(lane, lanes.get(control.code, lane))
        with lanes.if_then(on & exhausted):
            self._finish(lane, _MAX_STEPS)

    def _increase(self, counter, lane) -> None:
        more = self.lanes.count(counter, lane) + 1
        self.lanes.set_count(more, counter, lane)

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
        self._write_times(lane, member)
        rows = lanes.count(self.written, lane)
        self._clear_rows(member, rows)
        self.final.store(self.n, self.control.step.y0, lane, member)
        steps, kept = (lanes.count(x, lane) for x in (self.steps, self.kept_steps))
        counts = (x.as_number() for x in (steps, kept, rows))
        summary = StepSummary(lanes.get(self.control.step.t0, lane), code, *counts)
        for i, value in enumerate(summary):
            self.summary.write(value, member, i)
        if self.misfit is not None and self.control.event is not None:
            self.misfit.store(3, self.control.event.misfit, lane, member)
        if self.counts is not None:
            for i, value in enumerate(self.control.counts(lane)):
                self.counts.write(value, member, i)
        lanes.set_count(0, self.busy, lane)

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
