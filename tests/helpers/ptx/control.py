"""Branches, calls, returns and barriers: where threads go at the end of a straight piece."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from helpers.ptx.errors import PtxError, ThreadError
from helpers.ptx.flow import BRANCHES, callee, CALLS, LEAVES, pieces, TABLES, targets_of
from helpers.ptx.memory import Rows
from helpers.ptx.operands import Operands
from helpers.ptx.records import Function, Immediate, Instruction, Program, Several, Symbol
from helpers.ptx.threads import Threads

# Where threads go: a piece, and which of them.
Ways: TypeAlias = "list[tuple[int, np.ndarray]]"
Leave: TypeAlias = Callable[[np.ndarray], Ways]


class Calls:
    """What leaves pieces, and what threads remember about calls.

    No function calls itself, so that each thread has at most one call of each open.

    Args:
        program: the module.
        threads: of the launch.
        first: number of the first piece of each function.
        entry: where threads begin.
    """

    def __init__(self, program: Program, threads: Threads, first: dict[str, int], entry: Function):
        self._program, self._threads, self._first, self._entry = program, threads, first, entry
        # The piece that each thread returns to, by function; what it brings, by piece.
        self._returns = {x: np.full(threads.count, -1) for x in first}
        self._brought: dict[int, list[tuple[Rows, Rows]]] = {}
        self._parked: Ways = []

    def released(self) -> Ways:
        """Threads at barriers, which then go on."""
        parked, self._parked = self._parked, []
        return parked

    def leaving(self, function: Function, one: Instruction, behind: int) -> Leave:
        """Where threads go at an instruction that ends a piece.

        Args:
            function: it is in.
            one: the instruction.
            behind: number of the piece behind it.
        """
        leave = self._unguarded(function, one, behind)
        if one.guard is None:
            return leave
        guard, negated = self._threads.register(function.name, one.guard), one.negated

        def choose(mask: np.ndarray) -> Ways:
            passing = (guard ^ negated) & mask
            if not passing.any():
                return [(behind, mask)]
            staying = mask & ~passing
            ways = leave(passing)
            return [*ways, (behind, staying)] if staying.any() else ways

        return choose

    def _unguarded(self, function: Function, one: Instruction, behind: int) -> Leave:
        if one.opcode in BRANCHES:
            target = self._targets(function, one)[0]
            return lambda mask: [(target, mask)]
        if one.opcode in TABLES:
            return self._by_table(function, one)
        if one.opcode in CALLS:
            return self._call(function, one, behind)
        if one.opcode in LEAVES:
            ends = one.opcode == "exit" or function is self._entry
            return (lambda _: []) if ends else self._return(function)
        if len(one.operands) != 1 or one.operands[0] != Immediate("0"):
            raise PtxError("only barrier 0 of all threads of a block is known")
        return lambda mask: self._park(behind, mask)

    def _targets(self, function: Function, one: Instruction) -> list[int]:
        """Numbers of pieces."""
        parts = pieces(function)
        starts = {x.begin: self._first[function.name] + x.number for x in parts}
        return [starts[x] for x in targets_of(function, one)]

    def _by_table(self, function: Function, one: Instruction) -> Leave:
        at = Operands(self._threads, function.name, one.operands)
        index = at.source(at.expect(2)[0], "u32")
        targets = self._targets(function, one)

        def choose(mask: np.ndarray) -> Ways:
            wrong = (index >= len(targets)) & mask
            if wrong.any():
                thread = int(np.argmax(wrong))
                raise ThreadError(thread, f"takes label {index[thread]} of {len(targets)}")
            ways = [(x, mask & (index == i)) for i, x in enumerate(targets)]
            return [x for x in ways if x[1].any()]

        return choose

    def _park(self, behind: int, mask: np.ndarray) -> Ways:
        self._parked.append((behind, mask))
        return []

    def _call(self, function: Function, one: Instruction, behind: int) -> Leave:
        called = callee(self._program, one)
        results, arguments = _around(one)
        rows = self._threads.parameters
        ours = [self._variable(function, x) for x in arguments]
        theirs = [rows[called.name, x.name] for x in called.parameters]
        brought = [self._variable(function, x) for x in results]
        left = [rows[called.name, x.name] for x in called.results]
        _check_sizes(called.name, ours, theirs)
        _check_sizes(called.name, brought, left)
        self._brought[behind] = list(zip(left, brought, strict=True))
        returns, target = self._returns[called.name], self._first[called.name]

        def go(mask: np.ndarray) -> Ways:
            self._threads.forget(called.name, mask)
            for source, copy in zip(ours, theirs, strict=True):
                copy.take(source, mask)
            returns[mask] = behind
            return [(target, mask)]

        return go

    def _return(self, function: Function) -> Leave:
        returns = self._returns[function.name]

        def go(mask: np.ndarray) -> Ways:
            ways = []
            for behind in np.unique(returns[mask]).tolist():
                part = mask & (returns == behind)
                for source, copy in self._brought[behind]:
                    copy.take(source, part)
                ways.append((behind, part))
            return ways

        return go

    def _variable(self, function: Function, operand: object) -> Rows:
        name = operand.name if isinstance(operand, Symbol) else ""
        if (function.name, name) not in self._threads.parameters:
            raise PtxError(f"{operand} is no parameter")
        return self._threads.parameters[function.name, name]


def _around(one: Instruction) -> tuple[tuple, tuple]:
    """Operands in front of the function, and behind it."""
    at = next(i for i, x in enumerate(one.operands) if isinstance(x, Symbol))
    front, behind = one.operands[:at], one.operands[at + 1 :]
    if len(front) > 1 or len(behind) > 1:
        raise PtxError("a call has results, a function and arguments")
    return _entries(front), _entries(behind)


def _entries(operands: tuple) -> tuple:
    if operands and not isinstance(operands[0], Several):
        raise PtxError(f"{operands[0]} is not in parentheses")
    return operands[0].entries if operands else ()


def _check_sizes(name: str, given: list[Rows], wanted: list[Rows]) -> None:
    lengths = ([x.nbytes for x in given], [x.nbytes for x in wanted])
    if lengths[0] != lengths[1]:
        raise PtxError(f"parameters of {name} have {lengths[1]} bytes, and {lengths[0]} are given")
