"""Runs of threads: of those that wait, the ones furthest behind run a straight piece.

Functions called more deeply come first, then earlier pieces of the text: threads that parted at a
branch run together again behind it.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from helpers.ptx import comparisons, conversions, floating, integers, loads, moves
from helpers.ptx.control import Calls, Ways
from helpers.ptx.errors import PtxError, ThreadError
from helpers.ptx.flow import ENDS, levels, perhaps_unset, Piece, pieces, read, written
from helpers.ptx.memory import Memory
from helpers.ptx.operands import Operands, Step, Where
from helpers.ptx.records import Function, Instruction, Program, Register
from helpers.ptx.threads import Shape, Threads

INSTRUCTIONS = {
    **floating.INSTRUCTIONS,
    **integers.INSTRUCTIONS,
    **comparisons.INSTRUCTIONS,
    **conversions.INSTRUCTIONS,
    **moves.INSTRUCTIONS,
    **loads.INSTRUCTIONS,
}
# Instructions of a launch: what goes on longer is taken for an endless loop.
_MOST = 10**7


class _Code(NamedTuple):
    """A straight piece that is ready to run: its steps, and what leaves it."""

    steps: list[tuple[Instruction, Step]]
    leave: Callable[[np.ndarray], Ways]
    last: Instruction


_Waiting: TypeAlias = "dict[int, np.ndarray]"


class Run:
    """One launch.

    Args:
        program: the module.
        entry: where threads begin.
        shape: how many there are.
        memory: buffers that they may use.
        addresses: of variables of the module.
    """

    def __init__(
        self,
        program: Program,
        entry: Function,
        shape: Shape,
        memory: Memory,
        addresses: dict[str, int],
    ):
        self._entry = entry
        reached = levels(program, entry)
        order = sorted(reached, key=lambda x: -reached[x])
        functions = [program.functions[x] for x in order]
        self.threads = Threads(program, functions, shape, memory, addresses)
        parts = {f.name: pieces(f) for f in functions}
        # Numbers of pieces of all functions: those that run first have smaller ones.
        first, count = {}, 0
        for f in functions:
            first[f.name] = count
            count += len(parts[f.name])
        self._calls = Calls(program, self.threads, first, entry)
        self._first, self._code = first, []
        for f in functions:
            checks = _Checks(self.threads, f, perhaps_unset(f, parts[f.name]))
            self._code += [self._ready(f, x, checks) for x in parts[f.name]]

    def set_parameters(self, values: list[int]) -> None:
        """Of the entry."""
        wanted = self._entry.parameters
        if len(values) != len(wanted):
            raise PtxError(
                f"{self._entry.name} has {len(wanted)} parameters, and {len(values)} were given"
            )
        for x, value in zip(wanted, values, strict=True):
            if x.length != 1:
                raise PtxError(f"parameter {x.name} is an array")
            rows = self.threads.parameters[self._entry.name, x.name]
            rows.columns(0, np.dtype(f"u{x.nbytes}"), 1)[0][:] = value % 2 ** (8 * x.nbytes)

    def to_end(self) -> int:
        """Run; the number of instructions."""
        waiting: _Waiting = {self._first[self._entry.name]: np.ones(self.threads.count, np.bool_)}
        executed = 0
        while waiting:
            at = min(waiting)
            code, mask = self._code[at], waiting.pop(at)
            _join(waiting, _through(code, mask))
            executed += len(code.steps) + 1
            if executed > _MOST:
                raise PtxError(f"line {code.last.line}: no end after {_MOST} instructions")
            if not waiting:
                # All threads of a block are at a barrier, or have ended.
                _join(waiting, self._calls.released())
        return executed

    def _ready(self, function: Function, part: Piece, checks: "_Checks") -> _Code:
        code = function.instructions[part.begin : part.end]
        last = code[-1]
        if last.opcode in ENDS:
            code = code[:-1]
        steps = [(x, self._step(function, x, checks)) for x in code]
        behind = self._first[function.name] + part.number + 1
        if last.opcode not in ENDS:
            return _Code(steps, lambda mask: [(behind, mask)], last)
        leave = named(last, lambda: self._calls.leaving(function, last, behind))
        guards = checks.guards(last)
        return _Code([*steps, *((last, x) for x in guards)], leave, last)

    def _step(self, function: Function, one: Instruction, checks: "_Checks") -> Step:
        def build() -> Step:
            at = Operands(self.threads, function.name, one.operands)
            step = checks.around(one, INSTRUCTIONS[one.opcode](at))
            if one.guard is None:
                return step
            taken = _Guard(self.threads, function, one)
            return checks.guarded(one, lambda where: taken.run(step, where))

        return named(one, build)


def _join(waiting: _Waiting, ways: Ways) -> None:
    for target, mask in ways:
        waiting[target] = waiting[target] | mask if target in waiting else mask


def _through(code: _Code, mask: np.ndarray) -> Ways:
    """Run a piece with some threads; where they go then."""
    where: Where = True if mask.all() else mask
    at = 0
    try:
        for at, (_, step) in enumerate(code.steps):  # noqa: B007
            step(where)
        at = len(code.steps)
        return code.leave(mask)
    except PtxError as error:
        one = [*(x for x, _ in code.steps), code.last][at]
        raise PtxError(f"line {one.line}: {one.opcode}: {error}") from error


def named(one: Instruction, build: Callable):
    """What is built for an instruction, whose place errors name."""
    try:
        return build()
    except PtxError as error:
        raise PtxError(f"line {one.line}: {one.opcode}: {error}") from error


class _Guard:
    """The predicate in front of an instruction."""

    def __init__(self, threads: Threads, function: Function, one: Instruction):
        assert one.guard is not None
        self._value = threads.register(function.name, one.guard)
        self._negated = one.negated

    def run(self, step: Step, where: Where) -> None:
        """Run a step in the threads that it lets pass."""
        passing = (self._value ^ self._negated) & where
        if passing.any():
            step(True if passing.all() else passing)


class _Checks:
    """That registers are set before they are read, where the text does not show it.

    Args:
        threads: of the launch.
        function: whose registers they are.
        names: those that some path reads before it sets them.
    """

    def __init__(self, threads: Threads, function: Function, names: set[str]):
        self._known = {x: threads.watched(function.name, x) for x in sorted(names)}

    def around(self, one: Instruction, step: Step) -> Step:
        """A step with checks before it, and a note of what it sets behind it."""
        needed = [x for x in read(one) if x is not one.guard]
        before = [self._check(x) for x in needed if x.name in self._known]
        sets = [self._known[x.name] for x in written(one) if x.name in self._known]
        if not before and not sets:
            return step

        def checked(where: Where) -> None:
            for check in before:
                check(where)
            step(where)
            for known in sets:
                known |= where

        return checked

    def guarded(self, one: Instruction, step: Step) -> Step:
        """A step with a check of its guard."""
        before = self.guards(one, only_guard=True)

        def checked(where: Where) -> None:
            for check in before:
                check(where)
            step(where)

        return checked if before else step

    def guards(self, one: Instruction, only_guard: bool = False) -> list[Step]:
        """Checks of what an instruction reads, or of its guard alone."""
        needed = [x for x in read(one) if x is one.guard or not only_guard]
        return [self._check(x) for x in needed if x.name in self._known]

    def _check(self, register: Register) -> Step:
        known = self._known[register.name]

        def check(where: Where) -> None:
            missing = ~known & where
            if missing.any():
                raise ThreadError(
                    int(np.argmax(missing)), f"reads register {register.name}, which is not set"
                )

        return check
