"""What takes the place of fused products and sums on processors that have none."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from helpers.host_functions import array_function, loaded
from jaxdae.kernels.llvm.mathematics.software_fma import without_fma
from jaxdae.kernels.llvm.module import Module

PRECISIONS = [np.float64, np.float32]


@cache
def fused(dtype, width):
    made = array_function("f", 3, lambda a, b, c: [a.fused(b, c)], width, dtype)
    changed = without_fma([made])
    assert "llvm.fma." not in Module(changed).text
    function = loaded(changed, {"f": 3}, width)["f"]
    return lambda *x: function(*x)[0]


def numbers(dtype, rng, count=1000):
    """Of sizes whose products, and the errors of these, are normal numbers."""
    reach = 400 if dtype == np.float64 else 30
    return (rng.normal(size=count) * 2.0 ** rng.uniform(-reach, reach, count)).astype(dtype)


def exact(a, b, c):
    triples = zip(*([Fraction(float(y)) for y in x] for x in (a, b, c)), strict=True)
    return [x * y + z for x, y, z in triples]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_errors_of_products_are_exact(dtype, width, rng):
    a, b = numbers(dtype, rng), numbers(dtype, rng)
    found = fused(dtype, width)(a, b, -(a * b))
    assert [Fraction(float(x)) for x in found] == exact(a, b, -(a * b))


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_sums_are_rounded_once_and_hardly_more(dtype, rng):
    """Summands of the size of the product, and such as nearly cancel it."""
    a, b = (np.tile(numbers(dtype, rng), 2) for _ in "ab")
    factors = np.concatenate([rng.normal(size=1000), -1 - 1e-6 * rng.normal(size=1000)])
    c = (a * b * factors).astype(dtype)
    found = fused(dtype, 4)(a, b, c)
    for x, y in zip(found, exact(a, b, c), strict=True):
        unit = Fraction(float(np.spacing(abs(dtype(float(y))))))
        # A rounding, and that of what is missing in the sum, which is 2^-24 of a unit at most.
        assert abs(Fraction(float(x)) - y) <= unit * Fraction(0.5000001)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_special_values_are_those_of_a_product_and_a_sum(dtype):
    special = np.array([0.0, -0.0, 1.0, -1.0, np.finfo(dtype).max, np.inf, -np.inf, np.nan], dtype)
    a, b, c = (x.ravel() for x in np.meshgrid(special, special, special))
    with np.errstate(all="ignore"):
        overflows = np.isinf(a * b) & np.isfinite(a) & np.isfinite(b)
        a, b, c = (x[~(overflows & np.isinf(c))] for x in (a, b, c))
        expected = a * b + c
    found = fused(dtype, 4)(a, b, c)
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))
