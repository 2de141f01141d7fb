"""An exported run: what surrounds the integration of one member, and the functions of a library."""

import re
from typing import Any, NamedTuple

import diffrax
import numpy as np

from jaxdae.derivatives.primitives import Axes
from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.export.interface import Interface, StructureType
from jaxdae.kernels.integration.arguments import StepSummary
from jaxdae.kernels.integration.run import KernelRun, work
from jaxdae.kernels.llvm.batch_loops import Index, Lanes, Place
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer
from jaxdae.kernels.tracing.subprograms import Subprogram

_BROKEN: Any = diffrax.RESULTS.nonfinite
# Status of a run whose times are no numbers or lead the other way; none of diffrax's.
INVALID_TIMES = -1
_SUMMARY = range(len(StepSummary._fields))
_TIME, _RESULT, _STEPS, _ACCEPTED, _ROWS = _SUMMARY
_DEFINED = re.compile(r"^(?:define [^@\n]*)?@([\w.]+)(?: =|\()", re.MULTILINE)
# With a dot, so that no function of C has this name.
_MEMBERS, _ARGUMENTS = "run.members", "ptr %inputs, ptr %times, ptr %outputs"
# What follows the names of functions of vectors, and members of a call for each of their lanes.
_WIDE = ".wide"
_MEMBERS_OF_LANE = 8
# Of all members of a call, on the stack.
_MOST_NUMBERS = 2**14
# Roundings before the end of an adaptive run from which on a step reaches it.
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
    run: KernelRun
    begin: Subprogram
    read_row: Subprogram | None
    read_end: Subprogram | None
    sign: int


def functions(exported: Exported, register_width: int, lanes: int) -> list[Definition]:
    """`NAME` for one run and `NAME_batch` for several, with all that they call.

    They call functions `@run.members(inputs, times, outputs, count)`: one that takes one member,
    and for vectors another that takes so many that lanes that are done can go on with others.

    Args:
        exported: the run.
        register_width: numbers that a vector register holds.
        lanes: members that may be integrated at once.
    """
    run, name = exported.run, exported.interface.name
    # Of the start and the parameters of a member, on the stack.
    numbers = run.problem.states + sum(int(x.size) for x in run.problem.parameters)
    width = lanes if lanes * numbers <= _MOST_NUMBERS else 1
    more = width * _MEMBERS_OF_LANE
    # Of adaptive steps several for each lane, so that few lanes wait.
    several = run.adaptive and width > 1 and more * numbers <= _MOST_NUMBERS
    most = more if several else width
    around = [exported.begin, exported.read_row, exported.read_end]
    programs = [x for x in around if x is not None]
    made = [
        *library(programs, 1, run.problem.dtype, register_width),
        *kernel_functions(exported, register_width, 1),
        _MembersWriter(exported, register_width, 1, "").written(),
    ]
    if width > 1:
        kernel = kernel_functions(exported, register_width, width)
        # Functions, and tables of constants.
        defined = (x for one in kernel for x in _DEFINED.findall(one.text))
        names = "|".join(map(re.escape, defined))
        made += [_renamed(x, names, _WIDE) for x in kernel]
        made.append(_MembersWriter(exported, register_width, most, _WIDE).written())
    wide = f"{_MEMBERS}{_WIDE if width > 1 else ''}"
    # Names of users are free.
    made = [_renamed(x, f"{name}|{name}_batch", ".inner") for x in made]
    return [*made, *_library_functions(exported.interface, wide, most)]


def _renamed(definition: Definition, names: str, ending: str) -> Definition:
    """A function under another name that calls others by theirs: an ending after a pattern."""
    pattern = re.compile(rf"@({names})(?![\w.])")
    name, text = (pattern.sub(rf"@\1{ending}", x) for x in (f"@{definition.name}", definition.text))
    return definition._replace(name=name[1:], text=text)


def kernel_functions(exported: Exported, register_width: int, width: int) -> list[Definition]:
    """`@run` of some arguments, results and members, and what it calls."""
    run, dtype = exported.run, exported.run.problem.dtype
    shapes = [(run.problem.states,), *(x.shape for x in run.problem.parameters)]
    arguments = [
        *(_ArrayPerMember(x, int(np.prod(x))) for x in shapes),
        *(_ArrayPerMember(x, 0) for x in _shapes_of_times(exported)),
    ]
    size = exported.interface.outputs.size
    own = exported.run.problem.states
    rows = size if own <= exported.interface.state.size else own * exported.interface.rows
    strides = [rows, own, size, len(StepSummary._fields)]
    results = [_ArrayPerMember(x, y) for x, y in zip(run.results(), strides, strict=False)]
    lanes = _MemberLanes(width, dtype, register_width, arguments, results)
    # The parameters of a single member count as shared, so that large ones stay where they are.
    own_parameters = width > 1
    batched = [True, *[own_parameters] * (len(shapes) - 1)]
    axes = Axes((1,), (*batched, *[False] * (len(arguments) - len(shapes))))
    return list(work(run, lanes, axes).definitions)


def step_functions(run: KernelRun) -> list[Definition]:
    """`@run` of one step of one member: pointers of start, parameters, both ends, rows, end; 1."""
    dtype, n = run.problem.dtype, run.problem.states
    shapes = [(n,), *(x.shape for x in run.problem.parameters), (2,)]
    arguments = [_ArrayPerMember(x, int(np.prod(x))) for x in shapes]
    results = [_ArrayPerMember(x, n) for x in run.results()]
    lanes = _MemberLanes(1, dtype, 1, arguments, results)
    axes = Axes((1,), (True, *[False] * (len(arguments) - 1)))
    return list(work(run, lanes, axes).definitions)


def _shapes_of_times(exported: Exported) -> list[tuple[int, ...]]:
    fields = {x.name: x.shape for x in exported.interface.times.fields}
    steps = [(), (), ()] if exported.run.adaptive else [fields["grid"]]
    return [*steps, *(fields[x] for x in ("dt0", "saved") if x in fields)]


def _library_functions(interface: Interface, wide: str, most: int) -> list[Definition]:
    """`NAME(inputs, times, outputs)` and `NAME_batch(count, inputs, times, outputs)`.

    The first returns the status, the second how many members have one that is not zero.
    """
    one, name = Writer(), interface.name
    _members(one, interface, _MEMBERS, Integer(one, "0"), Integer(one, "1"))
    code = _status(one, interface, Integer(one, "0"))
    one.line(f"  ret i32 {one.put('i32', f'fptosi {code.kind} {code} to i32')}")
    batch = Writer()
    failed = batch.room(1, "i64")
    batch.store("i64", 0, failed)
    with batch.turns(0, "%count", most) as turns:
        first = Integer(batch, turns.index)
        rest = Integer(batch, "%count") - first
        _members(batch, interface, wide, first, (rest < most).choose(rest, rest.constant(most)))
    with batch.turns(0, "%count") as turns:
        bad = _status(batch, interface, Integer(batch, turns.index)).differs(0.0).as_integer()
        batch.store("i64", bad + Integer(batch, batch.load("i64", failed)), failed)
    batch.line(f"  ret i64 {batch.load('i64', failed)}")
    return [
        one.returned("i32", name, _ARGUMENTS, "nounwind "),
        batch.returned("i64", f"{name}_batch", f"i64 %count, {_ARGUMENTS}", "nounwind "),
    ]


def _scalar(interface: Interface) -> str:
    """LLVM's name of the type of numbers."""
    return "double" if interface.dtype.itemsize == 8 else "float"


def _members(w: Writer, interface: Interface, called: str, first: Integer, count: Integer) -> None:
    """Run some members of a batch."""
    kind = _scalar(interface)
    inputs = w.place(kind, "%inputs", first * interface.inputs.size)
    outputs = w.place(kind, "%outputs", first * interface.outputs.size)
    words = f"ptr {inputs}", "ptr %times", f"ptr {outputs}", f"i64 {count}"
    w.invoke("void", called, *words)


def _status(w: Writer, interface: Interface, member: Integer) -> Number:
    kind = _scalar(interface)
    place = w.place(kind, "%outputs", member * interface.outputs.size + _RESULT)
    return Number(w, w.load(kind, place), kind)


class _ArrayPerMember(NamedTuple):
    """An array of each member."""

    shape: tuple[int, ...]
    stride: int


class _OfMember(NamedTuple):
    """Which number of which member."""

    member: Index
    i: Index


class _MemberLanes(Lanes):
    """Writer of `@run(pointer of each argument, pointer of each result, members)`."""

    def __init__(self, width: int, dtype: Any, register_width: int, arguments, results):
        self._given = {"%arguments": arguments, "%results": results}
        self._strides = {
            f"{table}_{i}": x.stride
            for table, every in self._given.items()
            for i, x in enumerate(every)
        }
        super().__init__(width, dtype, register_width)

    def bounds(self) -> tuple[Integer, Integer]:
        return Integer(self, "0"), Integer(self, "%members")

    def buffer(
        self, table: Place, index: int, first: int, axes: int
    ) -> tuple[Place, list[Integer]]:
        del first  # axes of a batch come before those of the shape
        lengths = self._given[table][index].shape[:axes]
        return f"{table}_{index}", [Integer(self, str(x)) for x in lengths]

    def position(self, size: Index, member: Index, i: Index) -> Any:
        del size
        return _OfMember(member, i)

    def place(self, kind: str, pointer: Any, index: Any) -> str:
        if isinstance(index, _OfMember):
            index = Integer(self, str(index.member)) * self._strides[pointer] + index.i
        return super().place(kind, pointer, index)

    def finish(self) -> Definition:
        pointers = [f"ptr noalias {x}" for x in self._strides]
        return self.define("run", ", ".join([*pointers, "i64 %members"]))


class _MembersWriter(Lanes):
    """Writer of `@run.members`."""

    def __init__(self, exported: Exported, register_width: int, most: int, ending: str):
        super().__init__(1, exported.run.problem.dtype, register_width)
        self.exported, self.interface, self.ending = exported, exported.interface, ending
        self.n, self.size = exported.run.problem.states, self.interface.state.size
        # Of each member, one after the other.
        self.sizes = [x.size for x in exported.begin.results]
        self.starts = [self.array(most * x) for x in self.sizes]
        self.finals, self.summaries = (self.array(most * x) for x in (self.n, len(_SUMMARY)))
        self.rows_room = ""
        if self.n > self.size and self.interface.rows:
            self.rows_room = self.array(most * self.interface.rows * self.n)
        # Where vectors may be read, those of one member.
        self.given = [self.array(x.size) for x in self.interface.inputs.fields]
        self.made = [self.array(x) for x in self.sizes]
        self.t0, self.t1 = self.array(1), self.array(1)

    def bounds(self) -> tuple[Integer, Integer]:
        return Integer(self, "0"), Integer(self, "%count")

    def written(self) -> Definition:
        first, last = self._ends()
        self.write(first, self.t0)
        self.write(last, self.t1)
        with self.loop(self.end) as member:
            self._prepare(member)
        valid = self._valid_times()
        with self.if_else(valid) as (then, otherwise):
            with then:
                self._integrate()
            with otherwise:
                self._leave_out()
        with self.loop(self.end) as member:
            self._choose(member)
            self._finish(valid)
        name, arguments = f"{_MEMBERS}{self.ending}", f"{_ARGUMENTS}, i64 %count"
        return self.define(name, arguments, attributes="nounwind ")

    # Before the integration.

    def _prepare(self, member: Integer) -> None:
        """Start and parameters of the integration of a member."""
        inputs = self.place(self.scalar, "%inputs", member * self.interface.inputs.size)
        for field, array in zip(self.interface.inputs.fields, self.given, strict=True):
            self._move(field.size, self._in(self.interface.inputs, inputs, field.name), array)
        self.call(self.exported.begin.name, self.t0, self.t1, *self.given, *self.made)
        for size, array, every in zip(self.sizes, self.made, self.starts, strict=True):
            self._move(size, array, self.place(self.scalar, every, member * size))

    def _ends(self) -> tuple[Number, Number]:
        """The first time and the last one."""
        if self.exported.run.adaptive:
            return self.read(self._time("t0")), self.read(self._time("t1"))
        grid = self._time("grid")
        return self._number(grid, 0), self._number(grid, self._length("grid") - 1)

    def _valid_times(self) -> Condition:
        """Whether all times are numbers, and in the direction and order of the run."""
        wrong, sign = self.array(1), float(self.exported.sign)

        def demand(*, is_so: Condition) -> None:
            with self.if_then(~is_so):
                self.write(1.0, wrong)

        def ascending(array: Place, length: int, first: Number | None = None) -> None:
            """Also that they are numbers: no comparison with another is true."""
            last = self.array(1)
            self.write(self._number(array, 0) if first is None else first, last)
            with self.loop(length) as i:
                x = self.read(self.place(self.scalar, array, i))
                demand(is_so=((x * 0.0).equals(0.0)) & ~((x - self.read(last)) * sign < 0.0))
                self.write(x, last)

        first, last = self.read(self.t0), self.read(self.t1)
        demand(is_so=((first * 0.0).equals(0.0)) & ((last * 0.0).equals(0.0)))
        demand(is_so=~((last - first) * sign < 0.0))
        if self._length("grid"):
            ascending(self._time("grid"), self._length("grid"))
        if self._length("dt0"):
            step = self.read(self._time("dt0"))
            demand(is_so=((step * 0.0).equals(0.0)) & (step * sign > 0.0))
        if self._length("saved"):
            saved, count = self._time("saved"), self._length("saved")
            ascending(saved, count, first)
            demand(is_so=~((last - self._number(saved, count - 1)) * sign < 0.0))
        return self.read(wrong).equals(0.0)

    def _leave_out(self) -> None:
        """States that are no numbers, and no steps, where times do not fit."""
        with self.loop(self.end) as member:
            self._choose(member)
            with self.loop(len(_SUMMARY)) as i:
                self.write(0.0, self.place(self.scalar, self.summary, i))
            rows = self.n * self.interface.rows
            for size, array in ((self.n, self.final), (rows, self.own_rows)):
                if size:
                    with self.loop(size) as i:
                        self.write(float("nan"), self.place(self.scalar, array, i))

    def _length(self, name: str) -> int:
        return self.interface.times.length(name)

    def _time(self, name: str) -> Place:
        return self._in(self.interface.times, "%times", name)

    def _in(self, structure: StructureType, pointer: Place, name: str) -> Place:
        return self.place(self.scalar, pointer, structure.offset(name))

    def _out(self, name: str) -> Place:
        return self._in(self.interface.outputs, self.outputs, name)

    # The integration.

    def _integrate(self) -> None:
        """All members at once."""
        self.outputs = "%outputs"
        more = [self._ts(), self.summaries] if self.exported.run.adaptive else []
        given = [*self.starts, *self._kernel_times(), self._own_rows(), self.finals, *more]
        words = [*(f"ptr {x}" for x in given), "i64 %count"]
        self.invoke("void", f"run{self.ending}", *words)

    def _own_rows(self) -> Place:
        """Where saved states of the integration are: at the end of where they go, or beside."""
        if self.rows_room or not self.interface.rows:
            return self.rows_room or self.outputs
        behind = self.interface.rows * (self.size - self.n)
        return self.place(self.scalar, self._out("states"), behind)

    def _ts(self) -> Place:
        return self._out("ts") if self.interface.rows else self.outputs

    def _kernel_times(self) -> list[Place]:
        """Times as the integration takes them: increasing."""
        saved = ["saved"] if self._length("saved") else []
        if not self.exported.run.adaptive:
            return [self._increasing(x) for x in ["grid", *saved]]
        start, end, floor = self._increasing("t0"), self._increasing("t1"), self.array(1)
        last = self.read(end)
        self.write(last - abs(last) * (_NEAR_END * float(np.finfo(self.dtype).eps)), floor)
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
        known = {_RESULT: 0, _STEPS: steps, _ACCEPTED: steps}
        for i, value in known.items():
            self.write(float(value), self.place(self.scalar, self.summary, i))

    # After it.

    def _choose(self, member: Integer) -> None:
        """Go on with what belongs to a member."""
        self.outputs = self.place(self.scalar, "%outputs", member * self.interface.outputs.size)
        for size, array, every in zip(self.sizes, self.made, self.starts, strict=True):
            self._move(size, self.place(self.scalar, every, member * size), array)
        self.start, *self.parameters = self.made
        self.final = self.place(self.scalar, self.finals, member * self.n)
        self.summary = self.place(self.scalar, self.summaries, member * len(_SUMMARY))
        self.own_rows, self.ts = self._own_rows(), self._ts()
        if self.rows_room:
            size = self.interface.rows * self.n
            self.own_rows = self.place(self.scalar, self.rows_room, member * size)

    def _finish(self, valid: Condition) -> None:
        """Write the outputs of a member."""
        if self.exported.run.adaptive:
            self._turn(self.interface.rows, self.ts)
            self._turn(1, self.summary)
        else:
            self._fill_in()
        reached = self._read_rows()
        code = self.place(self.scalar, self.summary, _RESULT)
        broken = ~self._finite(self.final) & self.read(code).equals(0.0)
        with self.if_else(broken) as (then, otherwise):
            with then:
                self.write(float(_BROKEN._value), code)
                self._go_back(reached.get())
            with otherwise:
                own = self.array(self.n)
                self._move(self.n, self.final, own)
                self._read(self.exported.read_end, self.summary, own, self._out("final"))
        with self.if_then(~valid):
            for i, value in {_RESULT: INVALID_TIMES, _STEPS: 0, _ACCEPTED: 0}.items():
                self.write(float(value), self.place(self.scalar, self.summary, i))
        rows = self.place(self.scalar, self.summary, _ROWS)
        self.write(reached.get().as_number(), rows)
        self._move(len(_SUMMARY), self.summary, self.outputs)

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
