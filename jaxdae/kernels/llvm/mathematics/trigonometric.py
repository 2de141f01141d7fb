"""Sine, cosine and tangent of vectors.

The argument less the nearest multiple of pi / 2, which is taken away in three parts
[CodyWaite1980], goes into polynomials. Larger arguments are rare; they are reduced one by one.
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
from jaxdae.kernels.llvm.mathematics.large_angles import reduced, table
from jaxdae.kernels.llvm.mathematics.limits import Limited
from jaxdae.kernels.llvm.registers import Integer, Number


def _turned(x: Number) -> tuple[Number, Number]:
    """Quarter turns, and a number whose bits end in theirs."""
    p = precision(x.dtype)
    turned = x.fused(2 / math.pi, p.magic)
    return turned - p.magic, turned


def _rest(x: Number) -> tuple[Number, Number]:
    """What an angle is beyond its quarter turns, and a number whose bits end in theirs."""
    turns, turned = _turned(x)
    for part in precision(x.dtype).half_pi:
        # The first difference is exact, and for minus zero all are.
        x = turns.fused(-part, x)
    return x, turned


def _twofold_rest(x: Number) -> tuple[Number, Number, Number]:
    """The same with the rest's own rounding error at the end."""
    turns, turned = _turned(x)
    first, second, third = precision(x.dtype).half_pi
    exact = turns.fused(-first, x)
    product, low = twofold_product(turns, x.constant(-second))
    rest, lost = twofold_sum_of_any(exact, product)
    rest, lost = twofold_sum(rest, lost + turns.fused(-third, low))
    return rest, turned, lost


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


def _sine_and_cosine(rest: Number, turned: Number) -> tuple[Number, Number]:
    last = turned.bits()
    square = rest * rest
    sine, cosine = _sine(rest, square), _cosine(square)
    even = (last & 1).equals(0)
    return _signed(even.choose(sine, cosine), last), _signed(even.choose(cosine, sine), last + 1)


def _tangent(rest: Number, turned: Number, lost: Number) -> Number:
    """The quotient of both, each in two parts."""
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
    even = (turned.bits() & 1).equals(0)
    top, top_low = even.choose(sine, -cosine), even.choose(sine_low, -cosine_low)
    under, under_low = even.choose(cosine, sine), even.choose(cosine_low, sine_low)
    return twofold_quotient(top, top_low, under, under_low)


SINCOS = Limited(
    name="angle",
    near=_rest,
    far=reduced,
    parts=3,
    result=lambda _, parts: _sine_and_cosine(*parts[:2]),
    size=lambda x: abs(x),
    constants=(table(),),
)
SIN = SINCOS._replace(result=lambda _, parts: _sine_and_cosine(*parts[:2])[:1])
COS = SINCOS._replace(result=lambda _, parts: _sine_and_cosine(*parts[:2])[1:])
TAN = SINCOS._replace(
    near=_twofold_rest, result=lambda x, parts: (same_if_small(x, _tangent(*parts)),)
)
