"""Double-length arithmetic: numbers as sums of two, of which the second is a rounding error."""

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.registers import Integer, Number


def twofold_sum(large: Number, small: Number) -> tuple[Number, Number]:
    """Sum and its rounding error, for `|large| >= |small|` [Dekker1971]."""
    total = large + small
    return total, (large - total) + small


def twofold_sum_of_any(a: Number, b: Number) -> tuple[Number, Number]:
    """Sum and its rounding error [Knuth1969]."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def twofold_product(a: Number, b: Number) -> tuple[Number, Number]:
    """Product and its rounding error."""
    product = a * b
    return product, a.fused(b, -product)


def twofold_quotient(top: Number, top_low: Number, under: Number, under_low: Number) -> Number:
    """Quotient of numbers in two parts, rounded once but for a small part of a unit."""
    inverse = 1.0 / under
    value = top * inverse
    missing = value.fused(-under, top) + (-value).fused(under_low, top_low)
    return missing.fused(inverse, value)


def twofold_root(x: Number, low: Number) -> tuple[Number, Number]:
    """Square root of a number in two parts."""
    root = x.intrinsic("sqrt")
    missing = (-root).fused(root, x) + low
    # Of zero nothing is missing.
    return root, missing * (0.5 / (root + precision(x.dtype).tiny))


def same_if_small(x: Number, value: Number, limit: float | None = None) -> Number:
    """The argument itself where a function equals it, with the sign of its zero."""
    limit = precision(x.dtype).negligible if limit is None else limit
    return (abs(x) < limit).choose(x, value)


def integral_scale(value: Number, biased: Integer) -> Number:
    """A value of size one times a power of two that need not itself be a number of the type.

    The power is given plus twice the bias of exponents.
    """
    mantissa, half = precision(value.dtype).mantissa, biased >> 1
    for part in (half, biased - half):
        value = value * (part << mantissa).number()
    return value
