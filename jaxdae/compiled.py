"""Compiled programs, apart for values that Python alone takes for equal: 1, 1.0 and True."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def kinds(value: Any) -> Any:
    """Types of a value and of all in it, and signs of zeros: what equality does not compare."""
    if isinstance(value, tuple | list):
        return (type(value), *map(kinds, value))
    if isinstance(value, dict):
        return (dict, *((x, kinds(x), kinds(y)) for x, y in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset((x, kinds(x)) for x in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = (x.name for x in dataclasses.fields(value))
        return (type(value), *(kinds(getattr(value, x, None)) for x in own))
    if eqx.is_array(value):
        return jax.Array  # known or traced
    if isinstance(value, float) and value == 0:
        return (type(value), math.copysign(1.0, value))
    return type(value)


def jit(function: Callable | None = None, **options) -> Callable:
    """`equinox.filter_jit`, which compiles anew for values that only Python takes for equal.

    Args:
        function: to be compiled; of any arguments.
        options: of `jax.jit`.
    """
    if function is None:
        return functools.partial(jit, **options)

    def by_kinds(arguments, named, declared):
        del declared
        return function(*arguments, **named)

    by_kinds.__name__ = by_kinds.__qualname__ = getattr(function, "__name__", "by_kinds")
    compiled = eqx.filter_jit(by_kinds, **options)

    @functools.wraps(function)
    def call(*arguments, **named):
        return compiled(arguments, named, kinds((arguments, named)))

    return call


def shared(function: Callable) -> Callable:
    """A function whose trace all programs share that call it with arguments of the same kinds.

    Differentiating a system is most of the work of tracing one; fields, multipliers, warnings and
    adjoints, of all formulations, need the same derivatives. The programs do not see it: the
    operations are written into them.

    Args:
        function: of any arguments.
    """
    return jit(function, inline=True)
