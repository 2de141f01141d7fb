"""The scalar operations that kernels are made of, and what they do to numbers."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Operation(NamedTuple):
    """A scalar operation.

    Args:
        evaluate: what it does to NumPy numbers.
        boolean: whether the result is a truth value.
        commutative: whether two arguments may change places.
    """

    evaluate: Callable
    boolean: bool = False
    commutative: bool = False


def _sign(x):
    # NumPy's loses the sign of zero, which JAX keeps.
    return x if x == 0 else np.sign(x)


def _single(x):
    # Subnormal numbers become zeros, as under XLA.
    rounded = np.float32(x)
    zero = np.copysign(np.float32(0), rounded)
    return np.float64(np.where(np.abs(rounded) < np.finfo(np.float32).tiny, zero, rounded))


def _erf(x):
    # SciPy's takes longer to import than the rest of the package.
    return np.float64(math.erf(x))


OPERATIONS: dict[str, Operation] = {
    "add": Operation(np.add, commutative=True),
    "sub": Operation(np.subtract),
    "mul": Operation(np.multiply, commutative=True),
    "div": Operation(np.divide),
    "neg": Operation(np.negative),
    "abs": Operation(np.abs),
    "sign": Operation(_sign),
    "max": Operation(np.maximum, commutative=True),
    "min": Operation(np.minimum, commutative=True),
    "rem": Operation(np.fmod),
    "floor": Operation(np.floor),
    "ceil": Operation(np.ceil),
    "rint": Operation(np.rint),
    "sqrt": Operation(np.sqrt),
    "sin": Operation(np.sin),
    "cos": Operation(np.cos),
    "tan": Operation(np.tan),
    "asin": Operation(np.arcsin),
    "acos": Operation(np.arccos),
    "atan": Operation(np.arctan),
    "atan2": Operation(np.arctan2),
    "sinh": Operation(np.sinh),
    "cosh": Operation(np.cosh),
    "tanh": Operation(np.tanh),
    "asinh": Operation(np.arcsinh),
    "acosh": Operation(np.arccosh),
    "atanh": Operation(np.arctanh),
    "exp": Operation(np.exp),
    "expm1": Operation(np.expm1),
    "log": Operation(np.log),
    "log1p": Operation(np.log1p),
    "pow": Operation(np.power),
    "cbrt": Operation(np.cbrt),
    "erf": Operation(_erf),
    # The nearest number of single precision, in programs of double precision.
    "single": Operation(_single),
    "lt": Operation(np.less, boolean=True),
    "le": Operation(np.less_equal, boolean=True),
    "eq": Operation(np.equal, boolean=True, commutative=True),
    "ne": Operation(np.not_equal, boolean=True, commutative=True),
    "and": Operation(np.logical_and, boolean=True, commutative=True),
    "or": Operation(np.logical_or, boolean=True, commutative=True),
    "xor": Operation(np.logical_xor, boolean=True, commutative=True),
    "not": Operation(np.logical_not, boolean=True),
    "is_finite": Operation(np.isfinite, boolean=True),
    # Condition, then the value where it is true, then the other.
    "select": Operation(np.where),
}

# Elementary functions of one number that vector instructions compute without a branch.
STRAIGHT_LINES = (
    "exp", "expm1", "sinh", "cosh", "tanh", "erf", "log", "log1p", "asinh", "acosh", "atanh",
    "atan", "asin", "acos", "cbrt",
)  # fmt: skip
