"""Remainders of divisions that are rounded towards zero; all of them are exact."""

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.limits import Limited
from jaxdae.kernels.llvm.registers import Integer, Number

# Bits of the integers that long division is done in, without the sign.
_BITS = 63


def _rem(x: Number, y: Number) -> tuple[Number]:
    """Remainder for quotients that are not large and divisors that are not tiny."""
    size, step = abs(x), abs(y)
    quotient = (size / step).intrinsic("floor")
    # Exact; the quotient may have been rounded up to the next integer.
    rest = (-quotient).fused(step, size)
    rest = (rest < 0.0).choose(rest + step, rest)
    # So it is where the divisor is infinite.
    return ((size < step).choose(size, rest).signed_as(x),)


def _size(x: Number, y: Number) -> Number:
    p = precision(x.dtype)
    # Remainders by small numbers may be subnormal on the way.
    large = (abs(x / y) >= 2.0**p.mantissa) | (abs(y) < p.tiny * 2.0**p.mantissa)
    return large.choose(float("inf"), 0.0)


def _large_rem(x: Number, y: Number) -> tuple[Number]:
    """Remainder of one division of any numbers, by long division of their mantissas as integers."""
    p = precision(x.dtype)
    size, step = (_magnitude(a) for a in (x, y))
    (top, start), (under, end) = _parts(size), _parts(step)
    rest = _long_division(top, under, start - end)
    value = (size < step).choose(size, _scaled(rest, end))
    result = value.resized(f"i{p.bits}").number().signed_as(x)
    # A subnormal divisor is zero where the processor takes it so, as under XLA.
    undefined = ~x.is_finite() | y.is_nan() | y.equals(0.0)
    return (undefined.choose(float("nan"), result),)


def _magnitude(x: Number) -> Integer:
    """The bits of its size."""
    return (x.bits() & ((1 << x.writer.bits - 1) - 1)).resized("i64")


def _parts(size: Integer) -> tuple[Integer, Integer]:
    """Mantissa as an integer, and exponent with its bias, which for subnormal numbers is one."""
    p = precision(size.dtype)
    biased, one = size >> p.mantissa, 1 << p.mantissa
    normal, fraction = biased > 0, size & (one - 1)
    return normal.choose(fraction | one, fraction), normal.choose(biased, 1)


def _long_division(top: Integer, under: Integer, doublings: Integer) -> Integer:
    """The remainder of `top 2^doublings` by `under`, some digits of the quotient in each turn."""
    w, most = top.writer, _BITS - (precision(top.dtype).mantissa + 1)
    # Processors stop at divisions by zero.
    under = (under > 0).choose(under, 1)
    first = top % under
    with w.turns(0, doublings, most) as turns:
        rest, left = Integer(w, turns.carried("i64", first)), doublings - turns.index
        shift = (left < most).choose(left, most)
        turns.hand_on(rest.name, (rest << shift) % under)
    return rest


def _scaled(rest: Integer, exponent: Integer) -> Integer:
    """The bits of a number by its mantissa, which may begin with zeros, and its exponent."""
    p = precision(rest.dtype)
    bits = rest.as_number().bits().resized("i64")
    shift = exponent - (p.bias + p.mantissa)
    normal = (bits >> p.mantissa) + shift > 0
    value = normal.choose(bits + (shift << p.mantissa), rest << (exponent - 1))
    return rest.equals(0).choose(0, value)


REM = Limited("rem", _rem, _large_rem, 1, lambda _, parts: parts, _size)
