"""Sine, cosine and tangent of vectors.

The argument less the nearest multiple of pi / 2, which is taken away in three parts
[CodyWaite1980], goes into polynomials. Larger arguments are rare; functions of their own see to
them one by one.
"""

import math

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import (
    same_if_small,
    twofold_product,
    twofold_quotient,
    twofold_sum,
    twofold_sum_of_any,
)
from jaxdae.kernels.llvm.mathematics.large_angles import reduced
from jaxdae.kernels.llvm.registers import Integer, Number


def _turns(x: Number) -> tuple[Number, Integer]:
    """Quarter turns, and bits that end in their number."""
    p = precision(x.dtype)
    turned = x.fused(2 / math.pi, p.magic)
    return turned - p.magic, turned.bits()


def _rest(x: Number, turns: Number) -> Number:
    for part in precision(x.dtype).half_pi:
        # The first difference is exact, and for minus zero all are.
        x = turns.fused(-part, x)
    return x


def _sine(rest: Number, square: Number) -> Number:
    series = square.polynomial(precision(rest.dtype).sin)
    # The sum has lost the sign of zero.
    return (rest * square).fused(series, rest).signed_as(rest)


def _cosine(square: Number) -> Number:
    series = square.polynomial(precision(square.dtype).cos)
    return square.fused(square.fused(series, -0.5), 1.0)


def _signed(value: Number, turns: Integer) -> Number:
    """With the opposite sign where the second bit of the turns is set."""
    bits = precision(value.dtype).bits
    sign = (turns << (bits - 2)) & -(1 << (bits - 1))
    return (value.bits() ^ sign).number()


def sincos(x: Number) -> tuple[Number, Number]:
    """Sine and cosine of angles that are not large."""
    turns, last = _turns(x)
    return _both(_rest(x, turns), last)


def large_sincos(x: Number) -> tuple[Number, Number]:
    """Sine and cosine of one large angle, which is no vector."""
    rest, _, last = reduced(x)
    return _both(rest, last)


def _both(rest: Number, last: Integer) -> tuple[Number, Number]:
    """Sine and cosine of the rest of an angle, by the bits that end in its quarter turns."""
    square = rest * rest
    sine, cosine = _sine(rest, square), _cosine(square)
    even = (last & 1).equals(0)
    return _signed(even.choose(sine, cosine), last), _signed(even.choose(cosine, sine), last + 1)


def sin(x: Number) -> Number:
    """The first of both."""
    return sincos(x)[0]


def cos(x: Number) -> Number:
    """The second of both."""
    return sincos(x)[1]


def large_sin(x: Number) -> Number:
    """The first of both for one large angle."""
    return large_sincos(x)[0]


def large_cos(x: Number) -> Number:
    """The second of both for one large angle."""
    return large_sincos(x)[1]


def tan(x: Number) -> Number:
    """Tangent of angles that are not large: the quotient of both, each in two parts."""
    turns, last = _turns(x)
    return same_if_small(x, _tangent(*_twofold_rest(x, turns), last))


def large_tan(x: Number) -> Number:
    """Tangent of one large angle, which is no vector."""
    return _tangent(*reduced(x))


def _tangent(rest: Number, lost: Number, last: Integer) -> Number:
    """Tangent of the rest of an angle in two parts, by the bits that end in its quarter turns."""
    square = rest * rest
    p = precision(rest.dtype)
    cubic = (rest * square) * square.polynomial(p.sin)
    sine, sine_low = twofold_sum(rest, cubic + lost)
    half = square * 0.5
    quartic = (square * square) * square.polynomial(p.cos)
    # What the square has lost, and the part of the angle that it was made without.
    rounded = rest.fused(rest, -square).fused(-0.5, -(rest * lost))
    near, near_low = twofold_sum(rest.constant(1.0), -half)
    cosine, cosine_low = twofold_sum(near, (near_low + rounded) + quartic)
    even = (last & 1).equals(0)
    top, top_low = even.choose(sine, -cosine), even.choose(sine_low, -cosine_low)
    under, under_low = even.choose(cosine, sine), even.choose(cosine_low, sine_low)
    return twofold_quotient(top, top_low, under, under_low)


def _twofold_rest(x: Number, turns: Number) -> tuple[Number, Number]:
    first, second, third = precision(x.dtype).half_pi
    exact = turns.fused(-first, x)
    product, low = twofold_product(turns, x.constant(-second))
    rest, lost = twofold_sum_of_any(exact, product)
    return twofold_sum(rest, lost + turns.fused(-third, low))
