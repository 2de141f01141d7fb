"""Registers of a function that is being written, with the signs of arithmetic.

Each operation is one instruction with one rounding; products and sums are never joined unless
`fused` or `joined` say so, because the error terms of double-length arithmetic rest on that. A
register holds one value or a vector of them, by its type.
"""

from typing import Any, Self

import numpy as np

from jaxdae.kernels.llvm.writer import Writer


def _with(instruction: str) -> Any:
    """The operator `self instruction other`."""
    return lambda self, other: self._operation(instruction, self.name, self._word(other))


def _after(instruction: str) -> Any:
    """The operator `other instruction self`."""
    return lambda self, other: self._operation(instruction, self._word(other), self.name)


def _compared(condition: str) -> Any:
    return lambda self, other: self._compared(condition, other)


class Register:
    """A value.

    Args:
        writer: what its instructions are written to.
        name: of the register, or a constant.
        kind: its type, as LLVM writes it.
    """

    __slots__ = ("kind", "name", "writer")

    def __init__(self, writer: Writer, name: str, kind: str):
        self.writer, self.name, self.kind = writer, name, kind

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype:
        """Of the numbers of the function."""
        return self.writer.dtype

    def constant(self, value: Any) -> Self:
        """The same type, all entries equal."""
        return type(self)(self.writer, self.writer.constant(self.kind, value), self.kind)

    def choice(self, condition: "Condition", other: Any) -> Self:
        """Itself where a condition holds, the other elsewhere."""
        both = f"{self.kind} {self.name}, {self.kind} {self._word(other)}"
        return self._put(f"select {condition.kind} {condition.name}, {both}")

    def _word(self, other: Any) -> str:
        return other.name if isinstance(other, Register) else self.writer.constant(self.kind, other)

    def _put(self, instruction: str) -> Self:
        return type(self)(self.writer, self.writer.put(self.kind, instruction), self.kind)

    def _operation(self, instruction: str, a: str, b: str) -> Self:
        return self._put(f"{instruction} {self.kind} {a}, {b}")

    def _compared(self, condition: str, other: Any) -> "Condition":
        kind = self.writer.mask if self.kind[0] == "<" else "i1"
        text = f"{condition} {self.kind} {self.name}, {self._word(other)}"
        return Condition(self.writer, self.writer.put(kind, text), kind)

    def _as(self, cls: Any, instruction: str, kind: str) -> Any:
        text = f"{instruction} {self.kind} {self.name} to {kind}"
        return cls(self.writer, self.writer.put(kind, text), kind)


class Number(Register):
    """A floating-point number, or a vector of them."""

    __slots__ = ()

    def __init__(self, writer: Writer, name: str, kind: str | None = None):
        super().__init__(writer, name, writer.vector if kind is None else kind)

    __add__ = _with("fadd")
    __radd__ = _after("fadd")
    __sub__ = _with("fsub")
    __rsub__ = _after("fsub")
    __mul__ = _with("fmul")
    __rmul__ = _after("fmul")
    __truediv__ = _with("fdiv")
    __rtruediv__ = _after("fdiv")

    def __neg__(self) -> "Number":
        return self._put(f"fneg {self.kind} {self.name}")

    def __abs__(self) -> "Number":
        return self.intrinsic("fabs")

    __lt__ = _compared("fcmp olt")
    __le__ = _compared("fcmp ole")
    __gt__ = _compared("fcmp ogt")
    __ge__ = _compared("fcmp oge")

    #: Whether both are equal; false for NaN.
    equals = _compared("fcmp oeq")
    #: Whether they are not equal; true for NaN.
    differs = _compared("fcmp une")

    def is_nan(self) -> "Condition":
        """Whether it is not a number."""
        return self._compared("fcmp uno", self)

    def is_finite(self) -> "Condition":
        """Whether it is neither infinite nor NaN."""
        return abs(self) < np.inf

    def intrinsic(self, name: str, *others: "Number | float") -> "Number":
        """A function that LLVM knows."""
        words = (self.name, *map(self._word, others))
        return Number(self.writer, self.writer.intrinsic(name, *words, kind=self.kind), self.kind)

    def fused(self, factor: "Number | float", summand: "Number | float") -> "Number":
        """`self factor + summand` with one rounding."""
        return self.intrinsic("fma", factor, summand)

    def joined(self, factor: "Number | float", summand: "Number | float") -> "Number":
        """`self factor + summand`, with one rounding where the processor does that at once."""
        return self.intrinsic("fmuladd", factor, summand)

    def signed_as(self, other: "Number") -> "Number":
        """With the sign of another."""
        w = self.writer
        if self.kind != w.vector or w.width > 1:
            return self.intrinsic("copysign", other)
        # LLVM's target for GPUs of AMD stops at vectors of one here.
        size, sign = (Number(w, w.entry(x, 0), w.scalar) for x in (self, other))
        return Number(w, w.with_entry("poison", size.intrinsic("copysign", sign), 0))

    def sign(self) -> "Number":
        """One or zero with its sign; NaN of NaN."""
        one, zero = (self.constant(x).signed_as(self) for x in (1.0, 0.0))
        # Subnormal numbers count as zero where the processor takes them so, as under XLA.
        return self.choice(self.is_nan(), zero.choice(self.equals(0.0), one))

    def single(self) -> "Number":
        """Rounded to single precision."""
        return self.resized("float").resized("double")

    def resized(self, scalar: str) -> "Number":
        """As a number of the other precision."""
        instruction = "fptrunc" if scalar == "float" else "fpext"
        other = "double" if scalar == "float" else "float"
        return self._as(Number, instruction, self.kind.replace(other, scalar))

    def polynomial(self, coefficients) -> "Number":
        """Horner's rule, highest power first; from four on even and odd powers side by side."""
        if len(coefficients) < 4:
            return self.horner(coefficients)
        square, count = self * self, len(coefficients)
        even, odd = (square.horner(coefficients[i % 2 :: 2]) for i in (count - 1, count))
        return odd.joined(self, even)

    def horner(self, coefficients) -> "Number":
        """Horner's rule, highest power first."""
        first, *rest = coefficients
        total = self.constant(first)
        for coefficient in rest:
            total = total.joined(self, coefficient)
        return total

    def as_integer(self) -> "Integer":
        """The integer that it is."""
        return self._as(Integer, "fptosi", "i64")

    def bits(self) -> "Integer":
        """Its bits."""
        kind = self.writer.integers if self.kind[0] == "<" else f"i{self.writer.bits}"
        return self._as(Integer, "bitcast", kind)


class Integer(Register):
    """An integer, or a vector of them; it wraps around."""

    __slots__ = ()

    def __init__(self, writer: Writer, name: str, kind: str = "i64"):
        super().__init__(writer, name, kind)

    __add__ = _with("add")
    __radd__ = _with("add")
    __sub__ = _with("sub")
    __mul__ = _with("mul")
    __floordiv__ = _with("sdiv")
    __mod__ = _with("srem")
    __and__ = _with("and")
    __or__ = _with("or")
    __xor__ = _with("xor")
    __lshift__ = _with("shl")
    __rshift__ = _with("lshr")
    __lt__ = _compared("icmp slt")
    __le__ = _compared("icmp sle")
    __gt__ = _compared("icmp sgt")
    __ge__ = _compared("icmp sge")

    #: Whether both are equal.
    equals = _compared("icmp eq")
    #: Whether they are not.
    differs = _compared("icmp ne")

    def number(self) -> Number:
        """Floating-point numbers of these bits."""
        w = self.writer
        return self._as(Number, "bitcast", w.vector if self.kind[0] == "<" else w.scalar)

    def as_number(self) -> Number:
        """Itself as a floating-point number."""
        return self._as(Number, "sitofp", self.writer.scalar)

    def resized(self, kind: str) -> "Integer":
        """Itself as another type, by its last bits or with zeros before the first."""
        if kind == self.kind:
            return self
        return self._as(Integer, "zext" if int(kind[1:]) > int(self.kind[1:]) else "trunc", kind)


class Condition(Register):
    """A boolean, or a vector of them."""

    __slots__ = ()

    def __init__(self, writer: Writer, name: str, kind: str | None = None):
        super().__init__(writer, name, writer.mask if kind is None else kind)

    __and__ = _with("and")
    __or__ = _with("or")
    __xor__ = _with("xor")

    def __invert__(self) -> "Condition":
        return self ^ True

    def equals(self, other: "Condition") -> "Condition":
        """Whether both or none hold."""
        return ~(self ^ other)

    def differs(self, other: "Condition") -> "Condition":
        """Whether one of them holds."""
        return self ^ other

    def as_integer(self) -> Integer:
        """One where it holds, else zero."""
        return self._as(Integer, "zext", "i64")

    def choose(self, yes: Any, no: Any) -> Any:
        """One value where it holds, the other elsewhere; numbers, if none is in a register."""
        if isinstance(yes, Register):
            return yes.choice(self, no)
        like = no if isinstance(no, Register) else Number(self.writer, "")
        return like.constant(yes).choice(self, no)

    def anywhere(self) -> "Condition":
        """Whether it holds in any entry."""
        width, argument = self.writer.width, f"{self.kind} {self.name}"
        name = f"llvm.vector.reduce.or.v{width}i1"
        return Condition(
            self.writer, self.writer.invoke("i1", name, argument, declared=self.kind), "i1"
        )


class Variable:
    """An integer in memory, with the value that it has where it is declared."""

    def __init__(self, writer: Writer, value: Integer | int):
        self._writer, self._place = writer, writer.room(1, "i64")
        self.set(value)

    def set(self, value: Integer | int) -> None:
        """Change it."""
        self._writer.store("i64", value, self._place)

    def get(self) -> Integer:
        """Its value now."""
        return Integer(self._writer, self._writer.load("i64", self._place))
