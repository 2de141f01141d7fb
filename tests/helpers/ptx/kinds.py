"""Types of PTX as types of NumPy, and its literals."""

import re
from typing import Any

import numpy as np

from helpers.ptx.errors import PtxError

KINDS = {
    "pred": np.dtype(np.bool_),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{x}{bits}": np.dtype(f"u{bits // 8}") for x in "bu" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
}
FLOATS = ("f32", "f64")
# Kinds of integers that instructions compute with.
SIGNED, UNSIGNED = ("s16", "s32", "s64"), ("u16", "u32", "u64")
INTEGERS = (*SIGNED, *UNSIGNED)
BITS = ("b16", "b32", "b64")
# The NaN that an instruction makes of none.
CANONICAL_NAN = {"f32": 0x7FFFFFFF, "f64": 0x7FFFFFFFFFFFFFFF}

_FLOAT_BITS = re.compile(r"0([fF][0-9a-fA-F]{8}|[dD][0-9a-fA-F]{16})")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)U?")


def kind(name: str) -> np.dtype:
    """The type of NumPy."""
    if name not in KINDS:
        raise PtxError(f"unknown type .{name}")
    return KINDS[name]


def bits_kind(dtype: np.dtype) -> np.dtype:
    """Unsigned integers as wide as a type."""
    return dtype if dtype == np.bool_ else np.dtype(f"u{dtype.itemsize}")


def literal(text: str, dtype: np.dtype) -> Any:
    """A number as it is written, as a type: a float by its bits, or an integer.

    Where floats are computed with, a literal is one of the same length; where bits are moved, so
    long a literal of either sort.
    """
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if _FLOAT_BITS.fullmatch(digits) and sign == 1:
        size = 4 if digits[1] in "fF" else 8
        if dtype.itemsize == size and dtype.kind in "fu":
            return np.array(int(digits[2:], 16), f"u{size}").view(dtype)[()]
    elif _INTEGER.fullmatch(digits) and dtype.kind != "f":
        value = sign * int(digits.rstrip("U"), 0)
        if dtype == np.bool_:
            return np.bool_(value != 0)
        if -(2 ** (8 * dtype.itemsize - 1)) <= value < 2 ** (8 * dtype.itemsize):
            unsigned = np.array(value % 2 ** (8 * dtype.itemsize), bits_kind(dtype))
            return unsigned.view(dtype)[()]
    raise PtxError(f"{text} is no literal of type {dtype.name}")
