"""Programs of JAX computed by NumPy, one equation after the other, without compiling them.

That takes some ten microseconds for each equation, where XLA takes half a millisecond to compile
it: of what is computed a few times only, as in a first run, compiling would be most of the time.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxdae.primitives import parameters
from jaxdae.primitives.entries import clips, matrices, MOVEMENTS, start_of_slice, Windows
from jaxdae.primitives.parameters import CALLED, Refusal, scan_sizes

# More equations than these, loops turn by turn, are compiled.
_MOST = 60_000


class NotInterpretedError(Exception):
    """A program that XLA has to compile: NumPy has no counterpart of something, or it is long."""


def interpreted(closed: Any, arguments: list) -> list[np.ndarray]:
    """Results of a program, to round-off those of the compiled one.

    Args:
        closed: of JAX, with its constants.
        arguments: arrays, one for each of its inputs.

    Raises:
        NotInterpretedError: for what is left to XLA.
    """
    try:
        kinds = [x.dtype for x in closed.in_avals]
        if any(jnp.issubdtype(x, jax.dtypes.extended) for x in kinds):
            raise Refusal("keys of random numbers are JAX's own")
        given = [np.asarray(x, kind) for x, kind in zip(arguments, kinds, strict=True)]
        with np.errstate(all="ignore"):
            return _Interpreter().results(closed, given)
    except Refusal as reason:
        raise NotInterpretedError(str(reason)) from None


class _Interpreter:
    """What goes through the equations of one call, and counts them."""

    def __init__(self):
        self._left = _MOST

    def results(self, closed: Any, arguments: list) -> list:
        """Of a program."""
        jaxpr, fixed = (closed.jaxpr, closed.consts) if hasattr(closed, "jaxpr") else (closed, ())
        self._left -= len(jaxpr.eqns)
        if self._left < 0:
            raise Refusal(f"it has more than {_MOST} equations, loops turn by turn")
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, map(np.asarray, fixed), strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any):
            kind: Any = atom.aval
            literal = isinstance(atom, jex.Literal)
            return np.asarray(atom.val, kind.dtype) if literal else values[atom]

        for equation in jaxpr.eqns:
            found = self._computed(equation, [read(x) for x in equation.invars])
            values.update(zip(equation.outvars, found, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def _computed(self, equation, arguments: list) -> list:
        name, params = equation.primitive.name, equation.params
        if equation.effects:
            raise Refusal(f"{name} has effects")
        loop = _LOOPS.get(name)
        if name in CALLED or loop is not None or name == "platform_index":
            parameters.check(name, params)
        if name in CALLED:
            return self.results(params[CALLED[name]], arguments)
        if loop is not None:
            return loop(self, params, arguments)
        if name == "platform_index":
            return [np.asarray(parameters.branch_of_processors(params), np.int32)]
        results = computed_by_numpy(equation, arguments, exactly=False)
        if results is None:
            raise Refusal(f"NumPy has no counterpart of {name}")
        return results

    def _scan(self, params, arguments: list) -> list:
        constants, carried = scan_sizes(params)
        fixed, carry = arguments[:constants], arguments[constants : constants + carried]
        columns, length = arguments[constants + carried :], params["length"]
        rows = []
        for i in range(length)[::-1] if params["reverse"] else range(length):
            found = self.results(params["jaxpr"], [*fixed, *carry, *(x[i, ...] for x in columns)])
            carry, kept = found[:carried], found[carried:]
            rows.append(kept)
        if not rows:
            kinds = params["jaxpr"].out_avals[carried:]
            return [*carry, *(np.zeros((0, *x.shape), x.dtype) for x in kinds)]
        ordered = rows[::-1] if params["reverse"] else rows
        return [*carry, *(np.stack(x) for x in zip(*ordered, strict=True))]

    def _while(self, params, arguments: list) -> list:
        tests, bodies = params["cond_nconsts"], params["body_nconsts"]
        of_test, of_body = arguments[:tests], arguments[tests : tests + bodies]
        carry = arguments[tests + bodies :]
        while True:
            (on,) = self.results(params["cond_jaxpr"], [*of_test, *carry])
            if not on.any():
                return carry
            after = self.results(params["body_jaxpr"], [*of_body, *carry])
            # Of a batch, entries for which the condition is false wait.
            where = [on.reshape(on.shape + (1,) * (x.ndim - on.ndim)) for x in carry]
            carry = [np.where(w, x, y) for w, x, y in zip(where, after, carry, strict=True)]

    def _cond(self, params, arguments: list) -> list:
        which, *given = arguments
        branches = params["branches"]
        return self.results(branches[min(max(int(which), 0), len(branches) - 1)], given)


_LOOPS: dict[str, Callable] = {
    "scan": _Interpreter._scan, "while": _Interpreter._while, "cond": _Interpreter._cond,
}  # fmt: skip


# Primitives.

# What NumPy does to the last bit as JAX, to numbers and to truth values.
_EXACT: dict[str, Callable] = {
    "abs": np.abs, "add": np.add, "add_any": np.add, "eq": np.equal, "ge": np.greater_equal,
    "gt": np.greater, "le": np.less_equal, "lt": np.less, "max": np.maximum, "min": np.minimum,
    "mul": np.multiply, "ne": np.not_equal, "neg": np.negative, "sub": np.subtract,
}  # fmt: skip
_LOGICAL: dict[str, Callable] = {
    "and": np.logical_and, "not": np.logical_not, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip


def computed_by_numpy(equation, values: list, *, exactly: bool = True) -> list[Any] | None:
    """Results of an equation by NumPy; `None` where it is not known how.

    Args:
        equation: of JAX.
        values: its arguments.
        exactly: whether to the last bit as JAX, which functions such as the sine are not.
    """
    name, params = equation.primitive.name, equation.params
    if not all(isinstance(x, np.ndarray) for x in values):
        return None
    if name in MOVEMENTS and _is_understood(name, params):
        results = MOVEMENTS[name](*values, **params)
        return results if equation.primitive.multiple_results else [results]
    result = None
    if name in _ARRAYS and _is_understood(name, params):
        result = _ARRAYS[name](equation, *values)
    result = _by_numpy(name, params, values) if result is None else result
    if result is None and not exactly and name in _ROUNDED and _is_understood(name, params):
        read = {x: params[x] for x in ("axes", "axis", "reverse", "y") if x in params}
        result = _ROUNDED[name](*values, **read)
    return None if result is None else [np.asarray(result, equation.outvars[0].aval.dtype)]


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
        if name in _EXACT and all(_plain(x) for x in values):
            return np.asarray(_EXACT[name](*values))
        if name in _LOGICAL and all(x.dtype == np.bool_ for x in values):
            return np.asarray(_LOGICAL[name](*values))
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


def _largest(x, *, axes):
    return np.max(x, axes, initial=_limits(x.dtype)[0])


def _least(x, *, axes):
    return np.min(x, axes, initial=_limits(x.dtype)[1])


def _limits(dtype) -> tuple:
    """Below and above all other numbers of a type."""
    if dtype.kind == "f":
        return -np.inf, np.inf
    if dtype.kind in "iu":
        return np.iinfo(dtype).min, np.iinfo(dtype).max
    if dtype.kind == "b":
        return False, True
    raise Refusal(f"NumPy has no limits of {dtype}")


def _remainder(x, y):
    """Of an integer and zero it is the integer itself."""
    return np.fmod(x, y) if x.dtype.kind == "f" else np.where(y == 0, x, np.fmod(x, y))


def _along(operation: Any) -> Callable:
    """Of a cumulative operation, from either end."""

    def along(x, *, axis, reverse):
        found = operation.accumulate(np.flip(x, axis) if reverse else x, axis)
        return np.flip(found, axis) if reverse else found

    return along


# What NumPy does to round-off as JAX, from the arrays and those of the parameters that are read.
_ROUNDED: dict[str, Callable] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1,
    "floor": np.floor,
    "integer_pow": lambda x, *, y: x**y if y >= 0 else 1.0 / x**-y,
    "log": np.log, "log1p": np.log1p,
    "logistic": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "pow": np.power, "reduce_max": _largest, "reduce_min": _least,
    "reduce_prod": lambda x, *, axes: np.prod(x, axes),
    "rem": _remainder,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sign": lambda x: np.where(x == 0, x, np.sign(x)),
    "sin": np.sin, "sinh": np.sinh,
    "square": lambda x: x * x,
    "tan": np.tan, "tanh": np.tanh,
    "cummax": _along(np.maximum), "cummin": _along(np.minimum), "cumprod": _along(np.multiply),
    "cumsum": _along(np.add),
}  # fmt: skip
