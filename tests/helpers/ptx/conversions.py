"""Conversions between types."""

import numpy as np

from helpers.ptx.building import Builder
from helpers.ptx.kinds import FLOATS, kind
from helpers.ptx.operands import Operands, Step, Where

_TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_INTEGERS = tuple(f"{x}{bits}" for x in "su" for bits in (8, 16, 32, 64))


def _converted(function, target: str, source: str) -> Builder:
    def build(at: Operands) -> Step:
        result, operand = at.expect(2)
        read, write = at.cut(operand, source), at.extended(result, target)

        def step(where: Where) -> None:
            write(function(read()), where)

        return step

    return build


def _cast(target: str):
    dtype = kind(target)
    return lambda x: x.astype(dtype)


def _clamped(round_: np.ufunc, target: str, source: str):
    """To an integer, the nearest one that exists; where there is no number, as PTX says."""
    dtype, limits = kind(target), np.iinfo(kind(target))
    # The first one beyond, which is a float: the largest integer itself may not be.
    beyond = kind(source).type(2.0 ** (limits.bits - (dtype.kind == "i")))
    zero = source != "f64" and not target.endswith("64")
    nan = 0 if zero else (limits.min or 2 ** (limits.bits - 1))

    def compute(x: np.ndarray) -> np.ndarray:
        y = round_(x)
        inside = (y >= limits.min) & (y < beyond)
        result = np.where(inside, y, 0).astype(dtype)
        result = np.where(y >= beyond, dtype.type(limits.max), result)
        result = np.where(y < limits.min, dtype.type(limits.min), result)
        return np.where(np.isnan(y), dtype.type(nan), result)

    return compute


def _pairs(targets, sources):
    return [(x, y) for x in targets for y in sources]


INSTRUCTIONS = {
    **{f"cvt.{x}.{y}": _converted(_cast(x), x, y) for x, y in _pairs(_INTEGERS, _INTEGERS)},
    # One rounding to nearest, by the processor.
    **{f"cvt.rn.{x}.{y}": _converted(_cast(x), x, y) for x, y in _pairs(FLOATS, _INTEGERS)},
    "cvt.rn.f32.f64": _converted(_cast("f32"), "f32", "f64"),
    "cvt.f64.f32": _converted(_cast("f64"), "f64", "f32"),
    **{
        f"cvt.{mode}.{x}.{y}": _converted(_clamped(function, x, y), x, y)
        for mode, function in _TO_INTEGER.items()
        for x, y in _pairs(_INTEGERS, FLOATS)
    },
    **{
        f"cvt.{mode}.{x}.{x}": _converted(function, x, x)
        for mode, function in _TO_INTEGER.items()
        for x in FLOATS
    },
}
