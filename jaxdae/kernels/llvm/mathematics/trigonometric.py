"""Sine, cosine and tangent of vectors.

The argument less the nearest multiple of pi / 2, which is taken away in three parts
[CodyWaite1980], goes into polynomials. Larger arguments are rare; they are reduced one by one, by
the method of [PayneHanek1983]: an angle is `m 2^e` with an integer `m`. Those bits of 2 / pi whose
products with it are multiples of four turn it by nothing; the next ones, as many as matter, are
multiplied by `m` in integers.
"""

import math
from functools import cache

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import (
    same_if_small,
    twofold_product,
    twofold_quotient,
    twofold_sum,
    twofold_sum_of_any,
)
from jaxdae.kernels.llvm.mathematics.limits import Limited
from jaxdae.kernels.llvm.module import Definition
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


# Angles of any size less the nearest multiple of pi / 2.

# Bits of a word: a product of two words, and two more words, fit into 64.
_WORD = 32
_ONES = (1 << _WORD) - 1
# Words of 2 / pi: zeros for the smallest of these angles, then bits for all exponents of double
# precision, that of infinity too.
_WORDS = 38
_TABLE = "@two_over_pi"


@cache
def two_over_pi(bits: int) -> int:
    """The first bits of 2 / pi behind the point, with Machin's formula for pi."""
    one = 1 << (bits + 64)
    pi = 4 * (4 * _arcus_cotangent(5, one) - _arcus_cotangent(239, one))
    return (2 * one << bits) // pi


def _arcus_cotangent(x: int, one: int) -> int:
    power, total, k = one // x, 0, 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power, k = power // x**2, k + 2
    return total


@cache
def table() -> Definition:
    """A constant that `reduced` reads: every two consecutive words of 2 / pi."""
    bits = two_over_pi(_WORD * (_WORDS - 1))
    pairs = [bits >> _WORD * i & ((1 << 2 * _WORD) - 1) for i in reversed(range(_WORDS - 1))]
    kind = f"[{len(pairs)} x i64]"
    words = ", ".join(f"i64 {x}" for x in pairs)
    return Definition(
        _TABLE, f"{_TABLE} = internal unnamed_addr constant {kind} [{words}], align 8"
    )


def reduced(x: Number) -> tuple[Number, Number, Number]:
    """What an angle is beyond its quarter turns, a number whose bits end in theirs, and an error.

    That is the rest's own rounding error; of infinity the rest is NaN. The angle is a number, no
    vector, and larger than one.
    """
    p, size = precision(x.dtype), abs(x).bits().resized("i64")
    exponent, one = size >> p.mantissa, 1 << p.mantissa
    integer = (size & (one - 1)) | one
    # The point is behind the second bit: all bits before are of multiples of four.
    words = _product(integer, _window(exponent - (p.bias + p.mantissa)))
    first, *others = ((a << _WORD) | b for a, b in zip(words[0:4:2], words[1:4:2], strict=False))
    turns = (first + (1 << 61)) >> 62
    rest, lost = _times_half_pi(*_number(first - (turns << 62), *others))
    negative = x.bits() < 0
    turns = negative.choose(turns * -1, turns).resized(f"i{p.bits}")
    rest, lost = (negative.choose(-part, part) for part in (rest, lost))
    return x.is_finite().choose(rest, float("nan")), turns.number(), lost


def _window(exponent: Integer) -> list[Integer]:
    """Words of 2 / pi for `m 2^exponent`, the first one first.

    They are as many as `m` has, as may be zero before others in the product, and as are wanted.
    """
    w = exponent.writer
    start = exponent + (_WORD - 2)
    start = (start > 0).choose(start, 0)
    index, shift = start >> 5, start & (_WORD - 1)
    pairs = (
        Integer(w, w.load("i64", w.place("i64", _TABLE, index + i)))
        for i in range(6 if w.bits == 64 else 3)
    )
    return [(pair << shift) >> _WORD for pair in pairs]


def _product(integer: Integer, words: list[Integer]) -> list[Integer]:
    """Words of a product, without those before the first."""
    result = [integer.constant(0)] * len(words)
    factors = [integer & _ONES, integer >> _WORD] if integer.writer.bits == 64 else [integer]
    for i, factor in enumerate(factors):
        carried = integer.constant(0)
        for j in reversed(range(i, len(words))):
            total = factor * words[j] + result[j - i] + carried
            result[j - i], carried = total & _ONES, total >> _WORD
    return result


def _number(first: Integer, second: Integer | None = None) -> tuple[Number, Number]:
    """A fraction in units of 2^-62, by integers with a sign, of those units and of 2^-126."""
    if second is not None:
        first = first + (second >> 63)
    high = first.as_number()
    low = (first - high.as_integer()).as_number()
    if second is not None:
        low = low + second.as_number() * 2.0**-64
    return twofold_sum(high, low)


def _times_half_pi(high: Number, low: Number) -> tuple[Number, Number]:
    first, second = (2.0**-62 * x for x in precision(high.dtype).twofold("pi/2"))
    product, lost = twofold_product(high, high.constant(first))
    return twofold_sum(product, high.joined(second, low.joined(first, lost)))


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
