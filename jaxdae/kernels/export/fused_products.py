"""`a b + c` with one rounding, for processors that have no instruction for it.

LLVM calls the C library there; the functions of its names are part of the module instead.
"""

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Condition, Integer, Number
from jaxdae.kernels.llvm.writer import Writer

_THREE, _ATTRIBUTES = "double %a, double %b, double %c", "noinline nounwind "
# Powers of two between which factors are usual; products of such have all of their digits.
_USUAL = 450


def fused_double() -> list[Definition]:
    """`double @fma(double, double, double)`.

    By sums of two numbers each, of which the last but one is rounded to odd [BoldoMelquiond2008].
    Beyond 1e135 and below 1e-135, where parts of these overflow or lose digits, product and sum are
    rounded one after the other.
    """
    w = Writer()
    a, b, c = (Number(w, f"%{x}", "double") for x in "abc")
    usual = _is_usual(a, _USUAL) & _is_usual(b, _USUAL)
    usual = usual & (_is_usual(c, 2 * _USUAL) | c.equals(0.0))
    result = usual.choose(_of_usual(a, b, c), a * b + c)
    return [w.define("fma", _THREE, "double", result, _ATTRIBUTES)]


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
