"""Equations whose arguments are all known while a program is traced, computed at once.

By NumPy: each shape of a primitive that JAX computes itself is compiled first, which takes longer
than all the rest.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing import parameters
from jaxdae.kernels.tracing.arrays import Refusal
from jaxdae.kernels.tracing.indexing import (
    clips,
    matrices,
    MOVEMENTS,
    start_of_slice,
    Windows,
)

# What NumPy does to the last bit as JAX.
_EXACT = ("add", "sub", "mul", "neg", "abs", "max", "min", "lt", "le", "eq", "ne")
_OTHERS: dict[str, Callable] = {"add_any": np.add, "gt": np.greater, "ge": np.greater_equal}
_LOGICAL = ("and", "or", "xor", "not")


def computed(equation, values: list) -> list[Any]:
    """Results of an equation whose arguments are all known."""
    name, params = equation.primitive.name, equation.params
    if not all(isinstance(x, np.ndarray) for x in values):
        return _by_jax(equation.primitive, values, params)
    if name in MOVEMENTS and _is_understood(name, params):
        results = MOVEMENTS[name](*values, **params)
        return results if equation.primitive.multiple_results else [results]
    result = None
    if name in _ARRAYS and _is_understood(name, params):
        result = _ARRAYS[name](equation, *values)
    result = _by_numpy(name, params, values) if result is None else result
    return _by_jax(equation.primitive, values, params) if result is None else [np.asarray(result)]


def _product(equation, a, b):
    """A `dot_general`, as products of matrices."""
    (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    result = equation.outvars[0].aval
    if not (_plain(a) and _plain(b) and result.dtype.kind in "fiu"):
        return None
    a, b = (x.astype(result.dtype) for x in (a, b))
    columns = matrices(b, batch_right, right).transpose(0, 2, 1)
    return (matrices(a, batch_left, left) @ columns).reshape(result.shape)


def _sum(equation, x):
    result = equation.outvars[0].aval
    return np.sum(x, axis=equation.params["axes"], dtype=result.dtype) if _plain(x) else None


def _dynamic_slice(equation, x, *starts):
    return x[start_of_slice(starts, x.shape, equation.params["slice_sizes"])]


def _dynamic_update(equation, x, update, *starts):
    del equation
    result = x.copy()
    result[start_of_slice(starts, x.shape, update.shape)] = update
    return result


def _gather(equation, x, indices):
    params = equation.params
    layout = Windows.of_gather(x.shape, params)
    cells = layout.windows(indices, clips(params["mode"]))
    found = x.ravel()[cells] if x.size else np.zeros(cells.shape, x.dtype)
    if (cells < 0).any():
        if x.dtype.kind != "f":
            return None
        fill = params["fill_value"]
        found = np.where(cells < 0, x.dtype.type(np.nan if fill is None else fill), found)
    return layout.arranged(found, params["dimension_numbers"].offset_dims)


def _scatter(equation, x, indices, updates):
    name, params = equation.primitive.name, equation.params
    if name == "scatter" and params.get("update_jaxpr") is not None:
        return None
    layout = Windows.of_scatter(x.shape, updates.shape, params)
    cells = layout.windows(indices, clips(params["mode"]))
    inside = cells >= 0
    windows = layout.unarranged(updates, params["dimension_numbers"].update_window_dims)
    result = x.ravel().copy()
    if name == "scatter":
        result[cells[inside]] = windows[inside]
    else:
        np.add.at(result, cells[inside], windows[inside])
    return result.reshape(x.shape)


_ARRAYS: dict[str, Callable] = {
    "dot_general": _product, "reduce_sum": _sum, "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update, "gather": _gather, "scatter": _scatter,
    "scatter-add": _scatter,
}  # fmt: skip


def _is_understood(name: str, params) -> bool:
    try:
        parameters.check(name, params)
    except Refusal:
        return False
    return True


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
        if name == "sqrt" and values[0].dtype.kind == "f":
            return np.sqrt(values[0])
        if name == "iota":
            return _iota(**params)
        if name == "is_finite":
            return np.isfinite(values[0])
        if name == "stop_gradient":
            return values[0]
        if name in ("reduce_or", "reduce_and") and values[0].dtype == np.bool_:
            return (np.any if name == "reduce_or" else np.all)(values[0], axis=params["axes"])
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
        results: Any = primitive.bind(*map(jax.device_put, values), **params)
    return [known(x) for x in (results if primitive.multiple_results else [results])]


def known(x, dtype=None) -> Any:
    """Numbers as NumPy's, keys of random numbers as they are."""
    keys = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if keys else np.asarray(x, dtype)
