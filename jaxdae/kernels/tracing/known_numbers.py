"""Primitives on numbers that are known while a program is traced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing import parameters
from jaxdae.kernels.tracing.data_movement import MOVEMENTS

# What NumPy does to the last bit as JAX; each shape of a primitive that JAX does itself is
# compiled first, which takes longer than all the rest.
_EXACT = ("add", "sub", "mul", "neg", "max", "min", "lt", "le", "eq", "ne")
_OTHERS: dict[str, Callable] = {"add_any": np.add, "gt": np.greater, "ge": np.greater_equal}
_LOGICAL = ("and", "or", "xor", "not")


def on_host(equation, values: list) -> list[Any]:
    """Results of an equation whose arguments are all known."""
    name, params = equation.primitive.name, equation.params
    if not all(isinstance(x, np.ndarray) for x in values):
        return _by_jax(equation.primitive, values, params)
    if name in MOVEMENTS and parameters.understood(name, params):
        results = MOVEMENTS[name](*values, **params)
        return results if equation.primitive.multiple_results else [results]
    result = _by_numpy(name, params, values)
    return _by_jax(equation.primitive, values, params) if result is None else [result]


def _by_numpy(name: str, params, values):
    with np.errstate(all="ignore"):
        exact = name in _EXACT and all(_plain(x) for x in values)
        if exact or (name in _LOGICAL and all(x.dtype == np.bool_ for x in values)):
            return np.asarray(OPERATIONS[name].evaluate(*values))
        if name in _OTHERS and all(_plain(x) for x in values):
            return np.asarray(_OTHERS[name](*values))
        if name == "div" and all(x.dtype.kind == "f" for x in values):
            return np.asarray(np.divide(*values))
        if name == "integer_pow" and params["y"] == 2 and _plain(values[0]):
            return np.asarray(values[0] * values[0])
        if name == "iota":
            return _iota(**params)
        if name == "convert_element_type" and _keeps(values[0], params["new_dtype"]):
            return values[0].astype(params["new_dtype"])
        if name == "select_n" and values[0].dtype == np.bool_:
            return np.where(values[0], values[2], values[1])
    return None


def _plain(x) -> bool:
    return x.dtype.kind in "fiu"


def _keeps(x, dtype) -> bool:
    """Not the conversions of NaN and of numbers too large, which processors do differently."""
    dtype = jnp.dtype(dtype)
    simple = dtype.kind in "fiub" and x.dtype.kind in "fiub"
    return simple and not (x.dtype.kind == "f" and dtype.kind in "iu")


def _iota(*, dtype, shape, dimension, **_):
    ones = [1] * len(shape)
    ones[dimension] = -1
    return np.broadcast_to(np.arange(shape[dimension], dtype=dtype).reshape(ones), shape)


def _by_jax(primitive, values, params) -> list[Any]:
    with jax.ensure_compile_time_eval():
        results: Any = primitive.bind(*map(jnp.asarray, values), **params)
    return [known(x) for x in (results if primitive.multiple_results else [results])]


def known(x, dtype=None) -> Any:
    """Numbers as NumPy's, keys of random numbers as they are."""
    keys = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if keys else np.asarray(x, dtype)
