"""Modules of LLVM's intermediate language: definitions of functions, each with what it needs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Definition(NamedTuple):
    """A function of a module, or a constant.

    Args:
        name: its name.
        text: its definition.
        declared: declarations of functions of LLVM and of the C library that it calls.
        calls: how often it calls functions.
        rooms: bytes of what it keeps in memory while it runs.
        registers: bytes of all of its registers.
    """

    name: str
    text: str
    declared: frozenset[str] = frozenset()
    calls: Mapping[str, int] = {}
    rooms: int = 0
    registers: int = 0


class LlvmModule:
    """Definitions, each once by its name."""

    def __init__(self, definitions: Iterable[Definition]):
        self.definitions = list({x.name: x for x in definitions}.values())
        declared = sorted(frozenset().union(*(x.declared for x in self.definitions)))
        self.text = "\n\n".join(["\n".join(declared), *(x.text for x in self.definitions)])
        names = (x[x.index("@") + 1 : x.index("(")] for x in declared)
        #: Functions of the C library that it calls.
        self.library = [x for x in names if not x.startswith("llvm.")]


# Of the registers of optimized code, those that wait in memory at once, at most.
_WAITING = 1 / 4


def stack_need(definitions: Iterable[Definition], quickly: bool) -> int:
    """What the stack of a thread must hold to run functions, at most [bytes].

    None of them calls itself; their code may be made without optimization.
    """
    each, calls = list(definitions), Counter()
    for x in each:
        calls.update(x.calls)
    # Where a function becomes part of another, each place has room of its own.
    rooms = sum(max(1, calls[x.name]) * x.rooms for x in each)
    return int(rooms + (1.0 if quickly else _WAITING) * sum(x.registers for x in each))
