"""`a b + c` with one rounding, for processors that have no instruction for it.

LLVM calls the C library there; the functions of its names are part of the module instead.
"""

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer

_FRACTION, _EXPONENT, _BIAS = 52, 0x7FF, 1023
_SMALLEST = 1 - _BIAS - _FRACTION
_THREE, _ATTRIBUTES = "double %a, double %b, double %c", "noinline nounwind "
# Powers of two between which factors are usual; products of such have all of their digits.
_USUAL = 450
# Powers of two by which a summand may differ from a product of size one: of what differs by more
# only that it is there matters.
_APART = 200


def fused_double() -> list[Definition]:
    """`double @fma(double, double, double)`, and what it calls for very large and small numbers.

    By sums of two numbers each, of which the last but one is rounded to odd [BoldoMelquiond2008].
    """
    w = Writer()
    a, b, c = (Number(w, f"%{x}", "double") for x in "abc")
    place = w.room(1, "double")
    usual = _is_usual(a, _USUAL) & _is_usual(b, _USUAL)
    usual = usual & (_is_usual(c, 2 * _USUAL) | c.equals(0.0))
    with w.if_else(usual) as (then, otherwise):
        with then:
            outer, low = _sum(a, b, c)
            w.store("double", outer + low, place)
        with otherwise:
            given = [f"double {x}" for x in (a, b, c)]
            w.store("double", w.invoke("double", "fma.scaled", *given), place)
    result = w.load("double", place)
    return [_scaled(), w.define("fma", _THREE, "double", result, _ATTRIBUTES)]


def _is_usual(x: Number, powers: int) -> Condition:
    """Whether a number is so many powers of two from one, at most."""
    size = abs(x)
    return (size >= 2.0**-powers) & (size <= 2.0**powers)


def _sum(a: Number, b: Number, c: Number) -> tuple[Number, Number]:
    """`a b + c` where nothing overflows or is subnormal: a number, and the rest rounded to odd."""
    product = a * b
    (a1, a0), (b1, b0) = _halves(a), _halves(b)
    rest = a0 * b0 - (((product - a1 * b1) - a0 * b1) - a1 * b0)
    inner, inner_lost = _twofold(c, rest)
    outer, outer_lost = _twofold(product, inner)
    return outer, _odd(*_twofold(outer_lost, inner_lost))


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


def _scaled() -> Definition:
    """The same for all numbers: of factors and a summand of size one, then scaled exactly."""
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
        w.store("double", _of_any_size(a, b, c), place)
    result = w.load("double", place)
    return w.define("fma.scaled", _THREE, "double", result, _ATTRIBUTES)


def _of_any_size(a: Number, b: Number, c: Number) -> Number:
    """The result where all are finite, and the factors not zero."""
    (x, i), (y, j), (z, k) = map(_parts, (a, b, c))
    apart = _within(k - i - j, -_APART, _APART)
    # All is divided by this power of two: that of the product, unless the summand is far above it.
    power = (k - i - j > _APART).choose(k - apart, i + j)
    outer, low = _twofold(*_sum(x, y, z * _power(apart)))
    # A result below 2^52 times the smallest number is rounded to a multiple of that.
    spacing = _power(_within(power.constant(_SMALLEST) - power, -900, 900))
    normal = abs(outer) >= spacing * 2.0**_FRACTION
    shift = normal.choose(0.0, (spacing * 2.0**_FRACTION).signed_as(outer))
    high, rest = _twofold(shift, outer)
    value = (high + _odd(*_twofold(rest, low))) - shift
    first = power // 3
    for each in (first, first, power - first - first):
        value = value * _power(each)
    return outer.equals(0.0).choose(
        a.constant(0.0), c.equals(0.0).choose(a * b, value.signed_as(outer))
    )


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


def _parts(x: Number) -> tuple[Number, Integer]:
    """A finite number as one from 1 to 2 and a power of two; zero is a zero and a small one."""
    subnormal = ((_bits(x) >> _FRACTION) & _EXPONENT).equals(0)
    bits = _bits(subnormal.choose(x * 2.0**_USUAL, x))
    exponent = ((bits >> _FRACTION) & _EXPONENT) - _BIAS
    one = (bits & (2**_FRACTION - 1 - 2**63)) | (_BIAS << _FRACTION)
    value = x.equals(0.0).choose(x, _number(one))
    return value, subnormal.choose(exponent - _USUAL, exponent)


def _power(exponent: Integer) -> Number:
    """A power of two that is a normal number."""
    return _number((exponent + _BIAS) << _FRACTION)


def _within(x: Integer, low: int, high: int) -> Integer:
    x = (x < low).choose(x.constant(low), x)
    return (x > high).choose(x.constant(high), x)
