"""Sines, cosines and tangents of floating-point numbers of any size, in integers."""

from fractions import Fraction
from functools import cache
from math import isqrt

# Bits behind the point of an angle: as many as the largest has before it, and more than it has.
_BITS = 1024 + 256
# Bits of sines and cosines: small ones keep four times as many as a number has.
_DIGITS = 320


@cache
def half_pi() -> int:
    """pi / 2 in so many bits, by the iteration of Gauss, Brent and Salamin."""
    one = 1 << (_BITS + 64)
    a, b, t, p = one, isqrt(one * one // 2), one // 4, 1
    while abs(a - b) > 1:
        mean = (a + b) // 2
        t -= p * (a - mean) ** 2 // one
        a, b, p = mean, isqrt(a * b), 2 * p
    return (a + b) ** 2 // (8 * t) >> 64


def reduced(x: float) -> tuple[int, Fraction]:
    """Quarter turns of an angle, and what it is beyond them."""
    numerator, denominator = x.as_integer_ratio()
    scaled = Fraction(numerator << _BITS, denominator)
    turns = round(scaled / half_pi())
    return turns, (scaled - turns * half_pi()) / (1 << _BITS)


@cache
def sine_and_cosine(x: float) -> tuple[Fraction, Fraction]:
    """Both of an angle, by their series."""
    turns, rest = reduced(x)
    one = 1 << _DIGITS
    r, sums, term, k = round(rest * one), [0, 0], one, 0
    while term:
        sums[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = term * r // (one * k)
    cosine, sine = (Fraction(total, one) for total in sums)
    for _ in range(turns % 4):
        sine, cosine = cosine, -sine
    return sine, cosine


def tangent(x: float) -> Fraction:
    """Of an angle."""
    return Fraction(*sine_and_cosine(x))
