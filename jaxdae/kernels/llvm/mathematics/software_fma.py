"""Products and sums with one rounding, for processors that have no instruction for it."""

import re
from collections.abc import Iterable

import numpy as np

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import twofold_sum_of_any
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Number
from jaxdae.kernels.llvm.writer import Writer

_INTRINSIC = "llvm.fma."
_CALLED = re.compile(re.escape(f"@{_INTRINSIC}") + r"(v(\d+))?f(32|64)\b")


def without_fma(definitions: Iterable[Definition]) -> list[Definition]:
    """The same functions for a processor without fused multiplication and addition.

    LLVM would call the C library there.

    Args:
        definitions: functions, which may call `llvm.fma`.

    Returns:
        Functions that call others of their module instead, and those. Their error is hardly more
        than one rounding, and they are exact where that would be.
    """
    each, made = list(definitions), {}
    for one in each:
        for match in _CALLED.finditer(one.text):
            made.setdefault(match[0], (match[2], match[3]))
    return [*map(_replaced, each), *(_fused(name, *kind) for name, kind in made.items())]


def _name(intrinsic: str) -> str:
    return intrinsic.replace(_INTRINSIC, "fused_")


def _replaced(one: Definition) -> Definition:
    declared = frozenset(x for x in one.declared if _INTRINSIC not in x)
    return one._replace(text=_name(one.text), declared=declared)


def _fused(intrinsic: str, width: str | None, bits: str) -> Definition:
    """The function that takes the place of one of LLVM's."""
    dtype = np.dtype(f"f{int(bits) // 8}")
    w = Writer(int(width or 1), dtype)
    kind = w.vector if width else w.scalar
    a, b, c = (Number(w, f"%{x}", kind) for x in "abc")
    result = _in_double(a, b, c) if bits == "32" else _by_parts(a, b, c)
    parameters = ", ".join(f"{kind} %{x}" for x in "abc")
    return w.define(_name(intrinsic[1:]), parameters, kind, result, "nounwind ")


def _in_double(a: Number, b: Number, c: Number) -> Number:
    """Single precision: the product is exact."""
    a, b, c = (x.resized("double") for x in (a, b, c))
    return (a * b + c).resized("float")


def _by_parts(a: Number, b: Number, c: Number) -> Number:
    """Double precision, with the error terms of the product [Dekker1971] and of the sum."""
    product = a * b
    (first, rest), (other, more) = _halves(a), _halves(b)
    error = ((first * other - product) + first * more + rest * other) + rest * more
    total, lost = twofold_sum_of_any(product, c)
    missing = lost + error
    # Nothing is missing of infinities; and the sum of zeros has its sign already.
    return (abs(missing) > 0.0).choose(total + missing, total)


def _halves(x: Number) -> tuple[Number, Number]:
    """Two numbers whose sum is a number, each with half of its bits."""
    last = (precision(x.dtype).mantissa + 2) // 2
    rounded = (x.bits() + (1 << last - 1)) & -(1 << last)
    half = rounded.number()
    return half, x - half
