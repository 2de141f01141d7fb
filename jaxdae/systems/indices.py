"""Indices past the end of an array, which JAX takes for its last entry without a word."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from jaxdae.checks import are_known

# What indexing does with constants before it reads; anything else makes an index unknown.
_FOLDED: dict[str, Callable] = {
    "lt": lambda a, b: np.less(a, b),
    "add": lambda a, b: np.add(a, b),
    "select_n": lambda which, a, b: np.where(which, b, a),
    "convert_element_type": lambda a, new_dtype, **_: np.asarray(a).astype(new_dtype),
    "broadcast_in_dim": lambda a, shape, broadcast_dimensions, **_: _broadcast(
        a, shape, broadcast_dimensions
    ),
    "reshape": lambda a, new_sizes, **_: np.reshape(a, new_sizes),
    "squeeze": lambda a, dimensions, **_: np.squeeze(a, dimensions),
    "concatenate": lambda *a, dimension, **_: np.concatenate(a, dimension),
}
_CALLS = ("jit", "pjit", "closed_call", "eval_jaxpr")


class Clipped(NamedTuple):
    """An index that lies outside: its value, the length of the axis, and where it is read."""

    entry: int
    length: int
    traceback: Any

    def __str__(self):
        return (
            f"reads entry {self.entry} of {self.length} (they count from 0), for which JAX takes "
            "the nearest one there is"
        )


def clipped_index(program: ClosedJaxpr) -> Clipped | None:
    """The first constant index of a traced function that is outside of its array.

    Indices that are computed from the arguments are not known here. Those of `jnp.take` and
    `.at[…]` have modes of their own for what is outside, and are left to them.
    """
    return next(_clipped(program.jaxpr, _known(program.jaxpr.constvars, program.consts)), None)


def _known(variables, values) -> dict:
    pairs = zip(variables, values, strict=True)
    return {variable: np.asarray(x) for variable, x in pairs if _is_known(x)}


def _is_known(x) -> bool:
    if x is None or not are_known(x):
        return False
    # Keys of random numbers have a type of their own, which NumPy lacks.
    return not jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended)


def _clipped(jaxpr: Jaxpr, known: dict) -> Iterator[Clipped]:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        values = [x.val if isinstance(x, Literal) else known.get(x) for x in equation.invars]
        if name in ("dynamic_slice", "gather"):
            starts = _starts(equation, values)
            outside = None if starts is None else _outside(equation, *starts)
            if outside is not None:
                yield Clipped(*outside, equation.source_info.traceback)
        elif name in _FOLDED and all(x is not None for x in values):
            known[equation.outvars[0]] = _FOLDED[name](*values, **equation.params)
        yield from _inside(equation, values)


def _inside(equation, values) -> Iterator[Clipped]:
    """Of the programs that an equation calls; only plain calls pass their arguments as they are."""
    for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program):
        if isinstance(inner, ClosedJaxpr):
            known = _known(inner.jaxpr.constvars, inner.consts)
            if equation.primitive.name in _CALLS:
                known |= _known(inner.jaxpr.invars, values)
            yield from _clipped(inner.jaxpr, known)
        elif isinstance(inner, Jaxpr):
            yield from _clipped(inner, {})


def _is_program(x) -> bool:
    return isinstance(x, ClosedJaxpr | Jaxpr)


def _starts(equation, values):
    """Positions that are read from, one to a row, their axes, and how much is read there."""
    params = equation.params
    sizes = params["slice_sizes"]
    if equation.primitive.name == "dynamic_slice":
        starts = values[1:]
        axes = [i for i, x in enumerate(starts) if x is not None]
        if not axes:
            return None
        return np.array([[int(starts[i]) for i in axes]]), axes, [sizes[i] for i in axes]
    if values[1] is None or params["mode"] is not jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS:
        return None
    axes = params["dimension_numbers"].start_index_map
    return np.asarray(values[1]).reshape(-1, len(axes)), axes, [sizes[i] for i in axes]


def _outside(equation, starts, axes, sizes) -> tuple[int, int] | None:
    shape = equation.invars[0].aval.shape
    for row in starts:
        for start, axis, size in zip(row, axes, sizes, strict=True):
            if not 0 <= start <= shape[axis] - size:
                # JAX has added the length to a negative one.
                return int(start) - (start < 0) * shape[axis], shape[axis]
    return None


def _broadcast(a, shape, dimensions):
    a = np.asarray(a)
    sizes = [1] * len(shape)
    for axis, size in zip(dimensions, a.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(a.reshape(sizes), shape)
