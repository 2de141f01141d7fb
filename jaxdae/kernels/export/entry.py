"""An exported run: what surrounds the integration of one member, and the functions of a library."""

from typing import Any, NamedTuple

import diffrax

from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.export.interface import Field, Interface, Structure
from jaxdae.kernels.export.member_lanes import MemberLanes
from jaxdae.kernels.integration.run import Run, work
from jaxdae.kernels.integration.saving import Summary
from jaxdae.kernels.launch.batch_axes import Axes
from jaxdae.kernels.llvm.batch_loops import Lanes, Place
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.tracing.subprograms import Subprogram

_NONFINITE: Any = diffrax.RESULTS.nonfinite
NONFINITE = float(_NONFINITE._value)
_SUMMARY = range(len(Summary._fields))
TIME, RESULT, STEPS, ACCEPTED, ROWS = _SUMMARY
# Numbers before the end of an adaptive run from which on a step reaches it.
_NEAR_END = 100


class Exported(NamedTuple):
    """A run with what surrounds it.

    Args:
        interface: what it takes and gives.
        run: the integration.
        begin: from the first and last time and the inputs to start and parameters of `run`.
        read_row: from time, saved state of `run` and its parameters to coordinates, velocities
            and actuator states; `None` where these are the state.
        read_end: the same of the state at the end.
        sign: 1 for a run forward in time, -1 backward.
    """

    interface: Interface
    run: Run
    begin: Subprogram
    read_row: Subprogram | None
    read_end: Subprogram | None
    sign: int


def definitions(exported: Exported, register_width: int) -> list[Definition]:
    """The function `@member(inputs, times, outputs)`, which returns a status, and what it calls.

    Args:
        exported: the run.
        register_width: numbers that a vector register holds.
    """
    run, dtype = exported.run, exported.run.problem.dtype
    if run.adaptive:
        from jaxdae.kernels.integration.adaptive_steps import adaptive_steps as loops
    else:
        from jaxdae.kernels.integration.fixed_steps import fixed_steps as loops
    starts = [(run.problem.states,), *(x.shape for x in run.problem.parameters)]
    arguments = [*starts, *_shapes_of_times(exported)]
    lanes = MemberLanes(dtype, register_width, arguments, run.results())
    # Parameters count as shared, so that large ones stay where they are.
    axes = Axes((1,), tuple(i == 0 for i in range(len(arguments))))
    body = loops(run, lanes, axes.ranks(), axes.rank)
    kernel = work(run.programs(), [body], lanes, axes, run).definitions
    around = [exported.begin, exported.read_row, exported.read_end]
    programs = [x for x in around if x is not None]
    member = _Member(exported, register_width).written()
    return [*library(programs, 1, dtype, register_width), *kernel, member]


def _shapes_of_times(exported: Exported) -> list[tuple[int, ...]]:
    fields = {x.name: x.shape for x in exported.interface.times.fields}
    steps = [(), (), ()] if exported.run.adaptive else [fields["grid"]]
    return [*steps, *(fields[x] for x in ("dt0", "saved") if x in fields)]


class _Member(Lanes):
    """Writer of `@member`."""

    def __init__(self, exported: Exported, register_width: int):
        super().__init__(1, exported.run.problem.dtype, register_width)
        self.exported, self.interface = exported, exported.interface
        self.n, self.size = exported.run.problem.states, self.interface.state.size

    def bounds(self) -> tuple[Integer, Integer]:
        return Integer(self, "0"), Integer(self, "1")

    def written(self) -> Definition:
        self._prepare()
        self._integrate()
        code = self._finish()
        status = self.put("i32", f"fptosi {self.scalar} {code} to i32")
        return self.define("member", "ptr %inputs, ptr %times, ptr %outputs", "i32", status)

    # Before the integration.

    def _prepare(self) -> None:
        """Start and parameters of the integration, and its times."""
        begin, interface = self.exported.begin, self.interface
        given = [self._input(x) for x in interface.inputs.fields]
        first, last = self._ends()
        self.t0, self.t1 = self.array(1), self.array(1)
        self.write(first, self.t0)
        self.write(last, self.t1)
        self.start, *self.parameters = made = [self.array(x.size) for x in begin.results]
        self.call(begin.name, self.t0, self.t1, *given, *made)

    def _input(self, field: Field) -> Place:
        """A field of the inputs, where vectors may be read."""
        array = self.array(field.size)
        self._move(field.size, self._in(self.interface.inputs, "%inputs", field.name), array)
        return array

    def _ends(self) -> tuple[Number, Number]:
        """The first time and the last one."""
        if self.exported.run.adaptive:
            return self.read(self._time("t0")), self.read(self._time("t1"))
        grid = self._time("grid")
        return self._number(grid, 0), self._number(grid, self._length("grid") - 1)

    def _length(self, name: str) -> int:
        return next((x.size for x in self.interface.times.fields if x.name == name), 0)

    def _time(self, name: str) -> Place:
        return self._in(self.interface.times, "%times", name)

    def _in(self, structure: Structure, pointer: Place, name: str) -> Place:
        return self.place(self.scalar, pointer, structure.offset(name))

    def _out(self, name: str) -> Place:
        return self._in(self.interface.outputs, "%outputs", name)

    # The integration.

    def _integrate(self) -> None:
        exported, rows = self.exported, self.interface.rows
        fits = self.n <= self.size
        # Behind one another at the end of where the rows come, or beside.
        self.own_rows = self.room(rows * self.n) if not fits else "%outputs"
        if fits and rows:
            self.own_rows = self.place(
                self.scalar, self._out("states"), rows * (self.size - self.n)
            )
        self.final, self.summary = self.array(self.n), self.array(len(Summary._fields))
        self.ts = self._out("ts") if rows else self.room(1)
        more = [self.ts, self.summary] if exported.run.adaptive else []
        given = [self.start, *self.parameters, *self._kernel_times()]
        self.call("run", *given, self.own_rows, self.final, *more)
        if exported.run.adaptive:
            self._turn(self.interface.rows, self.ts)
            self._turn(1, self.summary)
        else:
            self._fill_in()

    def _kernel_times(self) -> list[Place]:
        """Times as the integration takes them: increasing."""
        saved = ["saved"] if self._length("saved") else []
        if not self.exported.run.adaptive:
            return [self._increasing(x) for x in ["grid", *saved]]
        start, end, floor = self._increasing("t0"), self._increasing("t1"), self.array(1)
        self.write(self._before(self.read(end)), floor)
        more = ["dt0"] * self.exported.run.given_first + saved
        return [start, end, floor, *map(self._increasing, more)]

    def _increasing(self, name: str) -> Place:
        place = self._time(name)
        if self.exported.sign > 0:
            return place
        array = self.array(self._length(name))
        self._move(self._length(name), place, array)
        self._turn(self._length(name), array)
        return array

    def _turn(self, count: int, array: Place) -> None:
        """Change the signs of times where the run goes back."""
        if self.exported.sign < 0:
            with self.loop(count) as i:
                place = self.place(self.scalar, array, i)
                self.write(-self.read(place), place)

    def _before(self, time: Number) -> Number:
        """The floating-point number so many before a time."""
        place = self.array(1)
        self.write(time, place)
        word, kind = self.constant(self.scalar, _smallest(self.bits)), f"i{self.bits}"
        with self.loop(_NEAR_END):
            x = self.read(place)
            bits = Integer(self, self.load(kind, place), kind)
            next_bits = (x > 0.0).choose(bits - 1, bits + 1)
            self.store(kind, next_bits, place)
            with self.if_then(x.equals(0.0)):
                self.store(self.scalar, word, place)
        return self.read(place)

    def _fill_in(self) -> None:
        """What fixed steps do not say of themselves: times of rows, and the summary."""
        saving, grid = self.exported.run.saving, self._time("grid")
        steps, first = self._length("grid") - 1, int(saving.start)
        if saving.start:
            self.write(self.read(grid), self.ts)
        with self.loop(self.interface.rows - first) as i:
            source, at = (
                (grid, (i + 1) * saving.every)
                if saving.every
                else (self._time("saved") if self._length("saved") else grid, i)
            )
            place = self.place(self.scalar, self.ts, i + first)
            self.write(self.read(self.place(self.scalar, source, at)), place)
        self.write(self.read(self.t1), self.summary)
        known = {RESULT: 0, STEPS: steps, ACCEPTED: steps}
        for i, value in known.items():
            self.write(float(value), self.place(self.scalar, self.summary, i))

    # After it.

    def _finish(self) -> Number:
        """Write the outputs; the status."""
        reached = self._read_rows()
        code = self.place(self.scalar, self.summary, RESULT)
        broken = ~self._finite(self.final) & self.read(code).equals(0.0)
        with self.if_else(broken) as (then, otherwise):
            with then:
                self.write(NONFINITE, code)
                self._go_back(reached.get())
            with otherwise:
                self._read(self.exported.read_end, self.summary, self.final, self._out("final"))
        rows = self.place(self.scalar, self.summary, ROWS)
        self.write(reached.get().as_number(), rows)
        self._move(len(Summary._fields), self.summary, "%outputs")
        return self.read(code)

    def _read_rows(self) -> Any:
        """Rows as they come out; those that were not reached are infinite. How many were."""
        reached, own = self.variable(0), self.array(self.n)
        if not self.interface.rows:
            return reached
        with self.loop(self.interface.rows) as row:
            self._move(self.n, self.place(self.scalar, self.own_rows, row * self.n), own)
            t = self.place(self.scalar, self.ts, row)
            out = self.place(self.scalar, self._out("states"), row * self.size)
            with self.if_else(self._finite(own)) as (then, otherwise):
                with then:
                    reached.set(reached.get() + 1)
                    self._read(self.exported.read_row, t, own, out)
                with otherwise:
                    self.write(float("inf"), t)
                    with self.loop(self.size) as i:
                        self.write(float("inf"), self.place(self.scalar, out, i))
        return reached

    def _go_back(self, reached: Integer) -> None:
        """The end of a run that broke is its last row, or the start."""
        final = self._out("final")
        if self.interface.rows:
            with self.if_then(reached > 0):
                last = reached - 1
                self.write(self.read(self.place(self.scalar, self.ts, last)), self.summary)
                source = self.place(self.scalar, self._out("states"), last * self.size)
                self._move(self.size, source, final)
        with self.if_then(reached <= 0):
            self.write(self.read(self.t0), self.summary)
            self._read(self.exported.read_end, self.t0, self.start, final)

    def _read(self, program: Subprogram | None, t: Place, own: Place, out: Place) -> None:
        """Coordinates, velocities and actuator states from a state of the integration."""
        if program is None:
            self._move(self.size, own, out)
            return
        time, state = self.array(1), self.array(self.size)
        self.write(self.read(t), time)
        self.call(program.name, time, own, *self.parameters, state)
        self._move(self.size, state, out)

    def _finite(self, array: Place) -> Condition:
        """Whether all numbers of a state are."""
        total = self.array(1)
        with self.loop(self.n) as i:
            # Zero times what is not finite is not a number.
            none = self.read(self.place(self.scalar, array, i)) * 0.0
            self.write(self.read(total) + none, total)
        return self.read(total).equals(0.0)

    def _number(self, array: Place, i: int) -> Number:
        return self.read(self.place(self.scalar, array, i))

    def _move(self, size: int, source: Place, target: Place) -> None:
        """Copy numbers, one after the other: structures are aligned as C aligns them."""
        with self.loop(size) as i:
            value = self.read(self.place(self.scalar, source, i))
            self.write(value, self.place(self.scalar, target, i))


def _smallest(bits: int) -> float:
    """The normal number before zero."""
    return -(2.0**-1022) if bits == 64 else -(2.0**-126)
