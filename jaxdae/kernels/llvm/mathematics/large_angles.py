"""Angles of any size less the nearest multiple of pi / 2, by the method of [PayneHanek1983].

An angle is `m 2^e` with an integer `m`. Those bits of 2 / pi whose products with it are multiples
of four turn it by nothing; the next ones, as many as matter, are multiplied by `m` in integers. One
angle at a time: such angles are rare.
"""

from functools import cache

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import twofold_product, twofold_sum
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer, Number

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
