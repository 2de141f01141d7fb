"""The scalar operations that kernels are made of, a row each."""

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.llvm.mathematics import (
    exponential,
    inverse_trigonometric,
    logarithmic,
    powers,
    remainders,
    trigonometric,
)
from jaxdae.kernels.llvm.mathematics.limits import Limited


class Operation(NamedTuple):
    """A scalar operation; its derivative is JAX's, which a function has before it is traced.

    Args:
        evaluate: what it does to NumPy's numbers.
        portable: what it does to arrays of JAX.
        vector: what it does to `Register`s of LLVM; a `Limited` one sees to large arguments apart.
        function: whether kernels call it as a function, and do not have it written in place.
        boolean: whether the result is a boolean.
        commutative: whether two arguments may change places.
        primitive: whether JAX has a primitive of its name that does it to each entry.
        signs: arguments of which it reads the sign where they are zero.
        positive: whether a zero that it gives is a positive one, whatever the argument is.
    """

    evaluate: Callable[..., Any]
    portable: Callable[..., Any]
    vector: Callable[..., Any]
    function: bool = False
    boolean: bool = False
    commutative: bool = False
    primitive: bool = True
    signs: tuple[int, ...] = ()
    positive: bool = False

    @property
    def arguments(self) -> int:
        """How many a function takes."""
        return getattr(self.evaluate, "nin", 1)


def _intrinsic(name: str) -> Callable[..., Any]:
    return lambda x, *others: x.intrinsic(name, *others)


def _method(name: str) -> Callable[..., Any]:
    return lambda x, *others: getattr(x, name)(*others)


def _sign(x):
    # NumPy's loses the sign of zero, which JAX keeps.
    return x if x == 0 else np.sign(x)


def _single(x):
    # Subnormal numbers become zeros, as under XLA.
    rounded = np.float32(x)
    zero = np.copysign(np.float32(0), rounded)
    return np.float64(np.where(np.abs(rounded) < np.finfo(np.float32).tiny, zero, rounded))


def _portable_single(x):
    return jnp.asarray(x, jnp.float32).astype(jnp.result_type(x))


def _erf(x):
    # SciPy's takes longer to import than the rest of the package.
    return np.float64(math.erf(x))


def _logical(evaluate, portable, vector, commutative=True) -> Operation:
    return Operation(evaluate, portable, vector, boolean=True, commutative=commutative)


def _function(evaluate, portable, vector, **more) -> Operation:
    return Operation(evaluate, portable, vector, function=True, **more)


OPERATIONS: dict[str, Operation] = {
    "add": Operation(np.add, jnp.add, operator.add, commutative=True),
    "sub": Operation(np.subtract, jnp.subtract, operator.sub),
    "mul": Operation(np.multiply, jnp.multiply, operator.mul, commutative=True),
    "div": Operation(np.divide, jnp.divide, operator.truediv, signs=(1,)),
    "neg": Operation(np.negative, jnp.negative, operator.neg),
    "abs": Operation(np.abs, jnp.abs, abs, positive=True),
    "sign": Operation(_sign, jnp.sign, _method("sign")),
    "max": Operation(np.maximum, jnp.maximum, _intrinsic("maximum"), commutative=True),
    "min": Operation(np.minimum, jnp.minimum, _intrinsic("minimum"), commutative=True),
    "floor": Operation(np.floor, jnp.floor, _intrinsic("floor")),
    "ceil": Operation(np.ceil, jnp.ceil, _intrinsic("ceil")),
    "rint": Operation(np.rint, jnp.rint, _intrinsic("rint"), primitive=False),
    "sqrt": Operation(np.sqrt, jnp.sqrt, _intrinsic("sqrt")),
    # The nearest number of single precision, in programs of double precision.
    "single": Operation(_single, _portable_single, _method("single"), primitive=False),
    "rem": _function(np.fmod, jax.lax.rem, remainders.REM),
    "sin": _function(np.sin, jnp.sin, trigonometric.SIN),
    "cos": _function(np.cos, jnp.cos, trigonometric.COS, positive=True),
    "tan": _function(np.tan, jnp.tan, trigonometric.TAN),
    "asin": _function(np.arcsin, jnp.arcsin, inverse_trigonometric.asin),
    "acos": _function(np.arccos, jnp.arccos, inverse_trigonometric.acos, positive=True),
    "atan": _function(np.arctan, jnp.arctan, inverse_trigonometric.atan),
    "atan2": _function(np.arctan2, jnp.arctan2, inverse_trigonometric.atan2, signs=(0, 1)),
    "sinh": _function(np.sinh, jnp.sinh, exponential.sinh),
    "cosh": _function(np.cosh, jnp.cosh, exponential.cosh, positive=True),
    "tanh": _function(np.tanh, jnp.tanh, exponential.tanh),
    "asinh": _function(np.arcsinh, jnp.arcsinh, logarithmic.asinh),
    "acosh": _function(np.arccosh, jnp.arccosh, logarithmic.acosh),
    "atanh": _function(np.arctanh, jnp.arctanh, logarithmic.atanh),
    "exp": _function(np.exp, jnp.exp, exponential.exp, positive=True),
    "expm1": _function(np.expm1, jnp.expm1, exponential.expm1),
    "log": _function(np.log, jnp.log, logarithmic.log, positive=True),
    "log1p": _function(np.log1p, jnp.log1p, logarithmic.log1p),
    "pow": _function(np.power, jnp.power, powers.pow, signs=(0,)),
    "cbrt": _function(np.cbrt, jnp.cbrt, powers.cbrt),
    "erf": _function(_erf, jax.lax.erf, exponential.erf),
    "lt": _logical(np.less, jnp.less, operator.lt, commutative=False),
    "le": _logical(np.less_equal, jnp.less_equal, operator.le, commutative=False),
    "eq": _logical(np.equal, jnp.equal, _method("equals")),
    "ne": _logical(np.not_equal, jnp.not_equal, _method("differs")),
    "and": _logical(np.logical_and, jnp.logical_and, operator.and_),
    "or": _logical(np.logical_or, jnp.logical_or, operator.or_),
    "xor": _logical(np.logical_xor, jnp.logical_xor, operator.xor),
    "not": _logical(np.logical_not, jnp.logical_not, operator.invert, commutative=False),
    "is_finite": _logical(np.isfinite, jnp.isfinite, _method("is_finite"), commutative=False),
    # Condition, then the value where it is true, then the other.
    "select": Operation(np.where, jnp.where, _method("choose"), primitive=False),
}

# Functions of one number that vector instructions compute without a branch.
STRAIGHT_LINES = tuple(
    name
    for name, x in OPERATIONS.items()
    if x.function and x.arguments == 1 and not isinstance(x.vector, Limited)
)
