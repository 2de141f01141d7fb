"""What the threads of a launch hold: registers, parameters, local and shared memory."""

import math
from typing import NamedTuple

import numpy as np

from helpers.ptx.errors import PtxError
from helpers.ptx.kinds import bits_kind, kind, literal
from helpers.ptx.memory import LOCAL, Memory, Rows, SHARED
from helpers.ptx.records import Function, Program, Register, Variable


class Shape(NamedTuple):
    """Blocks of a launch, and threads of a block."""

    grid: int
    block: int

    @property
    def threads(self) -> int:
        return self.grid * self.block

    def special(self, name: str) -> np.ndarray:
        """A special register of all threads, 32 bits long."""
        number = np.arange(self.threads, dtype=np.uint32)
        register, axis = name[1:].split(".")
        along_x = {
            "tid": number % np.uint32(self.block),
            "ctaid": number // np.uint32(self.block),
            "ntid": np.full_like(number, self.block),
            "nctaid": np.full_like(number, self.grid),
        }[register]
        other = np.full_like(number, register.startswith("n"))
        return along_x if axis == "x" else other


class Threads:
    """All of them at once: each register is an array with an entry of each thread.

    Args:
        program: of the module.
        functions: those that are run.
        shape: of the launch.
        memory: buffers of the host.
        addresses: of the module's variables in them.
    """

    def __init__(
        self,
        program: Program,
        functions: list[Function],
        shape: Shape,
        memory: Memory,
        addresses: dict[str, int],
    ):
        self.shape, self.memory, self.count = shape, memory, shape.threads
        self.numbers = np.arange(self.count)
        self._registers: dict[tuple[str, str], np.ndarray] = {}
        self._constants: dict[tuple[bytes, str], np.ndarray] = {}
        self.parameters: dict[tuple[str, str], Rows] = {}
        # Which threads have set a register, where that is not sure.
        self._known: dict[tuple[str, str], np.ndarray] = {}
        # Addresses of variables in their own space, which the module's are known by, too.
        self._addresses = {("", name): ("global", x) for name, x in addresses.items()}
        everywhere = [("", x) for x in program.variables if x.space == "shared"]
        self._locals = {f.name: [x for x in f.variables if x.space == "local"] for f in functions}
        inside = [(f.name, x) for f in functions for x in f.variables]
        self.local = self._laid_out("local", inside, self.numbers)
        self.shared = self._laid_out("shared", [*everywhere, *inside], self.numbers // shape.block)
        for f in functions:
            for x in (*f.results, *f.parameters, *(x for x in f.variables if x.space == "param")):
                self.parameters[f.name, x.name] = Rows("param", x.nbytes, self.numbers)

    def _laid_out(self, space: str, variables: list, rows: np.ndarray) -> Rows:
        """Memory for all variables of a space, none of which two functions share."""
        nbytes = 0
        for function, x in variables:
            if x.space == space:
                _refuse_values(x)
                nbytes = -(-nbytes // x.alignment) * x.alignment
                self._addresses[function, x.name] = (space, nbytes)
                nbytes += x.nbytes
        return Rows(space, nbytes, rows)

    def watched(self, function: str, name: str) -> np.ndarray:
        """Which threads have set a register, from now on."""
        return self._known.setdefault((function, name), np.zeros(self.count, np.bool_))

    def forget(self, function: str, mask: np.ndarray) -> None:
        """What some threads have left in a function that they call again."""
        for (owner, _), known in self._known.items():
            if owner == function:
                known &= ~mask
        for variable in self._locals.get(function, ()):
            _, first = self._addresses[function, variable.name]
            self.local.clear(first, variable.nbytes, mask)

    def register(self, function: str, register: Register) -> np.ndarray:
        """The array of a register, as unsigned integers or booleans."""
        key = (function, register.name)
        if key not in self._registers:
            dtype = bits_kind(kind(register.kind))
            self._registers[key] = np.zeros(self.count, dtype)
        return self._registers[key]

    def constant(self, text: str, dtype: np.dtype) -> np.ndarray:
        """A literal, once for each thread."""
        value = literal(text, dtype)
        key = (value.tobytes(), dtype.name)
        if key not in self._constants:
            self._constants[key] = np.full(self.count, value, dtype)
        return self._constants[key]

    def address(self, function: str, name: str) -> tuple[str, int]:
        """Space of a variable, and its address there."""
        for key in ((function, name), ("", name)):
            if key in self._addresses:
                return self._addresses[key]
        raise PtxError(f"unknown variable {name}")


def generic(space: str) -> int:
    """Where the window of a space begins."""
    return {"local": LOCAL, "shared": SHARED, "global": 0, "const": 0}[space]


def _refuse_values(variable: Variable) -> None:
    if variable.values is not None:
        raise PtxError(f"line {variable.line}: {variable.space} variables have no values")


def initial_bytes(variable: Variable) -> np.ndarray:
    """What a variable of the module holds at first."""
    dtype = kind(variable.kind)
    result = np.zeros(variable.length, dtype)
    values = variable.values or ()
    if len(values) > variable.length:
        raise PtxError(f"line {variable.line}: {len(values)} values for {variable.length} entries")
    for i, text in enumerate(values):
        result[i] = literal(text, dtype)
    size = math.ceil(max(result.nbytes, 1) / variable.alignment) * variable.alignment
    return np.frombuffer(result.tobytes().ljust(size, b"\0"), np.uint8)
