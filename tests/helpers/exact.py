"""Floating-point arithmetic by fractions: every operation exact, then one rounding to nearest."""

import math
from fractions import Fraction
from typing import Any

import numpy as np

# Bits of the mantissa with the leading one, and the exponents of the least and largest powers.
_FORMATS = {np.float32: (24, -126, 127), np.float64: (53, -1022, 1023)}


def nearest(x: Fraction, dtype: Any) -> float:
    """The nearest number of a type, of two the even one; infinity beyond the largest."""
    precision, least, largest = _FORMATS[dtype]
    if not x:
        return 0.0
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    result = round(x / unit) * unit
    if abs(result) >= 2 ** (largest + 1):
        return math.inf if x > 0 else -math.inf
    return float(result)


def root(x: Fraction, dtype: Any) -> float:
    """The nearest number to a square root, which is no tie unless it is exact."""
    scale = 2**1300
    whole = math.isqrt(x.numerator * scale**2 // x.denominator)
    sticky = whole**2 * x.denominator != x.numerator * scale**2
    return nearest(Fraction(2 * whole + sticky, 2 * scale), dtype)
