"""Arithmetic of floating-point numbers, rounded to nearest."""

import numpy as np

from helpers.ptx.building import Builder, computed, elementwise
from helpers.ptx.fused import fused
from helpers.ptx.kinds import bits_kind, CANONICAL_NAN, FLOATS, kind
from helpers.ptx.operands import Operands, Step, Where


def _fused(name: str) -> Builder:
    def build(at: Operands) -> Step:
        target, *sources = at.expect(4)
        out = at.target(target, name)
        compute = fused(name, *(at.source(x, name) for x in sources))

        def step(where: Where) -> None:
            np.copyto(out, compute(where), where=where)

        return step

    return build


def _reciprocal(x: np.ndarray) -> np.ndarray:
    return x.dtype.type(1.0) / x


def _extreme(function: np.ufunc, join: np.ufunc, name: str):
    """Minimum or maximum: of a number and none the number, and -0 is less than 0."""
    bits = bits_kind(kind(name))
    nan = np.array(CANONICAL_NAN[name], bits).view(kind(name))[()]

    def compute(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        # Equal numbers have the same bits, but for the sign of zero.
        same = join(a.view(bits), b.view(bits)).view(a.dtype)
        result = np.where(a == b, same, function(a, b))
        return np.where(np.isnan(result), nan, result)

    return compute


def _table(name: str) -> dict[str, Builder]:
    least = _extreme(np.fmin, np.bitwise_or, name)
    largest = _extreme(np.fmax, np.bitwise_and, name)
    return {
        f"add.rn.{name}": elementwise(np.add, name),
        f"sub.rn.{name}": elementwise(np.subtract, name),
        f"mul.rn.{name}": elementwise(np.multiply, name),
        f"div.rn.{name}": elementwise(np.divide, name),
        f"sqrt.rn.{name}": elementwise(np.sqrt, name),
        f"rcp.rn.{name}": computed(_reciprocal, name, name),
        f"fma.rn.{name}": _fused(name),
        f"mad.rn.{name}": _fused(name),
        f"neg.{name}": elementwise(np.negative, name),
        f"abs.{name}": elementwise(np.absolute, name),
        # The sign of the first, the length of the second.
        f"copysign.{name}": computed(lambda a, b: np.copysign(b, a), name, name, name),
        f"min.{name}": computed(least, name, name, name),
        f"max.{name}": computed(largest, name, name, name),
    }


INSTRUCTIONS = {opcode: build for name in FLOATS for opcode, build in _table(name).items()}
