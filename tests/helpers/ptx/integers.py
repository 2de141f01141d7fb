"""Arithmetic of integers, and of bits."""

from collections.abc import Callable

import numpy as np

from helpers.ptx.building import Builder, computed, elementwise
from helpers.ptx.errors import ThreadError
from helpers.ptx.kinds import BITS, INTEGERS, SIGNED
from helpers.ptx.operands import Operands, Step, Where

_HALF, _LOWER = np.uint64(32), np.uint64(0xFFFFFFFF)


def _double(name: str) -> str:
    """The type of twice the length."""
    return f"{name[0]}{2 * int(name[1:])}"


def high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The upper half of a product."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        product = a.astype(wide) * b.astype(wide)
        return (product >> wide.type(8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    result = _high(x, y)
    if a.dtype.kind == "i":
        result = result - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return result.view(a.dtype)


def _high(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of unsigned integers of 64 bits, by halves."""
    x0, x1, y0, y1 = x & _LOWER, x >> _HALF, y & _LOWER, y >> _HALF
    middle = x1 * y0 + ((x0 * y0) >> _HALF)
    other = x0 * y1 + (middle & _LOWER)
    return x1 * y1 + (middle >> _HALF) + (other >> _HALF)


def _wide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    dtype = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(dtype) * b.astype(dtype)


def quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Rounded towards zero."""
    down = a // b
    return down + ((down * b != a) & ((a < 0) != (b < 0)))


def _division(function: Callable, name: str) -> Builder:
    """Division, which is undefined where the divisor is zero."""

    def build(at: Operands) -> Step:
        target, dividend, divisor = at.expect(3)
        out, a, b = at.target(target, name), at.source(dividend, name), at.source(divisor, name)

        def step(where: Where) -> None:
            zero = (b == 0) & where
            if zero.any():
                raise ThreadError(int(np.argmax(zero)), "divides an integer by zero")
            np.copyto(out, function(a, np.where(where, b, 1).astype(b.dtype)), where=where)

        return step

    return build


def _shift(function: np.ufunc):
    """NumPy shifts by more bits than there are as PTX does: to zero, or to the sign."""

    def compute(a: np.ndarray, by: np.ndarray) -> np.ndarray:
        return function(a, np.minimum(by, 64).astype(a.dtype))

    return compute


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    bits, count = 8 * x.dtype.itemsize, np.zeros(x.shape, np.uint32)
    for i in range(bits):
        count += (x >> x.dtype.type(i)) == 0
    return count


def _reversed(x: np.ndarray) -> np.ndarray:
    bits, result, one = 8 * x.dtype.itemsize, np.zeros_like(x), x.dtype.type(1)
    for i in range(bits):
        result |= ((x >> x.dtype.type(i)) & one) << x.dtype.type(bits - 1 - i)
    return result


def _funnel(left: bool, wrap: bool):
    """The upper half of two registers of 32 bits shifted left, or the lower one, right."""

    def compute(low: np.ndarray, up: np.ndarray, by: np.ndarray) -> np.ndarray:
        count = (by & np.uint32(31) if wrap else np.minimum(by, 32)).astype(np.uint64)
        both = (up.astype(np.uint64) << _HALF) | low
        return ((both << count) >> _HALF if left else both >> count).astype(np.uint32)

    return compute


def _permuted(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """Bytes of two registers, chosen by four numbers; the upper bit of one repeats the sign."""
    both = (b.astype(np.uint64) << _HALF) | a
    result = np.zeros_like(a)
    for i in range(4):
        choice = (selector >> np.uint32(4 * i)) & np.uint32(15)
        byte = ((both >> (8 * (choice & np.uint32(7))).astype(np.uint64)) & np.uint64(255)).astype(
            np.uint32
        )
        sign = np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0))
        result |= np.where(choice & np.uint32(8), sign, byte) << np.uint32(8 * i)
    return result


def _field(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Bits from a place on; of a signed type with the sign of the last one that exists."""
    bits, size = 8 * a.dtype.itemsize, a.dtype.type
    first, count = ((x & np.uint32(255)).astype(np.int64) for x in (start, length))
    end = np.minimum(first + count, bits)
    up = np.clip(bits - end, 0, bits).astype(a.dtype)
    down = np.clip(up.astype(np.int64) + first, 0, 64).astype(a.dtype)
    result = np.right_shift(np.left_shift(a, up), down)
    beyond = np.right_shift(a, size(bits - 1)) if a.dtype.kind == "i" else size(0)
    return np.where(count == 0, size(0), np.where(first >= bits, beyond, result))


def _inserted(a: np.ndarray, b: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """The first bits of `a` put at a place of `b`."""
    dtype = a.dtype
    first, count = ((x & np.uint32(255)).astype(dtype) for x in (start, length))
    ones = ~np.left_shift(~dtype.type(0), count)
    mask = np.left_shift(ones, first)
    return (b & ~mask) | (np.left_shift(a, first) & mask)


def _arithmetic(name: str) -> dict[str, Builder]:
    table = {
        f"add.{name}": elementwise(np.add, name),
        f"sub.{name}": elementwise(np.subtract, name),
        f"mul.lo.{name}": elementwise(np.multiply, name),
        f"mul.hi.{name}": computed(high, name, name, name),
        f"mad.lo.{name}": computed(lambda a, b, c: a * b + c, *[name] * 4),
        f"mad.hi.{name}": computed(lambda a, b, c: high(a, b) + c, *[name] * 4),
        f"min.{name}": elementwise(np.minimum, name),
        f"max.{name}": elementwise(np.maximum, name),
        f"div.{name}": _division(quotient, name),
        f"rem.{name}": _division(lambda a, b: a - quotient(a, b) * b, name),
        f"shr.{name}": computed(_shift(np.right_shift), name, name, "u32"),
    }
    if not name.endswith("64"):
        wide = _double(name)
        table[f"mul.wide.{name}"] = computed(_wide, wide, name, name)
        table[f"mad.wide.{name}"] = computed(
            lambda a, b, c: _wide(a, b) + c, wide, name, name, wide
        )
    if name in SIGNED:
        table[f"neg.{name}"] = elementwise(np.negative, name)
        table[f"abs.{name}"] = elementwise(np.absolute, name)
    if not name.endswith("16"):
        table[f"bfe.{name}"] = computed(_field, name, name, "u32", "u32")
    return table


def _bits(name: str) -> dict[str, Builder]:
    table = {
        f"and.{name}": elementwise(np.bitwise_and, name),
        f"or.{name}": elementwise(np.bitwise_or, name),
        f"xor.{name}": elementwise(np.bitwise_xor, name),
        f"not.{name}": elementwise(np.bitwise_not, name),
        f"shl.{name}": computed(_shift(np.left_shift), name, name, "u32"),
        f"shr.{name}": computed(_shift(np.right_shift), name, name, "u32"),
    }
    if name != "b16":
        table[f"clz.{name}"] = computed(_leading_zeros, "u32", name)
        table[f"popc.{name}"] = computed(
            lambda x: np.bitwise_count(x).astype(np.uint32), "u32", name
        )
        table[f"brev.{name}"] = computed(_reversed, name, name)
        table[f"bfi.{name}"] = computed(_inserted, name, name, name, "u32", "u32")
    return table


INSTRUCTIONS = {
    **{opcode: build for x in INTEGERS for opcode, build in _arithmetic(x).items()},
    **{opcode: build for x in BITS for opcode, build in _bits(x).items()},
    "and.pred": elementwise(np.logical_and, "pred"),
    "or.pred": elementwise(np.logical_or, "pred"),
    "xor.pred": elementwise(np.logical_xor, "pred"),
    "not.pred": elementwise(np.logical_not, "pred"),
    "prmt.b32": computed(_permuted, "b32", "b32", "b32", "b32"),
    **{
        f"shf.{way}.{mode}.b32": computed(
            _funnel(way == "l", mode == "wrap"), "b32", "b32", "b32", "u32"
        )
        for way in "lr"
        for mode in ("wrap", "clamp")
    },
}
