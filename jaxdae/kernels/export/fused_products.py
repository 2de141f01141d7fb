"""`a b + c` with one rounding, for processors that have no instruction for it.

LLVM calls the C library there; the functions of its names are part of the module instead.
"""

from typing import NamedTuple

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer

_FRACTION, _EXPONENT, _BIAS = 52, 0x7FF, 1023
# Of a product of two significands with 53 bits, so that it fills 123 to 125 of 128 bits; and of a
# summand, so that it fills 124.
_PRODUCT_SHIFT, _SUMMAND_SHIFT = 19, 71
# Bits behind those of a result.
_EXTRA = 11
_THREE, _ATTRIBUTES = "double %a, double %b, double %c", "noinline nounwind "
# Powers of two between which factors are usual; products of such have all of their digits.
_USUAL = 450


def fused_double() -> list[Definition]:
    """`double @fma(double, double, double)`, and what it calls for very large and small numbers.

    The others by sums of two numbers each, of which the last but one is rounded to odd
    [BoldoMelquiond2008].
    """
    w = Writer()
    a, b, c = (Number(w, f"%{x}", "double") for x in "abc")
    place = w.room(1, "double")
    usual = _is_usual(a, _USUAL) & _is_usual(b, _USUAL)
    usual = usual & (_is_usual(c, 2 * _USUAL) | c.equals(0.0))
    with w.if_else(usual) as (then, otherwise):
        with then:
            w.store("double", _of_usual(a, b, c), place)
        with otherwise:
            given = [f"double {x}" for x in (a, b, c)]
            w.store("double", w.invoke("double", "fma.exact", *given), place)
    result = w.load("double", place)
    return [_exact(), w.define("fma", _THREE, "double", result, _ATTRIBUTES)]


def _is_usual(x: Number, powers: int) -> Condition:
    """Whether a number is so many powers of two from one, at most."""
    size = abs(x)
    return (size >= 2.0**-powers) & (size <= 2.0**powers)


def _of_usual(a: Number, b: Number, c: Number) -> Number:
    """The result where nothing on the way overflows or is subnormal."""
    product = a * b
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    rest = a0 * b0 - (((product - a1 * b1) - a0 * b1) - a1 * b0)
    inner, inner_lost = _twofold(c, rest)
    outer, outer_lost = _twofold(product, inner)
    return outer + _odd(*_twofold(outer_lost, inner_lost))


def _halves(x: Number) -> tuple[Number, Number]:
    """A number as the sum of two with half of its digits, whose products are exact [Dekker1971]."""
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def _twofold(a: Number, b: Number) -> tuple[Number, Number]:
    """A sum, and what its rounding lost."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _odd(total: Number, lost: Number) -> Number:
    """A sum with its last bit set where something was lost: the next rounding is the only one."""
    bits = _bits(total)
    outward = (lost > 0.0).equals(total > 0.0)
    even = (bits & 1).equals(0)
    changed = outward.choose(bits + 1, bits - 1)
    return _number((lost.differs(0.0) & ~lost.is_nan() & even).choose(changed, bits))


def _exact() -> Definition:
    """The same for all numbers: exact in integers of 128 bits, then rounded."""
    w = Writer()
    a, b, c = (Number(w, f"%{x}", "double") for x in "abc")
    plain, place = a * b, w.room(1, "double")
    w.store("double", c.is_finite().choose(plain + c, c), place)
    usual = a.is_finite() & b.is_finite() & c.is_finite() & a.differs(0.0) & b.differs(0.0)
    # Where a factor is not finite, the product has no rounding.
    infinite = ~a.is_finite() | ~b.is_finite()
    with w.if_then(infinite):
        w.store("double", plain + c, place)
    with w.if_then(usual):
        w.store("double", c.equals(0.0).choose(plain, _sum(a, b, c)), place)
    result = w.load("double", place)
    return w.define("fma.exact", _THREE, "double", result, _ATTRIBUTES)


def fused_single() -> list[Definition]:
    """`float @fmaf(float, float, float)`: a sum in double precision that is rounded to odd."""
    w = Writer()
    a, b, c = (Number(w, w.put("double", f"fpext float %{x} to double"), "double") for x in "abc")
    total = _odd(*_twofold(a * b, c))  # the product is exact
    result = w.put("float", f"fptrunc double {total} to float")
    return [w.define("fmaf", "float %a, float %b, float %c", "float", result, _ATTRIBUTES)]


def _bits(x: Number) -> Integer:
    return Integer(x.writer, x.writer.put("i64", f"bitcast double {x} to i64"))


def _number(bits: Integer) -> Number:
    w = bits.writer
    return Number(w, w.put("double", f"bitcast i64 {bits} to double"), "double")


class _ScaledInteger(NamedTuple):
    """`±significand 2^exponent`, with the significand from 2^52 to 2^53."""

    significand: Integer
    exponent: Integer


class _Long(NamedTuple):
    """An integer of 128 bits; processors with 32 have no instructions for those of LLVM."""

    high: Integer
    low: Integer

    def plus(self, other: "_Long") -> "_Long":
        low = self.low + other.low
        return _Long(self.high + other.high + _below(low, self.low).as_integer(), low)

    def minus(self, other: "_Long") -> "_Long":
        borrow = _below(self.low, other.low).as_integer()
        return _Long(self.high - other.high - borrow, self.low - other.low)

    def left(self, count: Integer) -> "_Long":
        """Shifted by less than 128 bits."""
        some = count & 63
        across = (self.low >> (some ^ 63)) >> 1
        near = _Long((self.high << some) | across, self.low << some)
        far = _Long(self.low << some, self.low.constant(0))
        return _choose(count >= 64, far, near)

    def right(self, count: Integer) -> "_Long":
        """Shifted by less than 128 bits; the last bit says whether any was lost."""
        some = count & 63
        across = (self.high << (some ^ 63)) << 1
        near = _Long(self.high >> some, (self.low >> some) | across)
        far = _Long(self.high.constant(0), self.high >> some)
        shifted = _choose(count >= 64, far, near)
        back = shifted.left(count)
        lost = (back.high ^ self.high) | (back.low ^ self.low)
        return _Long(shifted.high, shifted.low | lost.differs(0).as_integer())


def _below(a: Integer, b: Integer) -> Condition:
    """Whether one is smaller, as integers without sign."""
    sign = -(2**63)
    return (a ^ sign) < (b ^ sign)


def _choose(condition: Condition, yes: _Long, no: _Long) -> _Long:
    return _Long(*(condition.choose(a, b) for a, b in zip(yes, no, strict=True)))


def _least(a: Integer, limit: int) -> Integer:
    return (a < limit).choose(a, a.constant(limit))


def _zeros(x: Integer) -> Integer:
    """Zeros before the first bit that is set."""
    name = x.writer.invoke("i64", "llvm.ctlz.i64", f"i64 {x}", "i1 false", declared="i64, i1")
    return Integer(x.writer, name)


def _scaled(x: Number) -> _ScaledInteger:
    """A number that is finite and not zero."""
    bits = _bits(x)
    exponent = (bits >> _FRACTION) & _EXPONENT
    fraction = bits & (2**_FRACTION - 1)
    normal = exponent.differs(0)
    shift = _zeros(fraction) - (63 - _FRACTION)
    subnormal = _ScaledInteger(
        fraction << (shift & 63), shift.constant(1 - _BIAS - _FRACTION) - shift
    )
    usual = _ScaledInteger(fraction | 2**_FRACTION, exponent - (_BIAS + _FRACTION))
    return _ScaledInteger(*(normal.choose(a, b) for a, b in zip(usual, subnormal, strict=True)))


def _product(a: Integer, b: Integer) -> _Long:
    """Of two integers below 2^53."""
    mask = 2**32 - 1
    (a1, a0), (b1, b0) = ((x >> 32, x & mask) for x in (a, b))
    cross = a1 * b0 + a0 * b1  # below 2^54 each
    return _Long(a1 * b1 + (cross >> 32), (cross & mask) << 32).plus(_Long(a.constant(0), a0 * b0))


def _sum(a: Number, b: Number, c: Number) -> Number:
    """The result where all are finite and not zero."""
    x, y, z = map(_scaled, (a, b, c))
    known = x.exponent.constant
    p = _product(x.significand, y.significand).left(known(_PRODUCT_SHIFT))
    p_exponent = x.exponent + y.exponent - _PRODUCT_SHIFT
    s, s_exponent = (
        _Long(z.significand << (_SUMMAND_SHIFT - 64), known(0)),
        z.exponent - _SUMMAND_SHIFT,
    )
    distance = p_exponent - s_exponent
    ahead = distance >= 0
    shift = _least(ahead.choose(distance, distance.constant(0) - distance), 127)
    p, s = _choose(ahead, p, p.right(shift)), _choose(ahead, s.right(shift), s)
    exponent = ahead.choose(p_exponent, s_exponent)
    sign = (_bits(a) ^ _bits(b)) & -(2**63)
    differ = ((sign ^ _bits(c)) & -(2**63)).differs(0)
    less = p.minus(s)
    negative = less.high < 0
    less = _choose(negative, s.minus(p), less)
    total = _choose(differ, less, p.plus(s))
    sign = (differ & negative).choose(sign ^ -(2**63), sign)
    zero = (total.high | total.low).equals(0)
    return zero.choose(a.constant(0.0), _number(_rounded(total, exponent) | sign))


def _rounded(total: _Long, exponent: Integer) -> Integer:
    """Bits of `total 2^exponent`, rounded to nearest, ties to even."""
    empty = total.high.equals(0)
    zeros = empty.choose(_zeros(total.low) + 64, _zeros(total.high)) & 127
    shifted = total.left(zeros)
    top = shifted.high | shifted.low.differs(0).as_integer()
    # The value is from 2^leading to twice of it.
    leading = exponent - zeros + 127
    missing = leading.constant(1 - _BIAS) - leading
    more = _least((missing > 0).choose(missing, 0), 63)
    kept = top >> more
    kept = kept | (kept << more).differs(top).as_integer()
    value, rest = kept >> _EXTRA, kept & (2**_EXTRA - 1)
    half = 2 ** (_EXTRA - 1)
    up = (rest > half) | (rest.equals(half) & (value & 1).differs(0))
    base = leading + (_BIAS - 1)
    base = (base > 0).choose(base, 0) << _FRACTION
    infinite = Integer(total.high.writer, str(_EXPONENT << _FRACTION))
    return (leading > _BIAS).choose(infinite, base + value + up.as_integer())
