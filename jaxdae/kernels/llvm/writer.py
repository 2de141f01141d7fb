"""Text of LLVM's intermediate language for vectors of one width and precision."""

import struct

import numpy as np


class Writer:
    """Instructions of one function, on vectors `<width x type>`.

    Args:
        width: entries of a vector.
        dtype: float64 or float32.
    """

    def __init__(self, width: int, dtype):
        self.width, self.dtype = width, np.dtype(dtype)
        double = self.dtype == np.float64
        self.scalar, self.integer_type = ("double", "i64") if double else ("float", "i32")
        self.bits = 64 if double else 32
        self.vector = f"<{width} x {self.scalar}>"
        self.integer_vector = f"<{width} x {self.integer_type}>"
        self.mask = f"<{width} x i1>"
        self.suffix = f"v{width}f{self.bits}"
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._count = 0

    def name(self) -> str:
        """A new register."""
        self._count += 1
        return f"%r{self._count}"

    def put(self, text: str) -> str:
        """An instruction whose result gets a new register."""
        register = self.name()
        self.lines.append(f"  {register} = {text}")
        return register

    def line(self, text: str) -> None:
        """An instruction without a result, or a label."""
        self.lines.append(text)

    def number(self, value: float) -> str:
        """A constant of the precision, all entries alike."""
        return self.splat(self.scalar, self.literal(value))

    def literal(self, value: float) -> str:
        """One constant, by its bits."""
        # LLVM writes constants of single precision by the bits of the double of the same value.
        rounded = float(self.dtype.type(value))
        return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"

    def splat(self, kind: str, text: str) -> str:
        """A constant vector of equal entries."""
        return f"<{', '.join([f'{kind} {text}'] * self.width)}>"

    def integer(self, value: int) -> str:
        """A constant integer of the width of the precision."""
        return self.splat(self.integer_type, str(value))

    def binary(self, instruction: str, a: str, b: str) -> str:
        """An arithmetic instruction."""
        return self.put(f"{instruction} {self.vector} {a}, {b}")

    def negative(self, a: str) -> str:
        """With the other sign."""
        return self.put(f"fneg {self.vector} {a}")

    def intrinsic(self, name: str, *arguments: str) -> str:
        """A function that LLVM knows."""
        types = ", ".join([self.vector] * len(arguments))
        self.declared.add(f"declare {self.vector} @llvm.{name}.{self.suffix}({types})")
        given = ", ".join(f"{self.vector} {x}" for x in arguments)
        return self.put(f"call {self.vector} @llvm.{name}.{self.suffix}({given})")

    def fused(self, a: str, b: str, c: str) -> str:
        """`a b + c` with one rounding."""
        return self.intrinsic("fma", a, b, c)

    def product_and_sum(self, a: str, b: str, c: str) -> str:
        """`a b + c`, with one rounding where the processor has an instruction for it."""
        return self.intrinsic("fmuladd", a, b, c)

    def compare(self, condition: str, a: str, b: str) -> str:
        """Truth values of a comparison, for example `olt`."""
        return self.put(f"fcmp {condition} {self.vector} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """Entries of `a` where the condition holds, else of `b`."""
        return self.put(f"select {self.mask} {condition}, {self.vector} {a}, {self.vector} {b}")

    def choose_truth(self, condition: str, a: str, b: str) -> str:
        """The same of truth values."""
        return self.put(f"select {self.mask} {condition}, {self.mask} {a}, {self.mask} {b}")

    def logical(self, instruction: str, a: str, b: str) -> str:
        """`and`, `or`, `xor` of truth values."""
        return self.put(f"{instruction} {self.mask} {a}, {b}")

    def anywhere(self, a: str) -> str:
        """The one truth value whether any of several holds."""
        name = f"@llvm.vector.reduce.or.v{self.width}i1"
        self.declared.add(f"declare i1 {name}({self.mask})")
        return self.put(f"call i1 {name}({self.mask} {a})")

    def on_wholes(self, instruction: str, a: str, b: str) -> str:
        """An instruction on integers of the width of the precision."""
        return self.put(f"{instruction} {self.integer_vector} {a}, {b}")

    def to_bits(self, a: str) -> str:
        """The bits of floating-point numbers."""
        return self.put(f"bitcast {self.vector} {a} to {self.integer_vector}")

    def from_bits(self, a: str) -> str:
        """Floating-point numbers of given bits."""
        return self.put(f"bitcast {self.integer_vector} {a} to {self.vector}")

    def polynomial(self, x: str, coefficients) -> str:
        """Horner's rule, highest power first."""
        first, *rest = coefficients
        total = self.number(first)
        for coefficient in rest:
            total = self.fused(total, x, self.number(coefficient))
        return total

    def entry(self, a: str, i: int) -> str:
        """One entry of a vector."""
        return self.put(f"extractelement {self.vector} {a}, i32 {i}")

    def with_entry(self, a: str, value: str, i: int) -> str:
        """A vector with another entry."""
        return self.put(f"insertelement {self.vector} {a}, {self.scalar} {value}, i32 {i}")

    def room(self, size: int) -> str:
        """Memory for numbers of all lanes."""
        return self.put(f"alloca {self.vector}, i64 {max(size, 1)}, align 64")

    def copy(self, source: str, target: str, count: int) -> None:
        """Copy numbers of all lanes."""
        size = count * self.width * self.bits // 8
        self.declared.add("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        self.line(
            f"  call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size}, i1 false)"
        )

    def repeated(self, value: str) -> str:
        """A vector whose entries are all one number."""
        one = self.with_entry("poison", value, 0)
        zeros = f"<{self.width} x i32> zeroinitializer"
        return self.put(f"shufflevector {self.vector} {one}, {self.vector} poison, {zeros}")
