"""`a b + c` in instructions of their own, against exact rational numbers."""

import ctypes
import itertools
from fractions import Fraction

import llvmlite.binding as llvm
import numpy as np
import pytest

from jaxdae.kernels.export.fused_products import fused_double, fused_single
from jaxdae.kernels.llvm.module import LlvmModule
from jaxdae.kernels.llvm.writer import Writer

DOUBLE, SINGLE = np.float64, np.float32


@pytest.fixture(scope="module")
def fused():
    """The functions as machine code: `fused(a, b, c)` of arrays."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parts = [*fused_double(), *fused_single(), _loop("fma"), _loop("fmaf")]
    module = llvm.parse_assembly(LlvmModule(parts).text)
    machine = llvm.Target.from_default_triple().create_target_machine(opt=2, jit=True)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    pointers = [ctypes.c_void_p] * 4

    def call(*operands):
        operands = [np.ascontiguousarray(x) for x in operands]
        name = "each_fma" if operands[0].dtype == DOUBLE else "each_fmaf"
        function = ctypes.CFUNCTYPE(None, ctypes.c_int64, *pointers)
        result = np.empty_like(operands[0])
        arrays = (x.ctypes.data for x in (*operands, result))
        function(engine.get_function_address(name))(result.size, *arrays)
        return result

    return call


def _loop(name):
    w = Writer(dtype=SINGLE if name == "fmaf" else DOUBLE)
    with w.turns(0, "%n") as turns:
        places = [w.place(w.scalar, x, turns.index) for x in ("%a", "%b", "%c", "%r")]
        given = [f"{w.scalar} {w.load(w.scalar, x)}" for x in places[:3]]
        w.store(w.scalar, w.invoke(w.scalar, name, *given), places[3])
    w.line("  ret void")
    return w.returned("void", f"each_{name}", "i64 %n, ptr %a, ptr %b, ptr %c, ptr %r")


def exact(a, b, c, dtype):
    """The nearest number to the exact result, of two that are as near the even one."""
    value = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    if value == 0:
        return dtype(a * b + c)
    info = np.finfo(dtype)
    mantissa = info.nmant + 1
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** max(exponent - mantissa + 1, int(info.minexp) - info.nmant)
    rounded = round(size / unit) * unit  # Python's, ties to even
    result = dtype(np.inf) if rounded > Fraction(float(info.max)) else dtype(float(rounded))
    return -result if value < 0 else result


def operands(rng, dtype, count):
    """Of all sizes, subnormal ones too; some sums cancel, some results lie between two numbers."""
    unsigned = np.uint64 if dtype == DOUBLE else np.uint32
    bits = rng.integers(0, np.iinfo(unsigned).max, (3, count), unsigned, endpoint=True)
    far = bits.view(dtype)
    near = rng.normal(size=(3, count)).astype(dtype)
    cancelled = near.copy()
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        cancelled[2] = -cancelled[0] * cancelled[1] * dtype(1 + np.finfo(dtype).eps)
        small = (near * dtype(2.0) ** (np.finfo(dtype).minexp // 2)).astype(dtype)
        small[2] = small[0] * dtype(0.5) ** np.arange(count).clip(0, 60).astype(dtype)
        gone = small.copy()
        gone[2] = -gone[0] * gone[1]
        few = np.round(near * 4).astype(dtype)
        few[2] = few[2] * dtype(np.finfo(dtype).eps)
    groups = np.concatenate([far, near, cancelled, small, gone, few], axis=1)
    return groups[:, np.isfinite(groups).all(axis=0)]


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_one_rounding(fused, rng, dtype):
    a, b, c = operands(rng, dtype, 300)
    with np.errstate(all="ignore"):
        expected = np.array([exact(*x, dtype) for x in zip(a, b, c, strict=True)], dtype)
    result = fused(a, b, c)
    kind = np.int64 if dtype == DOUBLE else np.int32
    np.testing.assert_array_equal(result.view(kind), expected.view(kind))


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_special_values(fused, dtype):
    """Zeros with signs, infinities and NaN: as where the product is exact."""
    values = [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]
    a, b, c = np.array(list(itertools.product(values, repeat=3)), dtype).T
    with np.errstate(invalid="ignore"):
        expected = a * b + c
    result = fused(a, b, c)
    np.testing.assert_array_equal(result, expected)
    real = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(result[real]), np.signbit(expected[real]))


@pytest.mark.parametrize("dtype", [DOUBLE, SINGLE])
def test_products_beyond_all_numbers_may_have_a_sum_within(fused, dtype):
    largest = np.finfo(dtype).max
    a, b = np.array([largest, largest], dtype), np.array([2.0, 2.0], dtype)
    c = np.array([-largest, -np.inf], dtype)
    np.testing.assert_array_equal(fused(a, b, c), np.array([largest, -np.inf], dtype))
    tiny = np.finfo(dtype).smallest_subnormal
    half = np.array([0.5, -0.5], dtype)
    zeros = fused(np.array([tiny, tiny]), half, np.array([0.0, 0.0], dtype))
    np.testing.assert_array_equal(np.signbit(zeros), [False, True])
    np.testing.assert_array_equal(zeros, 0.0)
