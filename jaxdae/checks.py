"""Checks of values: made where these are known, left out where JAX traces them."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

P = ParamSpec("P")
T = TypeVar("T")
_OUTSIDE = get_opaque_trace_state()
# What an examination asks of the runs inside of a function, `jaxdae/diagnosis/observation.py`; part
# of the keys by which JAX keeps programs. `None` outside of one.
EXAMINATION = jax.make_user_context(None)


def are_known(*values) -> bool:
    """Whether no leaf of `values` is being traced, so that numbers may be read."""
    return not any(isinstance(x, Tracer) for x in jax.tree.leaves(values))


def fails(holds: Callable[..., Any], *values) -> bool:
    """Whether values are known and a condition does not hold of them; what is traced passes.

    Args:
        holds: the condition, a function of as many values.
        values: arrays, which it is given as NumPy's, or pytrees, which it is given as they are.
    """
    if not are_known(*values):
        return False
    return not holds(*(np.asarray(x) if isinstance(x, jax.Array) else x for x in values))


def where_known(function: Callable[P, T]) -> Callable[P, T | None]:
    """A function that is called where all of its arguments are known; `None` where one is not."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T | None:
        return function(*arguments, **named) if are_known(arguments, named) else None

    return call


def where_eager(function: Callable[P, T]) -> Callable[P, T | None]:
    """The same, where operations on the arguments are also computed at once."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> T | None:
        return function(*arguments, **named) if is_eager(arguments, named) else None

    return call


def is_outside() -> bool:
    """Whether this is outside of all transformations of JAX."""
    return get_opaque_trace_state() == _OUTSIDE


def calls_programs() -> bool:
    """Whether compiled programs are called here as they are: not transformed, nor read."""
    config: Any = jax.config
    return is_outside() and not (
        config.jax_disable_jit
        or config.jax_debug_nans
        or config.jax_debug_infs
        or config.jax_check_tracer_leaks
    )


def is_eager(*values) -> bool:
    """Whether numbers of `values` are known, and operations on them computed at once."""
    # Inside of a transformation that none of the values takes part in they are, too.
    return are_known(*values) and (is_outside() or are_known(jnp.zeros(())))


def as_number(text: str) -> float:
    """A number as files write it; `1_0`, which Python takes for 10, is none.

    Raises:
        ValueError: for any other text.
    """
    if "_" in text:
        raise ValueError(f"{text!r} is no number")
    return float(text)
