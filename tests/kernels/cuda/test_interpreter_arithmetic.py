"""Instructions of PTX that compute, against fractions and Python's integers."""

import math
from fractions import Fraction

import numpy as np
import pytest

from helpers.exact import nearest, root
from helpers.ptx_numbers import agrees, INTEGERS, numbers, pairs, random, TYPES, wrapped
from helpers.ptx_units import applied


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("what", ["add", "sub", "mul", "div"])
def test_arithmetic_is_exact_but_for_one_rounding(name, what, rng):
    a, b = (np.concatenate([x, random(name, rng, 200)]) for x in pairs(name))
    result = applied(f"{what}.rn.{name}", name, a, b)
    exact = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "div": lambda x, y: x / y,
    }[what]
    inside = np.isfinite(a) & np.isfinite(b) & ((b != 0) | (what != "div"))
    chosen = zip(a[inside].tolist(), b[inside].tolist(), strict=True)
    expected = [nearest(exact(Fraction(x), Fraction(y)), TYPES[name]) for x, y in chosen]
    assert agrees(result[inside], expected)
    # Without a number, with infinities and by zero: IEEE 754 as the processor has it.
    with np.errstate(all="ignore"):
        assert agrees(result[~inside], exact(a[~inside], b[~inside]))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_sums_and_products_of_zeros_have_signs(name):
    a, b = (
        np.array([0.0, -0.0, 1.0, -0.0], TYPES[name]),
        np.array([-0.0, -0.0, -1.0, 2.0], TYPES[name]),
    )
    assert np.signbit(applied(f"add.rn.{name}", name, a, b)).tolist() == [False, True, False, False]
    assert np.signbit(applied(f"mul.rn.{name}", name, a, b)).tolist() == [True, False, True, True]


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_roots_and_reciprocals_are_nearest(name, rng):
    x = np.abs(np.concatenate([numbers(name), random(name, rng, 100)]))
    inside = np.isfinite(x) & (x > 0)
    roots = applied(f"sqrt.rn.{name}", name, x)
    assert agrees(roots[inside], [root(Fraction(y), TYPES[name]) for y in x[inside].tolist()])
    reciprocals = applied(f"rcp.rn.{name}", name, x)
    expected = [nearest(1 / Fraction(y), TYPES[name]) for y in x[inside].tolist()]
    assert agrees(reciprocals[inside], expected)
    special = np.array([-1.0, -0.0, np.inf, -np.inf, np.nan], TYPES[name])
    assert agrees(applied(f"sqrt.rn.{name}", name, special), [np.nan, -0.0, np.inf, np.nan, np.nan])
    assert agrees(applied(f"rcp.rn.{name}", name, special), [-1.0, -np.inf, 0.0, -0.0, np.nan])


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_fused_multiplication_and_addition_round_once(name, rng):
    """The third term nearly cancels the product, or is far smaller, or makes it subnormal."""
    dtype = TYPES[name]
    a, b = (random(name, rng, 300) for _ in range(2))
    with np.errstate(all="ignore"):
        near = np.where(np.isfinite(a * b), -(a * b), 1)
    c = np.where(rng.random(300) < 0.5, near, random(name, rng, 300)).astype(dtype)
    result = applied(f"fma.rn.{name}", name, a, b, c)
    exact = (
        Fraction(x) * Fraction(y) + Fraction(z)
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    )
    assert agrees(result, [nearest(x, dtype) for x in exact])


def test_fused_single_precision_is_not_rounded_to_double_precision_first():
    """1 + 2^-23 + 2^-24 (1 - 2^-46) is just below the middle of two numbers."""
    a, b, c = (
        np.array([x], np.float32) for x in (2.0**-24 * (1 + 2.0**-23), 1 - 2.0**-23, 1 + 2.0**-23)
    )
    twice = (a.astype(float) * b.astype(float) + c.astype(float)).astype(np.float32)
    assert twice[0] == 1 + 2.0**-22
    assert applied("fma.rn.f32", "f32", a, b, c)[0] == 1 + 2.0**-23


def test_fused_double_precision_keeps_what_a_product_loses():
    a, b, c = np.array([1 + 2.0**-52]), np.array([1 - 2.0**-52]), np.array([-1.0])
    assert (a * b + c)[0] == 0
    assert applied("fma.rn.f64", "f64", a, b, c)[0] == -(2.0**-104)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_signs(name):
    x, y = pairs(name)
    for opcode, result in ((f"neg.{name}", -x), (f"abs.{name}", np.abs(x))):
        value = applied(opcode, name, x)
        assert agrees(value, result)
        assert np.array_equal(np.signbit(value), np.signbit(result))
    value = applied(f"copysign.{name}", name, x, y)
    assert agrees(np.abs(value), np.abs(y))
    assert np.array_equal(np.signbit(value), np.signbit(x))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_extremes_pass_over_what_is_no_number_and_order_zeros(name):
    a, b = pairs(name)
    for what, choose, signed in (("min", min, np.logical_or), ("max", max, np.logical_and)):
        value = applied(f"{what}.{name}", name, a, b)
        expected = [
            y if math.isnan(x) else x if math.isnan(y) else choose(x, y)
            for x, y in zip(a.tolist(), b.tolist(), strict=True)
        ]
        assert agrees(value, expected)
        zeros = (a == 0) & (b == 0)
        signs = signed(np.signbit(a), np.signbit(b))
        assert np.array_equal(np.signbit(value[zeros]), signs[zeros])
        none = np.isnan(value)
        bits = value[none].view(f"u{value.itemsize}")
        assert none.any()
        assert {*bits.tolist()} == {2**31 - 1 if name == "f32" else 2**63 - 1}


ORDERED = {
    "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
}  # fmt: skip


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("unordered", [False, True])
def test_comparisons_of_floats(name, unordered):
    a, b = pairs(name)
    each = [*zip(a.tolist(), b.tolist(), strict=True)]
    nan = [math.isnan(x) or math.isnan(y) for x, y in each]
    for what, compare in ORDERED.items():
        opcode = f"setp.{what}{'u' if unordered else ''}.{name}"
        expected = [unordered if none else compare(*x) for x, none in zip(each, nan, strict=True)]
        assert applied(opcode, "pred", a, b).tolist() == expected
    opcode = f"setp.{'nan' if unordered else 'num'}.{name}"
    assert applied(opcode, "pred", a, b).tolist() == [x == unordered for x in nan]


def integer_pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    values = INTEGERS[name]
    a, b = np.meshgrid(values, values)
    return a.ravel(), b.ravel()


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)


@pytest.mark.parametrize("name", INTEGERS)
def test_arithmetic_of_integers(name):
    a, b = integer_pairs(name)
    each, bits = [*zip(a.tolist(), b.tolist(), strict=True)], int(name[1:])
    cases = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul.lo": lambda x, y: x * y,
        "mul.hi": lambda x, y: (x * y) >> bits,
        "min": min,
        "max": max,
    }
    for what, exact in cases.items():
        result = applied(f"{what}.{name}", name, a, b).tolist()
        assert result == wrapped([exact(*x) for x in each], name)
    c = a[::-1].copy()
    result = applied(f"mad.lo.{name}", name, a, b, c).tolist()
    three = zip(each, c.tolist(), strict=True)
    assert result == wrapped([x * y + z for (x, y), z in three], name)


@pytest.mark.parametrize("name", INTEGERS)
def test_division_of_integers_is_towards_zero(name):
    a, b = integer_pairs(name)
    # The quotient of the least integer by -1 does not exist.
    defined = (b != 0) & ((a != np.iinfo(a.dtype).min) | (b.astype(np.int64) != -1))
    a, b = a[defined], b[defined]
    each = [*zip(a.tolist(), b.tolist(), strict=True)]
    assert applied(f"div.{name}", name, a, b).tolist() == [truncated(*x) for x in each]
    rest = [x - y * truncated(x, y) for x, y in each]
    assert applied(f"rem.{name}", name, a, b).tolist() == rest


@pytest.mark.parametrize("name", ["s16", "u16", "s32", "u32"])
def test_wide_products(name):
    a, b = integer_pairs(name)
    wide = f"{name[0]}{2 * int(name[1:])}"
    each = zip(a.tolist(), b.tolist(), strict=True)
    result = applied(f"mul.wide.{name}", wide, a, b)
    assert result.tolist() == [x * y for x, y in each]
    assert applied(f"mad.wide.{name}", wide, a, b, -result).tolist() == [0] * result.size


@pytest.mark.parametrize("name", INTEGERS)
def test_shifts_by_more_than_all_bits(name):
    values = INTEGERS[name]
    bits = int(name[1:])
    by = np.array([0, 1, bits - 1, bits, bits + 1, 200, 2**31, 2**32 - 1], np.uint32)
    a, n = (x.ravel() for x in np.meshgrid(values, by))
    each = [*zip(a.tolist(), n.tolist(), strict=True)]
    right = [x >> min(y, 80) for x, y in each]
    assert applied(f"shr.{name}", name, a, n).tolist() == right
    left = wrapped([x << min(y, 80) for x, y in each], name)
    assert applied(f"shl.b{bits}", name, a, n).tolist() == left


@pytest.mark.parametrize("name", INTEGERS)
def test_comparisons_of_integers(name):
    a, b = integer_pairs(name)
    unsigned = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"} if name[0] == "u" else {}
    for what, same in {**{x: x for x in ORDERED}, **unsigned}.items():
        expected = [ORDERED[same](*x) for x in zip(a.tolist(), b.tolist(), strict=True)]
        assert applied(f"setp.{what}.{name}", "pred", a, b).tolist() == expected


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_bits(bits):
    a, b = integer_pairs(f"u{bits}")
    for what, expected in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert np.array_equal(applied(f"{what}.b{bits}", f"u{bits}", a, b), expected)
    assert np.array_equal(applied(f"not.b{bits}", f"u{bits}", a), ~a)


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_of_bits_and_their_reverse(bits):
    a = INTEGERS[f"u{bits}"]
    texts = [f"{x:0{bits}b}" for x in a.tolist()]
    assert applied(f"clz.b{bits}", "u32", a).tolist() == [x.find("1") % (bits + 1) for x in texts]
    assert applied(f"popc.b{bits}", "u32", a).tolist() == [x.count("1") for x in texts]
    assert applied(f"brev.b{bits}", f"u{bits}", a).tolist() == [int(x[::-1], 2) for x in texts]


@pytest.mark.parametrize("name", ["s32", "u32", "s64", "u64"])
def test_fields_of_bits(name):
    bits, values = int(name[1:]), INTEGERS[name]
    edges = np.array([0, 1, 5, 31, 32, 33, 63, 64, 100, 256], np.uint32)
    a, start, length = (x.ravel() for x in np.meshgrid(values[4::2], edges, edges[::2]))

    def field(x: int, first: int, count: int) -> int:
        """Bit by bit, as the manual defines it."""
        first, count = first % 256, count % 256
        bit = lambda i: x >> i & 1  # noqa: E731
        none = name[0] == "u" or count == 0
        sign = 0 if none else bit(min(first + count - 1, bits - 1))
        each = [bit(first + i) if i < count and first + i < bits else sign for i in range(bits)]
        return sum(y << i for i, y in enumerate(each))

    each = zip(a.tolist(), start.tolist(), length.tolist(), strict=True)
    expected = wrapped([field(*x) for x in each], name)
    assert applied(f"bfe.{name}", name, a, start, length).tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_insertion_of_bits(bits):
    values, edges = INTEGERS[f"u{bits}"], np.array([0, 1, 7, 31, 32, 63, 64, 255], np.uint32)
    a, start, length = (x.ravel() for x in np.meshgrid(values[4:], edges, edges))
    b = np.roll(a, 3)

    def inserted(x: int, y: int, first: int, count: int) -> int:
        for i in range(count):
            if first + i < bits:
                y = y & ~(1 << first + i) | (x >> i & 1 if i < bits else 0) << first + i
        return y

    each = zip(a.tolist(), b.tolist(), start.tolist(), length.tolist(), strict=True)
    expected = [inserted(*x) for x in each]
    assert applied(f"bfi.b{bits}", f"u{bits}", a, b, start, length).tolist() == expected


def test_bytes_are_permuted():
    a, b = (np.full(6, x, np.uint32) for x in (0x33221100, 0x77665584))
    selector = np.array([0x3210, 0x7654, 0x0415, 0xFFFF, 0x000C, 0x8B42], np.uint32)
    # The numbers of the bytes in a and b are 0 to 3 and 4 to 7; 8 more repeats their sign.
    assert applied("prmt.b32", "u32", a, b, selector).tolist() == [
        0x33221100, 0x77665584, 0x00841155, 0x00000000, 0x000000FF, 0x00008422,
    ]  # fmt: skip


@pytest.mark.parametrize("way", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_funnel_shifts(way, mode):
    a, b, n = (
        np.array(x, np.uint32) for x in ([0x89ABCDEF] * 6, [0x01234567] * 6, [0, 1, 31, 32, 33, 99])
    )
    both = 0x0123456789ABCDEF

    def shifted(by: int) -> int:
        by = by % 32 if mode == "wrap" else min(by, 32)
        return (both << by >> 32 if way == "l" else both >> by) % 2**32

    expected = [shifted(x) for x in n.tolist()]
    assert applied(f"shf.{way}.{mode}.b32", "u32", a, b, n).tolist() == expected


def test_choices_by_predicates():
    a, b, p = np.arange(4.0), -np.arange(4.0), np.array([True, False, False, True])
    assert applied("selp.f64", "f64", a, b, p).tolist() == [0, -1, -2, 3]
    assert applied("and.pred", "pred", p, ~p).tolist() == [False] * 4
    assert applied("or.pred", "pred", p, ~p).tolist() == [True] * 4
    assert applied("xor.pred", "pred", p, p).tolist() == [False] * 4
    assert applied("not.pred", "pred", p).tolist() == (~p).tolist()
