"""Operands of instructions as arrays over the threads."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from helpers.ptx.errors import PtxError
from helpers.ptx.kinds import bits_kind, kind
from helpers.ptx.records import Immediate, Operand, Register, Several, Special, Symbol
from helpers.ptx.threads import Threads

# Which threads take part: `True` for all of them, or a boolean for each.
Where: TypeAlias = "np.ndarray | bool"
Step: TypeAlias = Callable[[Where], Any]


class Operands:
    """Finds the arrays that one instruction works on.

    Args:
        threads: of the launch.
        function: the function's name.
        given: operands of the instruction.
    """

    def __init__(self, threads: Threads, function: str, given: tuple[Operand, ...]):
        self.threads, self.function, self.given = threads, function, given

    def expect(self, count: int) -> tuple[Operand, ...]:
        """The operands, if there are so many."""
        if len(self.given) != count:
            raise PtxError(f"has {len(self.given)} operands, not {count}")
        return self.given

    def source(self, operand: Operand, name: str) -> np.ndarray:
        """What is read, as a type of the same length."""
        dtype = kind(name)
        if isinstance(operand, Register):
            return self._matching(operand, name).view(dtype)
        if isinstance(operand, Immediate):
            return self.threads.constant(operand.text, dtype)
        if isinstance(operand, Special) and name in ("u32", "b32", "s32"):
            return self.threads.shape.special(operand.name).view(dtype)
        if isinstance(operand, Symbol) and name in ("u64", "b64"):
            return np.full(self.threads.count, self.address(operand)[1], dtype)
        raise PtxError(f"{operand} cannot be read as .{name}")

    def target(self, operand: Operand, name: str) -> np.ndarray:
        """What is written, as a type of the same length."""
        if not isinstance(operand, Register):
            raise PtxError(f"{operand} is no register")
        return self._matching(operand, name).view(kind(name))

    def cut(self, operand: Operand, name: str) -> Callable[[], np.ndarray]:
        """What reads an operand that may be longer than a type: the lower bits of a register."""
        dtype = kind(name)
        if not isinstance(operand, Register) or kind(operand.kind).itemsize <= dtype.itemsize:
            array = self.source(operand, name)
            return lambda: array
        register, bits = self.threads.register(self.function, operand), bits_kind(dtype)
        return lambda: register.astype(bits).view(dtype)

    def extended(self, operand: Operand, name: str) -> Callable[[np.ndarray, Where], None]:
        """What writes numbers of a type to a register that may be longer: by its sign, if any."""
        if not isinstance(operand, Register):
            raise PtxError(f"{operand} is no register")
        if kind(operand.kind).itemsize < kind(name).itemsize or operand.kind == "pred":
            raise PtxError(f"{operand.name}, a register of .{operand.kind}, is too short")
        register = self.threads.register(self.function, operand)
        dtype, signed = register.dtype, kind(name).kind == "i"
        if dtype.itemsize == kind(name).itemsize:
            same = register.view(kind(name))
            return lambda values, where: np.copyto(same, values, where=where)
        wide = np.dtype(f"i{dtype.itemsize}") if signed else dtype
        narrow = kind(name) if signed else bits_kind(kind(name))
        view = register.view(wide)
        return lambda values, where: np.copyto(view, values.view(narrow), where=where)

    def several(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The entries of a vector."""
        entries = operand.entries if isinstance(operand, Several) else (operand,)
        if len(entries) != count:
            raise PtxError(f"a vector of {len(entries)}, not {count}")
        return entries

    def address(self, symbol: Symbol) -> tuple[str, int]:
        """Space of a variable, and its address there."""
        return self.threads.address(self.function, symbol.name)

    def _matching(self, operand: Register, name: str) -> np.ndarray:
        lengths = (kind(operand.kind).itemsize, kind(name).itemsize)
        floats = (operand.kind[0] == "f", name[0] == "f")
        mixed = floats[0] != floats[1] and "b" not in (operand.kind[0], name[0])
        if lengths[0] != lengths[1] or mixed or (operand.kind == "pred") != (name == "pred"):
            raise PtxError(f"{operand.name} is a register of .{operand.kind}, not .{name}")
        return self.threads.register(self.function, operand)
