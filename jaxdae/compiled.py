"""Compiled programs, apart for values that Python alone takes for equal: 1, 1.0 and True."""

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import numpy as np
from jax import dtypes

from jaxdae.checks import are_known


def kinds(value: Any) -> Any:
    """Types of a value and of all in it, and signs of zeros: what equality does not compare."""
    if type(value) in _PLAIN:
        return type(value)
    # Modules do not change, and to look through one takes as long as to call a program.
    known = _KINDS.get(id(value))
    if known is not None:
        return known[0]
    if isinstance(value, tuple | list):
        return (type(value), *map(kinds, value))
    if isinstance(value, dict):
        return (dict, *((x, kinds(x), kinds(y)) for x, y in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset((x, kinds(x)) for x in value))
    if isinstance(value, eqx.Module):
        result, forget = _of_fields(value), functools.partial(_KINDS.pop, id(value), None)
        _KINDS[id(value)] = result, weakref.ref(value, lambda _: forget())
        return result
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _of_fields(value)
    if eqx.is_array(value):
        return jax.Array  # known or traced
    if isinstance(value, float) and value == 0:
        return (type(value), math.copysign(1.0, value))
    return type(value)


_PLAIN = {bool, int, str, type(None)}
# Of modules that live, by their identity, with what ends the entry when they do.
_KINDS: dict[int, tuple[Any, Any]] = {}


def _of_fields(value: Any) -> tuple:
    names = (x.name for x in dataclasses.fields(value))
    return (type(value), *(kinds(getattr(value, x, None)) for x in names))


class Jitted:
    """A function as `jit` compiles it.

    Args:
        function: to be compiled; of any arguments.
        options: of `jax.jit`.
    """

    def __init__(self, function: Callable, options: dict[str, Any]):
        functools.update_wrapper(self, function)

        def of_leaves(static: _Static, *varying):
            arguments, named = static.rebuilt(varying)
            leaves, structure = jax.tree.flatten(function(*arguments, **named))
            places = {id(x): i for i, x in enumerate(varying)}
            sources = [places.get(id(x)) if not are_known(x) else None for x in leaves]
            computed = [eqx.is_array(x) and i is None for x, i in zip(leaves, sources, strict=True)]
            rest = tuple(
                _Argument(i) if i is not None else None if c else x
                for x, i, c in zip(leaves, sources, computed, strict=True)
            )
            arrays = [x for x, c in zip(leaves, computed, strict=True) if c]
            return _Result(arrays, structure, rest)

        of_leaves.__name__ = of_leaves.__qualname__ = getattr(function, "__name__", "of_leaves")
        self._compiled = jax.jit(of_leaves, static_argnums=0, **options)

    def __call__(self, *arguments, **named) -> Any:
        """The function's result, by the compiled program."""
        return self.bind(*arguments, **named)()

    def bind(self, *arguments, **named) -> Callable[[], Any]:
        """A call with these arguments, to be made again and again: what varies is found once."""
        static, varying = _separated((arguments, named), floats=False)
        varying = [_unchanging(x) for x in varying]
        return lambda: self._compiled(static, *varying).tree(varying)


def jit(function: Callable | None = None, **options) -> Any:
    """`jax.jit` of a function of any arguments and results, as `equinox.filter_jit` compiles it.

    Arrays vary, all else is part of the key, with the kinds of values that Python alone takes for
    equal. A call costs a fraction of one of `filter_jit`; in return errors that are raised in the
    program (`equinox.error_if`) are those of JAX.

    Args:
        function: to be compiled; of any arguments.
        options: of `jax.jit`.
    """
    return functools.partial(jit, **options) if function is None else Jitted(function, options)


def _unchanging(x):
    """An array; of NumPy's, which can be changed, a copy as a program sees it."""
    if not isinstance(x, np.ndarray | np.generic):
        return x
    copied = np.array(x, dtypes.canonicalize_dtype(x.dtype))
    copied.flags.writeable = False
    return copied


class _Argument(NamedTuple):
    """One of the arguments, in a result that it is handed on to: no program has to copy it."""

    place: int


@jax.tree_util.register_pytree_node_class
class _Result:
    """What a program returns: arrays that it computes, and what else stands among them."""

    __slots__ = ("arrays", "rest", "structure")

    def __init__(self, arrays: Any, structure: Any, rest: tuple):
        self.arrays, self.structure, self.rest = arrays, structure, rest

    def tree_flatten(self):
        return self.arrays, (self.structure, self.rest)

    @classmethod
    def tree_unflatten(cls, about, arrays):
        return cls(arrays, *about)

    def tree(self, varying) -> Any:
        """As it was returned, from these arguments."""
        arrays = iter(self.arrays)
        leaves = [
            next(arrays) if x is None else varying[x.place] if type(x) is _Argument else x
            for x in self.rest
        ]
        return self.structure.unflatten(leaves)


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
        if are_known(*varying):
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


def _separated(arguments, *, floats: bool = True) -> tuple[_Static, list]:
    """What stays the same in arguments, and the numbers: arrays, and floats where they vary."""
    leaves, structure = jax.tree.flatten(arguments)
    varies = tuple(eqx.is_array(x) or (floats and type(x) is float) for x in leaves)
    pairs = list(zip(leaves, varies, strict=True))
    rest = tuple(None if v else x for x, v in pairs)
    others = kinds(arguments) if not floats else kinds(jax.tree.unflatten(structure, rest))
    return _Static(structure, rest, varies, others), [x for x, v in pairs if v]
