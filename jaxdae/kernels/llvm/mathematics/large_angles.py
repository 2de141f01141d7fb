"""Angles of any size less the nearest multiple of pi / 2, by the method of [PayneHanek1983].

An angle is `m 2^e` with an integer `m`. Those bits of 2 / pi whose products with it are multiples
of four turn it by nothing; the next ones, as many as matter, are multiplied by `m` in integers. One
angle at a time: such angles are rare.
"""

from functools import cache
from itertools import pairwise

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import twofold_product, twofold_sum
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer, Number

# Bits of a word: a product of two words, and two more words, fit into 64.
_WORD = 32
_ONES = (1 << _WORD) - 1
# Words of the table: zeros for the smallest of these angles, and bits for all exponents of double
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
    """The words of 2 / pi, as a constant of a module that `reduced` needs."""
    bits = two_over_pi(_WORD * (_WORDS - 1))
    words = ", ".join(f"i32 {bits >> _WORD * i & _ONES}" for i in reversed(range(_WORDS)))
    kind = f"[{_WORDS} x i32]"
    return Definition(
        _TABLE, f"{_TABLE} = internal unnamed_addr constant {kind} [{words}], align 4"
    )


def reduced(x: Number) -> tuple[Number, Number, Integer]:
    """The rest of one angle in two parts, and an integer whose last bits are its quarter turns.

    Args:
        x: a number, no vector. Only of one that is larger than one comes anything of use.

    Returns:
        All three; the rest of infinity is NaN.
    """
    p, size = precision(x.dtype), abs(x).bits().resized("i64")
    exponent, one = size >> p.mantissa, 1 << p.mantissa
    whole = (size & (one - 1)) | one
    # Wherein the point is behind the second bit: all before are multiples of four.
    words = _product(whole, _window(exponent - (p.bias + p.mantissa)))
    turns = (words[0] + (1 << _WORD - 3)) >> (_WORD - 2)
    # Beyond a half it is less than the next multiple: all of its bits are turned.
    more = (words[0] >> (_WORD - 3)) & 1
    turned = (more * _ONES).__xor__
    fraction = [turned(words[0]) & (_ONES >> 2), *(turned(word) for word in words[1:])]
    high, low = _number(x, fraction)
    rest, lost = _times_half_pi(high, low)
    rest = (abs(x) < float("inf")).choose(rest, float("nan"))
    negative = x.bits() < 0
    opposite = negative.differs(more.equals(1))
    turns = negative.choose(turns * -1, turns)
    rest, lost = (opposite.choose(-part, part) for part in (rest, lost))
    return rest, lost, turns.resized(f"i{p.bits}")


def _window(exponent: Integer) -> list[Integer]:
    """Words of 2 / pi for `m 2^exponent`, the first one first."""
    w = exponent.writer
    # As many as an angle has bits, as may cancel and as are wanted.
    count = 6 if w.bits == 64 else 3
    start = exponent + (_WORD - 2)
    start = (start > 0).choose(start, 0)
    index, shift = start >> 5, start & (_WORD - 1)
    words = [
        Integer(w, w.load("i32", w.place("i32", _TABLE, index + i)), "i32").resized("i64")
        for i in range(count + 1)
    ]
    return [(((a << _WORD) | b) << shift) >> _WORD for a, b in pairwise(words)]


def _product(whole: Integer, words: list[Integer]) -> list[Integer]:
    """Words of a product, without those before the first."""
    result = [whole.constant(0)] * len(words)
    for i, factor in enumerate([whole & _ONES, whole >> _WORD][: whole.writer.bits // 32]):
        carried = whole.constant(0)
        for j in reversed(range(i, len(words))):
            total = factor * words[j] + result[j - i] + carried
            result[j - i], carried = total & _ONES, total >> _WORD
    return result


def _number(x: Number, words: list[Integer]) -> tuple[Number, Number]:
    """A fraction in two parts."""
    bits = _WORD if x.writer.bits == 64 else _WORD // 2
    pieces = [
        (word >> shift) & ((1 << bits) - 1)
        for word in words
        for shift in reversed(range(0, _WORD, bits))
    ]
    high = low = x.constant(0.0)
    for i, piece in reversed([*enumerate(pieces)]):
        scaled = piece.as_number() * 2.0 ** (2 - bits * (i + 1))
        high, lost = twofold_sum(scaled, high)
        low = low + lost
    return high, low


def _times_half_pi(high: Number, low: Number) -> tuple[Number, Number]:
    first, second = precision(high.dtype).twofold("pi/2")
    product, lost = twofold_product(high, high.constant(first))
    return twofold_sum(product, high.fused(second, low.fused(first, lost)))
