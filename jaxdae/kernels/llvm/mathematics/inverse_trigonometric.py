"""Arcus functions of vectors, all of them angles of points in the plane.

The ratio of the shorter to the longer coordinate is turned by atan(1/2) or atan(1) where it is
large, and one polynomial does the rest (the breakpoints are those of [SunMicrosystems1993]).
"""

import numpy as np

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import twofold_product, twofold_root, twofold_sum
from jaxdae.kernels.llvm.registers import Condition, Number

# Ratios from which it is turned.
_TO_HALF, _TO_ONE = 7 / 16, 11 / 16


def atan2(y: Number, x: Number) -> Number:
    """Angle of a point from the first axis, from -pi to pi, with the signs of zeros."""
    angle = _angle(abs(y), abs(x), x.bits() < 0)
    return angle.signed_as(y)


def atan(x: Number) -> Number:
    """Arcus tangent."""
    return _angle(abs(x), x.constant(1.0), None).signed_as(x)


def asin(x: Number) -> Number:
    """Arcus sine: the angle whose cosine is `sqrt(1 - x^2)`."""
    size = abs(x)
    cosine, lost = _leg(size)
    return _angle(size, cosine, None, -(size * lost)).signed_as(x)


def acos(x: Number) -> Number:
    """Arcus cosine: the angle whose sine is `sqrt(1 - x^2)`."""
    sine, lost = _leg(abs(x))
    return _angle(sine, abs(x), x.bits() < 0, x * lost)


def _leg(x: Number) -> tuple[Number, Number]:
    """`sqrt(1 - x^2)` in two parts, NaN beyond one."""
    square, low = twofold_product(x, x)
    rest, lost = twofold_sum(x.constant(1.0), -square)
    return twofold_root(rest, lost - low)


def _angle(y: Number, x: Number, behind: Condition | None, more: Number | None = None) -> Number:
    """Angle of a point of the first quadrant, or of its mirror image `-x` where it is behind.

    What is known to be missing in it may be given.
    """
    steep = y > x
    short, long = _safe(steep.choose(x, y), steep.choose(y, x))
    offset, offset_low, ratio = _turned(short, long)
    square = ratio * ratio
    cubic = (ratio * square) * square.polynomial(precision(x.dtype).atan)
    # From here on `s (offset + atan(ratio))` is added to 0, pi / 2 or pi, s = 1 or -1.
    start, start_low, opposite = _start(x, steep, behind)
    flipped = [_flipped(part, opposite) for part in (offset, offset_low, ratio, cubic)]
    total = start + flipped[0]
    lost = (start - total) + flipped[0]
    low = (flipped[1] + start_low) + lost
    return total + (flipped[2] + (flipped[3] + (low if more is None else low + more)))


def _safe(short: Number, long: Number) -> tuple[Number, Number]:
    """The same ratio without overflow; of two infinite coordinates one, of two zeros zero."""
    p = precision(short.dtype)
    both = short.equals(np.inf) & long.equals(np.inf)
    short, long = both.choose(1.0, short), both.choose(1.0, long)
    # Nor may differences of small ones be taken for zero.
    scale = (long < 1 / p.large_square).choose(p.large_square, 1.0)
    scale = (long > p.large_square).choose(1 / 16, scale)
    short, long = short * scale, long * scale
    return short, long.equals(0.0).choose(1.0, long)


def _turned(short: Number, long: Number) -> tuple[Number, Number, Number]:
    """An angle in two parts, and the tangent of what it lacks."""
    p = precision(short.dtype)
    some, most = short > long * _TO_HALF, short > long * _TO_ONE
    (half, half_low), (one, one_low) = p.twofold("atan(1/2)"), p.twofold("pi/4")
    offset = most.choose(one, some.choose(half, short.constant(0.0)))
    offset_low = most.choose(one_low, some.choose(half_low, short.constant(0.0)))
    # Tangent of a difference, times two where it is turned by atan(1/2): the top is exact.
    scale = (some & ~most).choose(2.0, short.constant(1.0))
    top = scale.fused(short, -some.choose(long, 0.0))
    under = scale.fused(long, some.choose(short, 0.0))
    return offset, offset_low, top / under


def _start(
    x: Number, steep: Condition, behind: Condition | None
) -> tuple[Number, Number, Condition]:
    """The multiple of pi / 2 next to a point, in two parts, and whether its angle is less."""
    p = precision(x.dtype)
    (half, half_low), (flat, flat_low) = p.twofold("pi/2"), p.twofold("pi")
    zero = x.constant(0.0)
    if behind is None:
        return steep.choose(half, zero), steep.choose(half_low, zero), steep
    start = steep.choose(half, behind.choose(flat, zero))
    start_low = steep.choose(half_low, behind.choose(flat_low, zero))
    return start, start_low, (steep & ~behind) | (behind & ~steep)


def _flipped(value: Number, opposite: Condition) -> Number:
    return opposite.choose(-value, value)
