"""What PTX is read into."""

from dataclasses import dataclass, field
from typing import NamedTuple

from helpers.ptx.kinds import kind


class Register(NamedTuple):
    """A register of each thread: its name, and the type it is declared with."""

    name: str
    kind: str


class Immediate(NamedTuple):
    """A literal."""

    text: str


class Symbol(NamedTuple):
    """The name of a variable, a label or a function."""

    name: str


class Special(NamedTuple):
    """A register that says which thread this is."""

    name: str


class Address(NamedTuple):
    """A place in memory: a base, and bytes behind it."""

    base: Register | Symbol
    offset: int


class Several(NamedTuple):
    """Operands in braces or parentheses."""

    entries: tuple["Operand", ...]


Operand = Register | Immediate | Symbol | Special | Address | Several


class Instruction(NamedTuple):
    """One instruction.

    Args:
        line: of the text, from 1.
        opcode: with its modifiers.
        operands: in the order of the text.
        guard: predicate without which a thread does nothing; `None` without one.
        negated: whether it does nothing with it.
    """

    line: int
    opcode: str
    operands: tuple[Operand, ...]
    guard: Register | None = None
    negated: bool = False


class Variable(NamedTuple):
    """Memory with a name.

    Args:
        space: `global`, `const`, `shared`, `local` or `param`.
        name: unique in its function.
        kind: type of its entries.
        length: number of entries.
        alignment: of its address, in bytes.
        values: literals of its first entries; the others are zero.
        line: of the text.
    """

    space: str
    name: str
    kind: str
    length: int
    alignment: int
    values: tuple[str, ...] | None
    line: int

    @property
    def nbytes(self) -> int:
        return self.length * kind(self.kind).itemsize


@dataclass
class Function:
    """A function, or an entry of the module.

    Args:
        name: of it.
        entry: whether it can be launched.
        results: variables of its results.
        parameters: variables of its parameters.
        variables: those of its body.
        instructions: in the order of the text.
        labels: number of the instruction behind each.
        tables: lists of labels.
        block: threads of a block that it must be launched with; `None` for any.
    """

    name: str
    entry: bool
    results: list[Variable]
    parameters: list[Variable]
    variables: list[Variable] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    block: int | None = None
    largest: int | None = None


@dataclass
class Program:
    """All of a module."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
