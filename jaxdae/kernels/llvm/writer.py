"""LLVM's intermediate language, instruction by instruction: the one place where it is put down."""

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from jaxdae.kernels.llvm.module import Definition

# Of vectors in memory [bytes]: that of the widest registers.
ALIGNMENT = 64


class Writer:
    """The instructions of one function, on vectors `<width x type>`.

    Registers and constants are words of the language; whatever prints as one will do.

    Args:
        width: entries of a vector.
        dtype: float64 or float32.
    """

    def __init__(self, width: int = 1, dtype: Any = np.float64):
        self.dtype = np.dtype(dtype)
        self.bits = 8 * self.dtype.itemsize
        self.scalar = "double" if self.bits == 64 else "float"
        self.resize(width)
        self.lines: list[str] = []
        self.block = "entry"
        self._declared: set[str] = set()
        self._calls: Counter[str] = Counter()
        self._made: Counter[str] = Counter()
        self._rooms: list[str] = []
        self._room_bytes = self._count = self._labels = 0
        self._intrinsics: dict[tuple, str] = {}

    def resize(self, width: int) -> None:
        """Go on with vectors of so many entries."""
        self.width = width
        self.vector = f"<{width} x {self.scalar}>"
        self.integers = f"<{width} x i{self.bits}>"
        self.mask = f"<{width} x i1>"

    def define(
        self, name: str, parameters: str, kind: str = "void", result: Any = "", attributes: str = ""
    ) -> Definition:
        """The function, which returns here; known to its module alone."""
        self.line(f"  ret {kind} {result}")
        return self.returned(f"internal {kind}", name, parameters, attributes)

    def returned(self, kind: str, name: str, parameters: str, attributes: str = "") -> Definition:
        """The function, all of whose blocks have ended."""
        head = f"define {kind} @{name}({parameters}) {attributes}{{\nentry:"
        text = "\n".join([head, *self._rooms, *self.lines, "}"])
        waiting = sum(count * size_of(x) for x, count in self._made.items())
        declared = frozenset(self._declared)
        return Definition(name, text, declared, dict(self._calls), self._room_bytes, waiting)

    # Lines and constants.

    def name(self) -> str:
        """A new register."""
        self._count += 1
        return f"%r{self._count}"

    def put(self, kind: str, instruction: str) -> str:
        """An instruction whose result, of a type, gets a new register."""
        self._count += 1
        register = f"%r{self._count}"
        self.lines.append(f"  {register} = {instruction}")
        self._made[kind] += 1
        return register

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self.lines.append(text)

    def constant(self, kind: str, value: Any) -> str:
        """A constant of a type; of a vector the same for all entries."""
        if kind[0] == "<":
            entry = kind[kind.index("x") + 2 : -1]
            return f"splat ({entry} {self.constant(entry, value)})"
        if kind in ("double", "float"):
            return literal(float(self.dtype.type(value)))
        return str(value).lower()

    def number(self, value: float) -> str:
        """A vector of equal numbers."""
        return self.constant(self.vector, value)

    # Numbers.

    def intrinsic(self, name: str, *arguments: Any, kind: str | None = None) -> str:
        """A function of numbers that LLVM knows."""
        kind = self.vector if kind is None else kind
        key = name, kind, len(arguments)
        if key not in self._intrinsics:
            called = f"{kind} @llvm.{name}.{_suffix(kind)}"
            self._declared.add(f"declare {called}({', '.join([kind] * len(arguments))})")
            self._intrinsics[key] = called
        words = ", ".join([f"{kind} {x}" for x in arguments])
        return self.put(kind, f"call {self._intrinsics[key]}({words})")

    def product_and_sum(self, a: Any, b: Any, c: Any) -> str:
        """`a b + c`, with one rounding where the processor has an instruction for it."""
        return self.intrinsic("fmuladd", a, b, c)

    def entry(self, vector: Any, i: Any) -> str:
        """One entry of a vector."""
        return self.put(self.scalar, f"extractelement {self.vector} {vector}, i32 {i}")

    def with_entry(self, vector: Any, value: Any, i: Any) -> str:
        """A vector with another entry."""
        return self.put(
            self.vector, f"insertelement {self.vector} {vector}, {self.scalar} {value}, i32 {i}"
        )

    def repeated(self, value: Any, kind: str | None = None) -> str:
        """A vector whose entries are all one value; of numbers, if no type is named."""
        kind = self.vector if kind is None else kind
        entry = kind[kind.index("x") + 2 : -1]
        one = self.put(kind, f"insertelement {kind} poison, {entry} {value}, i32 0")
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.put(kind, f"shufflevector {kind} {one}, {kind} poison, {zeros}")

    # Memory.

    def room(self, size: int, kind: str | None = None) -> str:
        """Memory for values of a type, as long as the function runs; for vectors by default."""
        kind, size = self.vector if kind is None else kind, max(size, 1)
        register = self.name()
        self._rooms.append(f"  {register} = alloca {kind}, i64 {size}, align {ALIGNMENT}")
        self._room_bytes += size * size_of(kind)
        return register

    def place(self, kind: str, pointer: Any, index: Any) -> str:
        """Place of one of several values of a type."""
        return self.put("ptr", f"getelementptr {kind}, ptr {pointer}, i64 {index}")

    def field(self, pointer: Any, field: Any) -> str:
        """Place of a field of a structure, as `ctypes` describes it."""
        return self.place("i8", pointer, field.offset)

    def load(self, kind: str, place: Any, align: int | None = None) -> str:
        """A value from memory."""
        return self.put(kind, f"load {kind}, ptr {place}{_aligned(align)}")

    def store(self, kind: str, value: Any, place: Any, align: int | None = None) -> None:
        """Put a value into memory."""
        self.lines.append(f"  store {kind} {value}, ptr {place}{_aligned(align)}")

    def copy_vectors(self, source: Any, target: Any, count: int) -> None:
        """Copy some vectors at once."""
        size = count * self.width * self.bits // 8
        self.invoke("void", "llvm.memcpy.p0.p0.i64", f"ptr {target}", f"ptr {source}",
                  f"i64 {size}", "i1 false", declared="ptr, ptr, i64, i1")  # fmt: skip

    # Calls.

    def invoke(self, kind: str, name: str, *arguments: str, declared: str | None = None) -> str:
        """Call a function with a type of its result, and with arguments with theirs before them.

        One that is not defined in the module is declared, with types of its parameters.
        """
        if declared is not None:
            self._declared.add(f"declare {kind} @{name}({declared})")
        self._calls[name] += 1
        text = f"call {kind} @{name}({', '.join(arguments)})"
        if kind != "void":
            return self.put(kind, text)
        self.lines.append(f"  {text}")
        return ""

    # Blocks.

    def label(self, name: str) -> str:
        """A new label."""
        self._labels += 1
        return f"{name}{self._labels}"

    def start_block(self, label: str) -> None:
        """Begin a block."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End a block."""
        self.lines.append(f"  br label %{label}")

    def branch(self, condition: Any, yes: str, no: str) -> None:
        """End a block with a choice."""
        self.lines.append(f"  br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, kind: str, *cases: tuple[Any, str]) -> str:
        """A value by the block that was left last."""
        return self.put(kind, f"phi {kind} {_cases(*cases)}")

    @contextmanager
    def if_then(self, condition: Any) -> Iterator[None]:
        """What is done where a condition holds."""
        then, done = self.label("then"), self.label("done")
        self.branch(condition, then, done)
        self.start_block(then)
        yield
        self.jump(done)
        self.start_block(done)

    @contextmanager
    def if_else(self, condition: Any) -> Iterator[tuple[Any, Any]]:
        """Two blocks to go on in: where a condition holds, and elsewhere."""
        then, otherwise, done = (self.label(x) for x in ("then", "else", "done"))
        self.branch(condition, then, otherwise)
        yield self._within(then, done), self._within(otherwise, done)
        self.start_block(done)

    @contextmanager
    def _within(self, label: str, done: str) -> Iterator[None]:
        self.start_block(label)
        yield
        self.jump(done)

    @contextmanager
    def while_(self, condition: Callable[[], Any]) -> Iterator[None]:
        """As long as a condition holds, which is computed before each turn."""
        test, turn, done = (self.label(x) for x in ("test", "turn", "done"))
        self.jump(test)
        self.start_block(test)
        self.branch(condition(), turn, done)
        self.start_block(turn)
        yield
        self.jump(test)
        self.start_block(done)

    @contextmanager
    def turns(self, start: Any, stop: Any, step: Any = 1) -> Iterator["Turns"]:
        """For each integer from a start to before a stop."""
        result = Turns(self, start)

        def goes_on():
            result.begin()
            return self.put("i1", f"icmp slt i64 {result.index}, {stop}")

        before = self.block
        with self.while_(goes_on):
            yield result
            result.hand_on(result.index, self.put("i64", f"add i64 {result.index}, {step}"))
            result.end(before)


class Turns:
    """A loop while it is written; `index` is that of a turn."""

    def __init__(self, writer: Writer, start: Any):
        self._writer, self._line = writer, 0
        self._kinds: dict[str, str] = {}
        self._first: dict[str, Any] = {}
        self._following: dict[str, Any] = {}
        self.index = self.carried("i64", start)

    def carried(self, kind: str, first: Any) -> str:
        """A value that is handed from turn to turn, by what it is in the first one."""
        register = self._writer.name()
        self._kinds[register], self._first[register] = kind, first
        return register

    def hand_on(self, register: str, value: Any) -> None:
        """Say what a value is in the next turn."""
        self._following[register] = value

    def begin(self) -> None:
        """Keep a line for the values, of which all is known only at the end of a turn."""
        self._line = len(self._writer.lines)
        self._writer.line("")

    def end(self, before: str) -> None:
        """Write that line: values come from the block before the loop, or from that of a turn."""
        block = self._writer.block
        self._writer.lines[self._line] = "\n".join(
            f"  {x} = phi {kind} {_cases((self._first[x], before), (self._following[x], block))}"
            for x, kind in self._kinds.items()
        )


def literal(value: float) -> str:
    """A floating-point constant by its bits, which also single precision writes as double's."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


_SIZES = {"i1": 1, "i8": 1, "i32": 4, "float": 4}


@cache
def size_of(kind: str) -> int:
    """Bytes of a type, of one that is not known eight."""
    parts = re.findall(r"(\d+) x (\w+)", kind)
    return sum(int(n) * size_of(x) for n, x in parts) if parts else _SIZES.get(kind, 8)


@cache
def _suffix(kind: str) -> str:
    """`v8f64` of `<8 x double>`, `f32` of `float`."""
    entry = "f64" if "double" in kind else "f32" if "float" in kind else kind.split()[-1][:-1]
    return f"v{kind[1:].split()[0]}{entry}" if kind[0] == "<" else entry


def _aligned(align: int | None) -> str:
    return "" if align is None else f", align {align}"


def _cases(*cases: tuple[Any, str]) -> str:
    return ", ".join(f"[ {value}, %{block} ]" for value, block in cases)
