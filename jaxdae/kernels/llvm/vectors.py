"""Vectors of a function being written, with the signs of arithmetic.

Each operation is one instruction with one rounding; products and sums are never joined unless
`fused` says so, because the error terms of double-length arithmetic rest on that.
"""

from typing import Union

import numpy as np

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.writer import Writer

Number = Union["Vector", float]


class Vector:
    """A vector of floating-point numbers.

    Args:
        writer: what its instructions are written to.
        register: where it is.
    """

    def __init__(self, writer: Writer, register: str):
        self.writer, self.register = writer, register

    def constant(self, value: float) -> "Vector":
        """All entries alike."""
        return Vector(self.writer, self.writer.number(value))

    def __add__(self, other: Number) -> "Vector":
        return self._arithmetic("fadd", self, other)

    def __radd__(self, other: Number) -> "Vector":
        return self._arithmetic("fadd", other, self)

    def __sub__(self, other: Number) -> "Vector":
        return self._arithmetic("fsub", self, other)

    def __rsub__(self, other: Number) -> "Vector":
        return self._arithmetic("fsub", other, self)

    def __mul__(self, other: Number) -> "Vector":
        return self._arithmetic("fmul", self, other)

    def __rmul__(self, other: Number) -> "Vector":
        return self._arithmetic("fmul", other, self)

    def __truediv__(self, other: Number) -> "Vector":
        return self._arithmetic("fdiv", self, other)

    def __rtruediv__(self, other: Number) -> "Vector":
        return self._arithmetic("fdiv", other, self)

    def __neg__(self) -> "Vector":
        return self._put(f"fneg {self.writer.vector} {self.register}")

    def __abs__(self) -> "Vector":
        return self.intrinsic("fabs")

    def __lt__(self, other: Number) -> "Truths":
        return self._compared("olt", other)

    def __le__(self, other: Number) -> "Truths":
        return self._compared("ole", other)

    def __gt__(self, other: Number) -> "Truths":
        return self._compared("ogt", other)

    def __ge__(self, other: Number) -> "Truths":
        return self._compared("oge", other)

    def equals(self, other: Number) -> "Truths":
        """Whether both are equal; false for NaN."""
        return self._compared("oeq", other)

    def differs(self, other: Number) -> "Truths":
        """Whether they are not equal; true for NaN."""
        return self._compared("une", other)

    def fused(self, factor: Number, summand: Number) -> "Vector":
        """`self factor + summand` with one rounding."""
        return self.intrinsic("fma", factor, summand)

    def intrinsic(self, name: str, *others: Number) -> "Vector":
        """A function that LLVM knows."""
        registers = [self._lifted(x).register for x in (self, *others)]
        return Vector(self.writer, self.writer.intrinsic(name, *registers))

    def signed_as(self, other: "Vector") -> "Vector":
        """With the sign of another."""
        return self.intrinsic("copysign", other)

    def polynomial(self, coefficients) -> "Vector":
        """Horner's rule, highest power first; from four on even and odd powers side by side."""
        if len(coefficients) < 4:
            return self.horner(coefficients)
        square, count = (self * self).register, len(coefficients)
        even, odd = (
            Vector(self.writer, self.writer.polynomial(square, coefficients[i % 2 :: 2]))
            for i in (count - 1, count)
        )
        return odd.fused(self, even)

    def horner(self, coefficients) -> "Vector":
        """Horner's rule, highest power first."""
        return Vector(self.writer, self.writer.polynomial(self.register, coefficients))

    def bits(self) -> "Wholes":
        """Its bits."""
        return Wholes(self.writer, self.writer.to_bits(self.register))

    def _lifted(self, other: Number) -> "Vector":
        return other if isinstance(other, Vector) else self.constant(other)

    def _put(self, text: str) -> "Vector":
        return Vector(self.writer, self.writer.put(text))

    def _arithmetic(self, instruction: str, a: Number, b: Number) -> "Vector":
        a, b = self._lifted(a), self._lifted(b)
        return self._put(f"{instruction} {self.writer.vector} {a.register}, {b.register}")

    def _compared(self, condition: str, other: Number) -> "Truths":
        other = self._lifted(other)
        return Truths(self.writer, self.writer.compare(condition, self.register, other.register))


class Wholes:
    """A vector of integers as wide as the floating-point numbers; it wraps around."""

    def __init__(self, writer: Writer, register: str):
        self.writer, self.register = writer, register

    def __add__(self, other: "Wholes | int") -> "Wholes":
        return self._put("add", other)

    def __sub__(self, other: "Wholes | int") -> "Wholes":
        return self._put("sub", other)

    def __and__(self, other: "Wholes | int") -> "Wholes":
        return self._put("and", other)

    def __xor__(self, other: "Wholes | int") -> "Wholes":
        return self._put("xor", other)

    def __lshift__(self, places: int) -> "Wholes":
        return self._put("shl", places)

    def __rshift__(self, places: int) -> "Wholes":
        return self._put("lshr", places)

    def number(self) -> Vector:
        """Floating-point numbers of these bits."""
        return Vector(self.writer, self.writer.from_bits(self.register))

    def is_zero(self) -> "Truths":
        """Whether no bit is set."""
        kind = self.writer.integer_vector
        return Truths(self.writer, self.writer.put(f"icmp eq {kind} {self.register}, {ZEROS}"))

    def is_negative(self) -> "Truths":
        """Whether the highest bit is set, which is the sign of a floating-point number."""
        kind = self.writer.integer_vector
        return Truths(self.writer, self.writer.put(f"icmp slt {kind} {self.register}, {ZEROS}"))

    def _put(self, instruction: str, other: "Wholes | int") -> "Wholes":
        second = self.writer.integer(other) if isinstance(other, int) else other.register
        return Wholes(self.writer, self.writer.on_wholes(instruction, self.register, second))


class Truths:
    """A vector of truth values."""

    def __init__(self, writer: Writer, register: str):
        self.writer, self.register = writer, register

    def __and__(self, other: "Truths") -> "Truths":
        return self._put("and", other.register)

    def __or__(self, other: "Truths") -> "Truths":
        return self._put("or", other.register)

    def __invert__(self) -> "Truths":
        return self._put("xor", self.writer.splat("i1", "true"))

    def choose(self, yes: Number, no: Number) -> Vector:
        """One number where it holds, the other elsewhere."""
        given = [x.register if isinstance(x, Vector) else self.writer.number(x) for x in (yes, no)]
        return Vector(self.writer, self.writer.select(self.register, *given))

    def anywhere(self) -> str:
        """Register of the one truth value whether it holds in any entry."""
        return self.writer.anywhere(self.register)

    def _put(self, instruction: str, other: str) -> "Truths":
        return Truths(self.writer, self.writer.logical(instruction, self.register, other))


ZEROS = "zeroinitializer"


def twofold_sum(large: Vector, small: Vector) -> tuple[Vector, Vector]:
    """Sum and its rounding error, for `|large| >= |small|` [Dekker1971]."""
    total = large + small
    return total, (large - total) + small


def twofold_sum_of_any(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Sum and its rounding error [Knuth1969]."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def twofold_product(a: Vector, b: Vector) -> tuple[Vector, Vector]:
    """Product and its rounding error."""
    product = a * b
    return product, a.fused(b, -product)


def twofold_quotient(top: Vector, top_low: Vector, under: Vector, under_low: Vector) -> Vector:
    """Quotient of numbers in two parts, rounded once but for a small part of a unit."""
    inverse = 1.0 / under
    value = top * inverse
    missing = value.fused(-under, top) + (-value).fused(under_low, top_low)
    return missing.fused(inverse, value)


def twofold_root(x: Vector, low: Vector) -> tuple[Vector, Vector]:
    """Square root of a number in two parts."""
    root = x.intrinsic("sqrt")
    missing = (-root).fused(root, x) + low
    # Of zero nothing is missing.
    return root, missing * (0.5 / (root + precision(x.writer.dtype).tiny))


def same_if_small(x: Vector, value: Vector, limit: float | None = None) -> Vector:
    """The argument itself where a function equals it, with the sign of its zero."""
    limit = precision(x.writer.dtype).negligible if limit is None else limit
    return (abs(x) < limit).choose(x, value)


def integral_scale(value: Vector, biased: Wholes, mantissa: int) -> Vector:
    """A value times a power of two that need not itself be a number of the type.

    Args:
        value: of size one.
        biased: the power plus twice the bias of exponents.
        mantissa: bits of the mantissa.
    """
    half = biased >> 1
    for part in (half, biased - half):
        value = value * (part << mantissa).number()
    return value


def is_double(writer: Writer) -> bool:
    """Whether numbers have double precision."""
    return writer.dtype == np.float64
