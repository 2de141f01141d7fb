"""Numbers that instructions are tried with: of all magnitudes, and at the edges of their types."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

TYPES = {"f32": np.float32, "f64": np.float64}
SPECIAL = [0.0, -0.0, 1.0, -1.5, 1 / 3, -math.pi, 1e30, math.inf, -math.inf, math.nan]
# Subnormal numbers, the least normal one, the largest one and their neighbours.
EDGES = {
    "f32": [1e-45, -3e-42, 2.0**-126, 2.0**-126 - 2.0**-149, 3.4028234663852886e38, 1e-20],
    "f64": [5e-324, -3e-320, 2.0**-1022, 2.0**-1022 - 2.0**-1074, 1.7976931348623157e308, 1e-160],
}


def numbers(name: str) -> np.ndarray:
    return np.array([*SPECIAL, *EDGES[name]], TYPES[name])


def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
    a, b = zip(*product(numbers(name), repeat=2), strict=True)
    return np.array(a, TYPES[name]), np.array(b, TYPES[name])


def random(name: str, rng, count: int) -> np.ndarray:
    """Numbers of all magnitudes."""
    bits = rng.integers(0, 2**63, count, dtype=np.uint64)
    x = bits.view(np.float64) if name == "f64" else bits.view(np.uint32)[::2].view(np.float32)
    return np.where(np.isfinite(x), x, 1).astype(TYPES[name])


def agrees(result: np.ndarray, expected: Sequence[float] | np.ndarray) -> bool:
    """Equal, none where none is expected."""
    return np.array_equal(result, np.array(expected, result.dtype), equal_nan=True)


INTEGERS = {
    name: np.array([0, 1, 2, 3, 7, 31, 32, 100, *top], dtype)
    for name, dtype, top in (
        ("s16", np.int16, (-1, -2, -7, 2**15 - 1, -(2**15), -100)),
        ("u16", np.uint16, (2**15, 2**16 - 1, 2**16 - 7)),
        ("s32", np.int32, (-1, -2, -7, 2**31 - 1, -(2**31), -(10**9))),
        ("u32", np.uint32, (2**31, 2**32 - 1, 2**32 - 7, 10**9)),
        ("s64", np.int64, (-1, -2, -7, 2**63 - 1, -(2**63), 10**17, -(3**39))),
        ("u64", np.uint64, (2**63, 2**64 - 1, 2**64 - 7, 10**17, 3**40)),
    )
}


def wrapped(values: list[int], name: str) -> list[int]:
    """Integers as a type holds them."""
    bits = int(name[1:])
    below = [x % 2**bits for x in values]
    return below if name[0] == "u" else [x - 2**bits * (x >= 2 ** (bits - 1)) for x in below]
