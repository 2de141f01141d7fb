"""Compiled programs, apart for values that Python alone takes for equal: 1, 1.0 and True."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.core
import jax.extend.core as jex


def kinds(value: Any) -> Any:
    """Types of a value and of all in it, and signs of zeros: what equality does not compare."""
    if isinstance(value, tuple | list):
        return (type(value), *map(kinds, value))
    if isinstance(value, dict):
        return (dict, *((x, kinds(x), kinds(y)) for x, y in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset((x, kinds(x)) for x in value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (x.name for x in dataclasses.fields(value))
        return (type(value), *(kinds(getattr(value, x, None)) for x in names))
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
    adjoints, of all formulations, need the same derivatives. Programs do not see it: the operations
    are written into them one by one, each with the line it comes from. Outside of programs it is
    compiled. Like what `jax.jit` traced, traces last until `jax.clear_caches()`.

    Args:
        function: of any arguments; arrays and floats among them vary, all else is part of the key.
    """

    def of_leaves(static: _Static, *varying):
        arguments, named = static.rebuilt(varying)
        return function(*arguments, **named)

    of_leaves.__name__ = of_leaves.__qualname__ = function.__name__
    compiled = jax.jit(of_leaves, static_argnums=0)

    @functools.wraps(function)
    def call(*arguments, **named):
        static, varying = _separated((arguments, named))
        try:
            hash(static)
        except TypeError:
            return function(*arguments, **named)
        if not any(isinstance(x, jax.core.Tracer) for x in varying):
            return compiled(static, *varying)
        traced = compiled.trace(static, *varying)
        if len(traced.jaxpr.in_avals) > len(varying):  # a function in them knows traced numbers
            return function(*arguments, **named)
        results = jex.jaxpr_as_fun(traced.jaxpr)(*varying)
        return jax.tree.unflatten(jax.tree.structure(traced.out_info), results)

    return call


class _Static(NamedTuple):
    """What arguments are beside the numbers in them.

    Args:
        structure: of all arguments.
        leaves: those that do not vary, `None` for the others.
        varies: which do.
        kinds: of all else that is in them.
    """

    structure: Any
    leaves: tuple
    varies: tuple[bool, ...]
    kinds: Any

    def rebuilt(self, varying):
        """The arguments, with these numbers."""
        numbers = iter(varying)
        pairs = zip(self.leaves, self.varies, strict=True)
        return jax.tree.unflatten(self.structure, [next(numbers) if v else x for x, v in pairs])


def _separated(arguments) -> tuple[_Static, list]:
    """What stays the same in arguments, and the numbers."""
    leaves, structure = jax.tree.flatten(arguments)
    varies = tuple(eqx.is_array(x) or type(x) is float for x in leaves)
    pairs = list(zip(leaves, varies, strict=True))
    rest = tuple(None if v else x for x, v in pairs)
    others = kinds(jax.tree.unflatten(structure, rest))
    return _Static(structure, rest, varies, others), [x for x, v in pairs if v]
