"""Angles and remainders of all sizes, at every width, against integers."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from helpers.host_functions import on_host
from jaxdae.kernels.llvm.mathematics.constants import precision
from jaxdae.kernels.llvm.mathematics.trigonometric import two_over_pi
from oracles.angles import half_pi, reduced, sine_and_cosine, tangent

PRECISIONS = [np.float64, np.float32]
ANGLES = {
    "sin": lambda x: sine_and_cosine(x)[0],
    "cos": lambda x: sine_and_cosine(x)[1],
    "tan": tangent,
}
WIDTHS = {np.float64: (1, 4, 8), np.float32: (1, 8, 16)}
# The double closest to a multiple of pi / 2 (Muller, Elementary Functions).
WORST = 6381956970095103 * 2.0**797
# The first bits of 2 / pi, in words of 24 bits [SunMicrosystems1993].
PUBLISHED = """
    A2F983 6E4E44 1529FC 2757D1 F534DD C0DB62 95993C 439041 FE5163 ABDEBB C561B7 246E3A
    424DD2 E00649 2EEA09 D1921C FE1DEB 1CB129 A73EE8 8235F5 2EBB44 84E99C 7026B4 5F7E41
    3991D6 398353 39F49C 845F8B BDF928 3B1FF8 97FFDE 05980F EF2F11 8B5A0A 6D1F6D 367ECF
    27CB09 B74F46 3F669E 5FEA2D 7527BA C7EBE5
"""


@cache
def compiled(width, dtype):
    return on_host(("sin", "cos", "tan", "sincos", "rem"), width, dtype)


def angles(dtype, rng):
    """Of every exponent, at random and next to a multiple of pi / 2."""
    info, limit = np.finfo(dtype), precision(dtype).largest_angle
    double = info.bits == 64
    least, step, times = int(math.log2(limit)) - 2, *((2, 1) if double else (1, 8))
    powers = np.repeat(np.arange(least, info.maxexp, step), times)
    random = np.ldexp(rng.uniform(1.0, 2.0, powers.size), powers).astype(dtype)
    turns = [reduced(float(x))[0] for x in random]
    close = np.array([float(Fraction(k * half_pi(), 1 << 1280)) for k in turns]).astype(dtype)
    edges = [
        limit,
        np.nextafter(dtype(limit), dtype(np.inf)),
        info.max,
        WORST if info.bits == 64 else 1e22,
    ]
    x = np.concatenate([random, close[np.isfinite(close)], np.array(edges, dtype)])
    return np.resize(x * rng.choice(np.array([-1, 1], dtype), x.size), -(-x.size // 16) * 16)


def units_off(found, exact):
    """Error in units of the last place."""
    unit = np.spacing(np.abs(np.array([float(x) for x in exact])).astype(found.dtype))
    pairs = zip(found, exact, unit, strict=True)
    return [float(abs(Fraction(float(a)) - b) / Fraction(float(c))) for a, b, c in pairs]


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_functions_of_large_angles_are_exact_to_two_units(dtype, rng):
    x = angles(dtype, rng)
    for name, function in ANGLES.items():
        off = units_off(
            compiled(WIDTHS[dtype][1], dtype)[name](x)[0], [function(float(a)) for a in x]
        )
        worst = int(np.argmax(off))
        assert off[worst] <= 2.0, (name, x[worst], off[worst])


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_each_entry_is_for_itself_at_every_width(dtype, rng):
    """Large angles beside small ones, in any order: the digits are those of one alone."""
    large = angles(dtype, rng)[:64]
    x = rng.permutation(
        np.concatenate([large, rng.normal(size=48), [np.inf, np.nan, 0.0, -0.0] * 4])
    )
    x = x.astype(dtype)
    y = rng.permutation(x)
    one, *others = (compiled(width, dtype) for width in WIDTHS[dtype])
    for name, function in one.items():
        given = (x, y) if name == "rem" else (x,)
        for other in others:
            np.testing.assert_array_equal(other[name](*given), function(*given))


def test_published_values():
    """The cosine by Muller, the sine of 1e22 by Ng (Argument reduction: good to the last bit)."""
    functions = compiled(1, np.float64)
    x = np.array([WORST, -WORST, 1e22])
    assert functions["cos"](x)[0, :2].tolist() == [-4.68716592425462761112e-19] * 2
    assert functions["sin"](x)[0].tolist() == [1.0, -1.0, -0.8522008497671888]


def test_the_bits_of_two_over_pi_are_those_published():
    words = PUBLISHED.split()
    assert f"{two_over_pi(24 * len(words)):X}" == "".join(words)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_no_angle_is_infinite_and_zeros_keep_their_sign(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, tiny, -tiny, 7 * tiny], dtype)
    for width in (1, 8):
        functions = compiled(width, dtype)
        sine, cosine, tangents = (functions[name](x)[0] for name in ANGLES)
        assert np.isnan([sine[:3], cosine[:3], tangents[:3]]).all()
        for found in (sine, tangents):
            np.testing.assert_array_equal(found[3:], x[3:])
            np.testing.assert_array_equal(np.signbit(found[3:]), np.signbit(x[3:]))
        np.testing.assert_array_equal(cosine[3:], 1)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_remainders_of_any_numbers_are_those_of_c_bit_for_bit(dtype, rng):
    """Quotients of all sizes, subnormal numbers, zeros with their signs, infinities and NaN."""
    whole = {np.float64: np.int64, np.float32: np.int32}[dtype]
    info = np.finfo(dtype)
    limits = np.iinfo(whole)
    x, y = (rng.integers(limits.min, limits.max, 20_000, dtype=whole).view(dtype) for _ in "xy")
    small = (info.smallest_subnormal * rng.integers(1, 1 << 20, 4_000)).astype(dtype)
    special = [0, info.smallest_subnormal, info.tiny, 1, 3, 1e22, info.max, np.inf, np.nan]
    special = np.array([*special, *(-a for a in special)], dtype)
    special = np.repeat(special, special.size), np.tile(special, special.size)
    x = np.concatenate([x, x[:4000], small, small, special[0]])
    y = np.concatenate([y, small, rng.permutation(small), y[:4000], special[1]])
    with np.errstate(invalid="ignore"):
        expected = np.fmod(x, y)
    defined = ~np.isnan(expected)
    for width in WIDTHS[dtype][:2]:
        found = compiled(width, dtype)["rem"](x, y)[0]
        np.testing.assert_array_equal(found[defined].view(whole), expected[defined].view(whole))
        assert np.isnan(found[~defined]).all()
