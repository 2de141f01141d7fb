"""Conversions of PTX between types, against fractions and Python's integers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from helpers.exact import nearest
from helpers.ptx_numbers import agrees, INTEGERS, numbers, random, TYPES, wrapped
from helpers.ptx_units import applied


@pytest.mark.parametrize("name", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize("target", ["f32", "f64"])
def test_integers_become_the_nearest_floats(name, target, rng):
    info = np.iinfo(INTEGERS[name].dtype)
    more = rng.integers(info.min, info.max, 100, INTEGERS[name].dtype)
    # Just beside the middle of two floats.
    ties = [
        2**24 + 1,
        *((2**53 + 1, 2**53 + 3, 2**54 + 2, 2**40 + 2**16 + 1) if "64" in name else ()),
    ]
    x = np.concatenate([INTEGERS[name], more, np.array(ties, more.dtype)])
    expected = [nearest(Fraction(y), TYPES[target]) for y in x.tolist()]
    assert agrees(applied(f"cvt.rn.{target}.{name}", target, x), expected)


ROUNDINGS = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_become_integers(mode, source):
    """The nearest that exists; of none zero, or the highest bit where a type has 64."""
    near = [0.5, 1.5, 2.5, -0.5, -1.5, 2.0**31, 2.0**32, 2.0**63, 2.0**64, -(2.0**31), -(2.0**63)]
    x = np.concatenate([numbers(source), np.array(near, TYPES[source])])
    for name in ("s32", "u32", "s64", "u64"):
        info, bits = np.iinfo(INTEGERS[name].dtype), int(name[1:])
        none = 2 ** (bits - 1) if bits == 64 or source == "f64" else 0

        def expected(y: float, info=info, none=none) -> int:
            if math.isnan(y):
                return none
            whole = ROUNDINGS[mode](y) if math.isfinite(y) else int(math.copysign(2**70, y))
            return min(max(whole, int(info.min)), int(info.max))

        result = applied(f"cvt.{mode}.{name}.{source}", name, x).tolist()
        assert result == wrapped([expected(y) for y in x.tolist()], name)
    inside = x[np.isfinite(x)]
    whole = applied(f"cvt.{mode}.{source}.{source}", source, inside).tolist()
    assert whole == [float(ROUNDINGS[mode](y)) for y in inside.tolist()]


def test_floats_of_other_length(rng):
    x = np.concatenate([numbers("f64"), random("f64", rng, 100), [1 + 2.0**-24, 1 + 3 * 2.0**-24]])
    finite = np.isfinite(x)
    narrow = applied("cvt.rn.f32.f64", "f32", x)
    assert agrees(narrow[finite], [nearest(Fraction(y), np.float32) for y in x[finite].tolist()])
    assert agrees(narrow[~finite], x[~finite].tolist())
    assert agrees(applied("cvt.f64.f32", "f64", narrow), narrow.tolist())


@pytest.mark.parametrize("target", ["s8", "u16", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["s16", "u32", "s64"])
def test_integers_of_other_length(target, source):
    x = INTEGERS[source]
    result = applied(f"cvt.{target}.{source}", target, x).tolist()
    assert result == wrapped(x.tolist(), target)
