"""Units in words, as factors and exponents of base units."""

import math

import pytest

from jaxdae.kernels.export.units import BASE, unit_of


@pytest.mark.parametrize(
    ("text", "factor", "powers"),
    [
        ("m/s^2", 1.0, {"m": 1, "s": -2}),
        ("kg m^2", 1.0, {"kg": 1, "m": 2}),
        ("N m/rad", 1.0, {"kg": 1, "m": 2, "s": -2, "rad": -1}),
        ("1/s²", 1.0, {"s": -2}),
        ("N·s/m", 1.0, {"kg": 1, "s": -1}),
        ("J/(kg K)", 1.0, {"m": 2, "s": -2, "K": -1}),
        ("mm", 1e-3, {"m": 1}),
        ("deg/s", math.pi / 180, {"rad": 1, "s": -1}),
        ("cm^2", 1e-4, {"m": 2}),
        ("1", 1.0, {}),
    ],
)
def test_units_in_base_units(text, factor, powers):
    unit = unit_of(text)
    assert unit is not None
    assert unit.factor == pytest.approx(factor, rel=1e-15)
    assert {k: v for k, v in zip(BASE, unit.exponents, strict=True) if v} == powers


@pytest.mark.parametrize("text", ["", "m or rad", "0, 1", "furlong", "m//s", "/", "see there"])
def test_words_that_are_no_units(text):
    assert unit_of(text) is None
