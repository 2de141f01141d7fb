"""Which instructions follow which: straight pieces of a function, and registers set before them."""

from typing import NamedTuple

from helpers.ptx.errors import PtxError
from helpers.ptx.records import (
    Address,
    Function,
    Instruction,
    Operand,
    Program,
    Register,
    Several,
    Symbol,
)

BRANCHES = ("bra", "bra.uni")
CALLS = ("call", "call.uni")
LEAVES = ("ret", "ret.uni", "exit")
TABLES = ("brx.idx", "brx.idx.uni")
BARRIERS = ("bar.sync", "barrier.sync", "barrier.sync.aligned")
# What ends a straight piece.
ENDS = (*BRANCHES, *CALLS, *LEAVES, *TABLES, *BARRIERS)
# Instructions whose first operand is read, too.
_READS_ALL = ("st", "red", "bra", "brx", "bar", "barrier", "call", "trap")


class Piece(NamedTuple):
    """Instructions of a function that run one after the other.

    Args:
        number: of the piece.
        begin: number of the first one.
        end: number behind the last one.
        following: pieces that may be next in this function; calls come back to the one behind.
    """

    number: int
    begin: int
    end: int
    following: tuple[int, ...]


def pieces(function: Function) -> list[Piece]:
    """All of them, in the order of the text."""
    code = function.instructions
    starts = {0, *function.labels.values()}
    starts |= {i + 1 for i, x in enumerate(code) if x.opcode in ENDS}
    order = sorted(x for x in starts if x < len(code))
    number = {x: i for i, x in enumerate(order)}
    ends = [*order[1:], len(code)]
    result = []
    for begin, end in zip(order, ends, strict=True):
        last = code[end - 1]
        targets = [number[x] for x in targets_of(function, last) if x in number]
        if _goes_on(last) and end in number:
            targets.append(number[end])
        elif _goes_on(last):
            raise PtxError(f"line {last.line}: {function.name} goes on behind its end")
        result.append(Piece(number[begin], begin, end, tuple(dict.fromkeys(targets))))
    return result


def targets_of(function: Function, instruction: Instruction) -> list[int]:
    """Numbers of the instructions that a branch may go to."""
    if instruction.opcode in BRANCHES:
        names = [x.name for x in instruction.operands if isinstance(x, Symbol)]
    elif instruction.opcode in TABLES:
        table = instruction.operands[-1]
        names = list(function.tables[table.name]) if isinstance(table, Symbol) else []
    else:
        return []
    missing = [x for x in names if x not in function.labels]
    if missing:
        raise PtxError(f"line {instruction.line}: unknown label {missing[0]}")
    return [function.labels[x] for x in names]


def _goes_on(instruction: Instruction) -> bool:
    leaves = instruction.opcode in (*BRANCHES, *LEAVES, *TABLES)
    return instruction.guard is not None or not leaves


def written(instruction: Instruction) -> list[Register]:
    """Registers that an instruction sets."""
    first = instruction.operands[:1]
    reads_all = instruction.opcode.split(".")[0] in _READS_ALL
    return [] if reads_all else [x for operand in first for x in _direct(operand)]


def read(instruction: Instruction) -> list[Register]:
    """Registers that an instruction needs."""
    first, others = instruction.operands[:1], instruction.operands[1:]
    reads_all = instruction.opcode.split(".")[0] in _READS_ALL
    of_first = _inside(first) if reads_all else []
    guard = [] if instruction.guard is None else [instruction.guard]
    return [*guard, *of_first, *_inside(others)]


def _direct(operand: Operand) -> list[Register]:
    if isinstance(operand, Register):
        return [operand]
    return [y for x in operand.entries for y in _direct(x)] if isinstance(operand, Several) else []


def _inside(operands: tuple[Operand, ...]) -> list[Register]:
    found = []
    for x in operands:
        found += _direct(x.base if isinstance(x, Address) else x)
    return found


def perhaps_unset(function: Function, parts: list[Piece]) -> set[str]:
    """Names of registers that some path reads before it sets them."""
    code = function.instructions
    sets = [_set_in(code[x.begin : x.end]) for x in parts]
    everything = set().union(*sets) if sets else set()
    before = [everything] * len(parts)
    if parts:
        before[0] = set()
    waiting = list(range(len(parts)))
    while waiting:
        i = waiting.pop()
        after = before[i] | sets[i]
        for j in parts[i].following:
            common = before[j] & after
            if common != before[j]:
                before[j] = common
                waiting.append(j)
    return {x for i, part in enumerate(parts) for x in _early(code, part, before[i])}


def _set_in(code: list[Instruction]) -> set[str]:
    return {x.name for one in code if one.guard is None for x in written(one)}


def _early(code: list[Instruction], part: Piece, before: set[str]) -> set[str]:
    known, early = set(before), set()
    for one in code[part.begin : part.end]:
        early |= {x.name for x in read(one)} - known
        if one.guard is None:
            known |= {x.name for x in written(one)}
    return early


def levels(program: Program, entry: Function) -> dict[str, int]:
    """Functions that an entry reaches, and the largest number of calls on the way to each."""
    result: dict[str, int] = {}

    def visit(function: Function, level: int, path: tuple[str, ...]) -> None:
        if function.name in path:
            raise PtxError(f"{function.name} calls itself")
        if result.get(function.name, -1) >= level:
            return
        result[function.name] = level
        for one in function.instructions:
            if one.opcode in CALLS:
                visit(callee(program, one), level + 1, (*path, function.name))

    visit(entry, 0, ())
    return result


def callee(program: Program, instruction: Instruction) -> Function:
    """The function that is called."""
    names = [x.name for x in instruction.operands if isinstance(x, Symbol)]
    if len(names) != 1 or names[0] not in program.functions:
        what = " ".join(names) or "an address"
        raise PtxError(f"line {instruction.line}: calls {what}, which is no function here")
    return program.functions[names[0]]
