"""Logarithms and inverse hyperbolic functions of vectors.

`x = 2^e m`; the logarithm of `m` is a series in `s = (m - 1) / (m + 1)`.
"""

import numpy as np

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import (
    same_if_small,
    twofold_product,
    twofold_root,
    twofold_sum,
    twofold_sum_of_any,
)
from jaxdae.kernels.llvm.registers import Integer, Number


def split(x: Number) -> tuple[Number, Number, Integer]:
    """Mantissa from sqrt(1/2) to sqrt(2), exponent, and its bits with the bias of exponents.

    Subnormal numbers count as those of the next exponents; other than positive finite ones give
    nothing of use.
    """
    p = precision(x.dtype)
    shift = p.mantissa + 2
    tiny = x < p.tiny
    bits = tiny.choose(x * 2.0**shift, x).bits()
    # The bits of sqrt(1/2) are taken as those of a half, whose exponent is counted one higher.
    one = p.bias << p.mantissa
    root = p.bits_of(np.sqrt(0.5))
    moved = bits + (one - root)
    biased = moved >> p.mantissa
    mantissa = (bits - ((biased << p.mantissa) - one)).number()
    exponent = (biased + p.bits_of(p.magic)).number() - (p.magic + p.bias)
    return mantissa, tiny.choose(exponent - float(shift), exponent), biased


def _of_mantissa(f: Number, exponent: Number) -> Number:
    """`log(1 + f) + e ln(2)` for `f` from sqrt(1/2) - 1 to sqrt(2) - 1."""
    p = precision(f.dtype)
    s = f / (f + 2.0)
    z = s * s
    series = z * z.polynomial(p.log)
    half = (f * 0.5) * f
    inner = half - s.fused(half + series, exponent * p.ln_2[1])
    return exponent.fused(p.ln_2[0], f - inner)


def _with_limits(x: Number, value: Number) -> Number:
    """The logarithm where it is none of a positive finite number."""
    value = (x < np.inf).choose(value, x)
    value = x.equals(0.0).choose(-np.inf, value)
    return (x < 0.0).choose(np.nan, value)


def log(x: Number) -> Number:
    """Natural logarithm."""
    mantissa, exponent, _ = split(x)
    return _with_limits(x, _of_mantissa(mantissa - 1.0, exponent))


def _of_sum(x: Number, more: Number, doublings: Number | None = None) -> Number:
    """`log((x + more) 2^doublings)` for `|more|` below a unit in the last place of `x`."""
    p = precision(x.dtype)
    mantissa, exponent, biased = split(x)
    scale = (_mirrored(biased, 2 * p.bias) << p.mantissa).number()
    # Beside a large number it is nothing, and the scale may not be a number.
    scale = (x < p.large_square).choose(scale, 0.0)
    exponent = exponent if doublings is None else exponent + doublings
    value = _of_mantissa(more.fused(scale, mantissa - 1.0), exponent)
    return _with_limits(x, value)


def _mirrored(biased: Integer, twice: int) -> Integer:
    """The biased exponent of the inverse."""
    return (biased ^ -1) + (twice + 1)


def log1p(x: Number) -> Number:
    """Logarithm of one and more."""
    total, lost = twofold_sum_of_any(x, x.constant(1.0))
    return same_if_small(x, _of_sum(total, lost))


def asinh(x: Number) -> Number:
    """`log(|x| + sqrt(x^2 + 1))`."""
    p, size = precision(x.dtype), abs(x)
    square, low = twofold_product(size, size)
    square, lost = twofold_sum_of_any(square, x.constant(1.0))
    root, root_low = twofold_root(square, lost + low)
    value = _of_large_sum(size, root, size, root_low)
    # The next term of its series is x^3 / 6.
    return same_if_small(x, value.signed_as(x), np.sqrt(p.negligible))


def acosh(x: Number) -> Number:
    """`log(x + sqrt(x^2 - 1))`."""
    square, low = twofold_product(x, x)
    square, lost = twofold_sum_of_any(square, x.constant(-1.0))
    root, root_low = twofold_root(square, lost + low)
    return (x >= 1.0).choose(_of_large_sum(x, x, root, root_low), np.nan)


def _of_large_sum(x: Number, more: Number, less: Number, low: Number) -> Number:
    """`log(more + less + low)`, which is `log(2 x)` where the square of `x` is too large."""
    large = x > precision(x.dtype).large_square
    total, lost = twofold_sum(more, less)
    total, lost = large.choose(x, total), large.choose(0.0, lost + low)
    return _of_sum(total, lost, large.choose(1.0, x.constant(0.0)))


def atanh(x: Number) -> Number:
    """`log((1 + |x|) / (1 - |x|)) / 2`."""
    p, size = precision(x.dtype), abs(x)
    one = x.constant(1.0)
    top, top_low = twofold_sum_of_any(one, size)
    under, under_low = twofold_sum_of_any(one, -size)
    inverse = 1.0 / under
    ratio = top * inverse
    missing = ratio.fused(-under, top) + (-ratio).fused(under_low, top_low)
    value = (size <= 1.0).choose(_of_sum(ratio, missing * inverse) * 0.5, np.nan)
    # The next term of its series is x^3 / 3.
    return same_if_small(x, value.signed_as(x), np.sqrt(p.negligible) / 2)
