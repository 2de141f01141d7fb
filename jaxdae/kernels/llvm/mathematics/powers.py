"""Powers of vectors, through a binary logarithm of twice the precision; cubic roots."""

import numpy as np

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import (
    integral_scale,
    twofold_product,
    twofold_sum,
)
from jaxdae.kernels.llvm.mathematics.logarithmic import split
from jaxdae.kernels.llvm.registers import Condition, Number

# m^(-1/3) for sqrt(1/2) <= m <= sqrt(2), to 2^-11.9.
_INVERSE_ROOT = (
    -0.15853187441825867, 0.713324785232544, -1.2857253551483154, 1.7307108640670776,
)  # fmt: skip
# 2^(1/3).
_ROOT_OF_TWO = 1.2599210498948732


def pow(x: Number, y: Number) -> Number:
    """Power, with the special values of C (ISO/IEC 9899, F.10.4.4)."""
    size, negative = abs(x), x.bits() < 0
    logarithm, low = _log2(size)
    value = _exp2_of_product(y, logarithm, low)
    one = y.equals(0.0) | x.equals(1.0) | (size.equals(1.0) & abs(y).equals(np.inf))
    value = one.choose(1.0, value)
    integral, odd = _parity(y)
    value = (negative & odd).choose(-value, value)
    undefined = negative & (abs(logarithm) < np.inf) & ~integral
    return undefined.choose(np.nan, value)


def _parity(y: Number) -> tuple[Condition, Condition]:
    """Whether numbers are integers, and odd ones."""
    integral = y.intrinsic("floor").equals(y)
    half = y * 0.5
    return integral, integral & half.intrinsic("floor").differs(half)


def _log2(x: Number) -> tuple[Number, Number]:
    """Binary logarithm of numbers that are not negative, in two parts."""
    mantissa, exponent, _ = split(x)
    high, low = _log2_of_mantissa(mantissa)
    total, lost = twofold_sum(exponent, high)
    total = x.equals(0.0).choose(-np.inf, total)
    total = (x < np.inf).choose(total, x)
    return total, (abs(total) < np.inf).choose(lost + low, 0.0)


def _log2_of_mantissa(m: Number) -> tuple[Number, Number]:
    """`s (2 / ln(2) + z (2 / (3 ln(2)) + z P(z)))`, the first two terms in two parts."""
    p = precision(m.dtype)
    (first, first_low), (second, second_low) = p.twofold("2/ln(2)"), p.twofold("2/(3 ln(2))")
    s, s_low = _ratio(m)
    z, z_low = twofold_product(s, s)
    z_low = (s + s).fused(s_low, z_low)
    series = z.polynomial(p.log2)
    inner, lost = twofold_sum(m.constant(second), z * series)
    inner_low = z_low.fused(series, lost + second_low)
    product, product_low = twofold_product(z, inner)
    product_low = z.fused(inner_low, z_low.fused(inner, product_low))
    factor, factor_low = twofold_sum(m.constant(first), product)
    factor_low = factor_low + (product_low + first_low)
    value, value_low = twofold_product(s, factor)
    return value, s.fused(factor_low, s_low.fused(factor, value_low))


def _ratio(m: Number) -> tuple[Number, Number]:
    """`(m - 1) / (m + 1)` in two parts."""
    top = m - 1.0
    under, under_low = _sum_with_one(m)
    inverse = 1.0 / under
    ratio = top * inverse
    missing = ratio.fused(-under, top) - ratio * under_low
    return ratio, missing * inverse


def _sum_with_one(m: Number) -> tuple[Number, Number]:
    """`m + 1` and its rounding error, for `m` from 1/2 to 2."""
    total = m + 1.0
    return total, m - (total - 1.0)


def _exp2_of_product(y: Number, high: Number, low: Number) -> Number:
    """`2^(y (high + low))`, infinite or zero where that is so large."""
    p = precision(y.dtype)
    limit = 1.5 * p.largest_power
    power, power_low = twofold_product(y, high)
    inside = abs(power) < limit
    power_low = inside.choose(y.fused(low, power_low), 0.0)
    power = (power > limit).choose(limit, power)
    power = (power < -limit).choose(-limit, power)
    moved = power + p.magic
    count = moved - p.magic
    rest = (power - count) + power_low
    value = rest.fused(rest.polynomial(p.exp2), 1.0)
    return integral_scale(value, moved.bits() - (p.bits_of(p.magic) - 2 * p.bias))


def cbrt(x: Number) -> Number:
    """Cubic root: the inverse one by iteration of third order, and a last correction."""
    p = precision(x.dtype)
    mantissa, exponent, _ = split(abs(x))
    moved = exponent.fused(1 / 3, p.magic)
    third = moved - p.magic
    over = third.fused(-3.0, exponent)
    more, less = over > 0.5, over < -0.5
    inverse = mantissa.polynomial(_INVERSE_ROOT)
    inverse = more.choose(inverse * (1 / _ROOT_OF_TWO), inverse)
    inverse = less.choose(inverse * _ROOT_OF_TWO, inverse)
    cube = more.choose(mantissa * 2.0, less.choose(mantissa * 0.5, mantissa))
    for _ in range(2 if p.bits == 64 else 1):
        error = (-(cube * inverse) * inverse).fused(inverse, 1.0)
        inverse = inverse.fused(error * error.fused(2 / 9, 1 / 3), inverse)
    square = inverse * inverse
    root = cube * square
    high, low = twofold_product(root, root)
    missing = (-high).fused(root, cube) - low * root
    root = (missing * square).fused(1 / 3, root)
    scale = ((moved.bits() - (p.bits_of(p.magic) - p.bias)) << p.mantissa).number()
    value = x.equals(0.0).choose(0.0, root * scale).signed_as(x)
    return (abs(x) < np.inf).choose(value, x)
