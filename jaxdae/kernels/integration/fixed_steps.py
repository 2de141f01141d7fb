"""Runs with fixed steps: members of a batch make as many, of one length or each of its own."""

from typing import Any

from jaxdae.kernels.integration.initial_value import InitialValueProblem
from jaxdae.kernels.integration.saved_times import Step, TimeRows
from jaxdae.kernels.integration.saving import Saving
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition


def fixed_steps(run: Any, lanes: Lanes, ranks: tuple[int, ...], rank: int) -> Definition:
    """`@run` for fixed steps.

    Arguments are the start, the parameters, the ends of the steps and the times to save; results
    the saved states and the final one.

    Args:
        run: what is compiled.
        lanes: what the function is written to.
        ranks: axes of the batch in each argument; zero where its members share it.
        rank: axes of the batch.

    Returns:
        The definition.
    """
    _FixedSteps(lanes, run.problem, run.saving, ranks, rank).write()
    return lanes.finish()


def read_time(lanes: Lanes, grid: Buffer, i, members, array) -> None:
    """Set a time of all lanes to the end of a step, the same for all members or each its own.

    Args:
        lanes: the builder.
        grid: ends of the steps.
        i: number of the end.
        members: member of the batch in each lane.
        array: room for the time.
    """
    if grid.shared:
        lanes.fill(grid.read(0, i), array)
        return
    with lanes.loop(lanes.width) as lane:
        lanes.set(grid.read(lanes.count(members, lane), i), array, lane)


class Start:
    """The start and the parameters of the members in the lanes.

    Args:
        lanes: the builder.
        problem: what is integrated.
        ranks: axes of the batch in each argument.
        active: numbers of the parameters that an adjoint is by; `None` without one.
    """

    def __init__(
        self,
        lanes: Lanes,
        problem: InitialValueProblem,
        ranks: tuple[int, ...],
        active: tuple[int, ...] | None = None,
    ):
        self.lanes = lanes
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
        self.state, *self.parameters = self.arrays
        self._each(shared=True)
        self._preparations = problem.preparations(active)
        self._forward = len(problem.preparations())
        self._prepared = [lanes.array(x.results[0].size) for x in self._preparations]
        self._alike = all(x.shared for x in self._given[1:])
        if self._alike:
            self._prepare()

    @property
    def fixed(self) -> list:
        """What steps take behind the state: the parameters, and what is prepared of them."""
        return [*self.parameters, *self._prepared[: self._forward]]

    @property
    def fixed_back(self) -> list:
        """What steps of an adjoint take."""
        return [*self.parameters, *self._prepared]

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

    def _each(self, shared: bool) -> None:
        lanes = self.lanes
        with lanes.loop(lanes.width) as lane:
            parts = zip(self._given, self.sizes, self.arrays, strict=True)
            for i, (argument, size, array) in enumerate(parts):
                if argument.shared == shared and i not in self._in_place:
                    argument.load(size, array, lane, 0)


class _FixedSteps:
    def __init__(self, lanes: Lanes, problem, saving: Saving, ranks, rank: int):
        self.lanes, self.problem, self.saving = lanes, problem, saving
        n = problem.states
        self.start = Start(lanes, problem, ranks)
        count = len(self.start.arrays)
        self.grid = Buffer(lanes, lanes.arguments, count, None, ranks[count], 1)
        self.rows = Buffer(lanes, lanes.results, 0, None, rank, 2)
        self.final = Buffer(lanes, lanes.results, 1, n, rank, 1)
        self.steps = self.grid.size - 1
        self.step = Step(*(lanes.array(k) for k in (1, 1, n, n, problem.dense)))
        self.carry, self.next_carry = lanes.array(problem.carried), lanes.array(problem.carried)
        self.members = lanes.counters()
        self.at_times = None
        if saving.times:
            times = Buffer(lanes, lanes.arguments, count + 1, None, ranks[count + 1], 1)
            self.at_times = TimeRows(lanes, n, times, self.rows, int(saving.start))

    def write(self) -> None:
        lanes = self.lanes
        block = lanes.variable(lanes.begin)

        def more():
            return block.get() < lanes.end

        with lanes.while_(more):
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
            self._set_time(self.step.t0, 0)
            lanes.call("begin", self.step.t0, self.step.y0, *self.start.fixed, self.carry)

    def _set_time(self, array, i) -> None:
        read_time(self.lanes, self.grid, i, self.members, array)

    def _advance(self, i) -> None:
        lanes, step = self.lanes, self.step
        following = i + 1
        self._set_time(step.t0, i)
        self._set_time(step.t1, following)
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
                row = i // every + int(self.saving.start)
                self._save(row)

    def _save(self, row) -> None:
        lanes, n = self.lanes, self.problem.states
        start = row * n
        with lanes.loop(lanes.width) as lane:
            member = lanes.count(self.members, lane)
            self.rows.store(n, self.step.y0, lane, member, start)
