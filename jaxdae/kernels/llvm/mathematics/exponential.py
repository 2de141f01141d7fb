"""Exponential, hyperbolic and error functions of vectors.

`x = n ln(2) + r`, `exp(x) = 2^n exp(r)`, with a polynomial for the last.
"""

from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.double_length import integral_scale, same_if_small, twofold_sum
from jaxdae.kernels.llvm.registers import Integer, Number

# Up to here `tanh` is its argument and a small correction; from here on it is more than a half.
_NEAR = 0.5625


def _halved(x: Number, low: float, high: float) -> tuple[Number, Integer, Number]:
    """An argument within bounds, as a number of halvings, its bits, and the rest of the first part.

    NaN stays NaN.
    """
    p = precision(x.dtype)
    x = (x > high).choose(high, x)
    x = (x < low).choose(low, x)
    moved = x.fused(1 / sum(p.ln_2), p.magic)
    count = moved - p.magic
    return count, moved.bits(), count.fused(-p.ln_2[0], x)


def _power(last: Integer, offset: int) -> Integer:
    """The number that the last bits end in, plus an offset that makes it positive."""
    p = precision(last.dtype)
    return last - (p.bits_of(p.magic) - offset)


def exp(x: Number) -> Number:
    """Exponential function; it becomes infinite and subnormal by itself."""
    p = precision(x.dtype)
    count, last, rest = _halved(x, -p.largest_power, p.largest_power)
    rest = count.fused(-p.ln_2[1], rest)
    value = (rest * rest).fused(rest.polynomial(p.exp), rest) + 1.0
    return integral_scale(value, _power(last, 2 * p.bias))


def _parts_of_exp(x: Number, low: float, high: float) -> tuple[Number, Number, Number]:
    """`2^n / 4`, and `(exp(x) - 2^n) / 4` in two parts.

    A quarter, because the hyperbolic functions reach beyond the range of the exponential.
    """
    p = precision(x.dtype)
    count, last, first = _halved(x, low, high)
    rest = count.fused(-p.ln_2[1], first)
    lost = count.fused(-p.ln_2[1], first - rest)
    tail = (rest * rest) * rest.polynomial(p.exp)
    value, less = twofold_sum(rest, tail)
    quarter = (_power(last, p.bias - 2) << p.mantissa).number()
    return quarter, value * quarter, (less + lost) * quarter


def _quarter_of_expm1(x: Number, low: float, high: float) -> tuple[Number, Number]:
    """`(exp(x) - 1) / 4` in two parts."""
    quarter, value, less = _parts_of_exp(x, low, high)
    total, lost = twofold_sum(quarter - 0.25, value)
    return twofold_sum(total, lost + less)


def _bounds(x: Number) -> tuple[float, float]:
    """Beyond them the exponential less one is minus one, or a quarter of it infinite."""
    p = precision(x.dtype)
    ln_2 = sum(p.ln_2)
    return -(p.mantissa + 3) * ln_2, (p.bias + 2) * ln_2 + 0.1


def expm1(x: Number) -> Number:
    """Exponential function less one."""
    return same_if_small(x, _quarter_of_expm1(x, *_bounds(x))[0] * 4.0)


def sinh(x: Number) -> Number:
    """`(E + E / (E + 1)) / 2` for `E = exp(|x|) - 1`."""
    size = abs(x)
    quarter, low = _quarter_of_expm1(size, 0.0, _bounds(x)[1])
    decay = (quarter * 0.5) / (quarter + 0.25)
    value = quarter.fused(2.0, low.fused(2.0, decay))
    return same_if_small(x, value.signed_as(x))


def cosh(x: Number) -> Number:
    """`(exp(|x|) + exp(-|x|)) / 2`."""
    quarter, value, less = _parts_of_exp(abs(x), 0.0, _bounds(x)[1])
    total, lost = twofold_sum(quarter, value)
    total = total + (lost + less)
    return total.fused(2.0, 0.125 / total)


def tanh(x: Number) -> Number:
    """`x + x^3 T(x)` near zero, beyond `1 - 2 / (exp(2 |x|) + 1)`; both with one division.

    The exponential is `2^n (P + O) / (P - O)` with `|x| = n ln(2) / 2 + r`, `tanh(r) = O / P` and
    `O = r P + r^3 Q`; `T = Q / P`, and near zero `n = 0`.
    """
    p, size = precision(x.dtype), abs(x)
    # Beyond, the function is one to rounding.
    most = p.mantissa * 1.0
    size = (size > most).choose(most, size)
    near = size < _NEAR
    moved = near.choose(p.magic, size.fused(1 / sum(p.half_ln_2), p.magic))
    count = moved - p.magic
    rest = count.fused(-p.half_ln_2[1], count.fused(-p.half_ln_2[0], size))
    power = (_power(moved.bits(), p.bias) << p.mantissa).number()
    square = rest * rest
    cube, (top, under) = rest * square, (square.horner(c) for c in (p.tanh[0], (*p.tanh[1], 1.0)))
    odd = cube.fused(top, rest * under)
    less = under - odd
    total = power.fused(under + odd, less)
    ratio = near.choose(top, less) / near.choose(under, total)
    return ratio.fused(near.choose(cube, -2.0), near.choose(size, 1.0)).signed_as(x)


def erf(x: Number) -> Number:
    """Error function: odd near zero, the complement of a decay beyond one."""
    p, size = precision(x.dtype), abs(x)
    near = size.fused((size * size).polynomial(p.erf), size)
    bounded = (size > p.erf_one).choose(p.erf_one, size)
    decay = exp(-(bounded * bounded))
    far = (-decay).fused((1.0 / (bounded + 2.0)).polynomial(p.erfcx), 1.0)
    return (size > 1.0).choose(far, near).signed_as(x)
