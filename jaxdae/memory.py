"""What was made of equal keys, for as long as JAX keeps what it has traced."""

import dataclasses
import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


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


class Memory:
    """Results by their keys, the last ones used.

    Those that were made under other settings of JAX, as `jax.enable_x64`, are apart.
    `jax.clear_caches()` empties it, too: after that JAX traces functions anew, with the methods and
    global values that they have then, and so must what was made of them.

    Args:
        most: results that are kept, under one setting.
    """

    def __init__(self, most: int):
        self._most = most
        self._results: Any = weakref.WeakKeyDictionary()

    def get(self, key: tuple, declared: Any, make: Callable[[], Any]) -> Any:
        """The result of a key; made if it is not known, or cannot be.

        Args:
            key: what the result depends on.
            declared: pytrees of which the key has static parts, whose values must also be of equal
                kinds: Python takes 1, 1.0 and True for equal.
            make: gives the result.
        """
        try:
            entry = _Remembered((key, kinds(declared)), make)
        except TypeError:
            return make()
        now = settings()
        results = self._results.get(now)
        if results is None:
            # Threads that are here at once get the same.
            made = functools.lru_cache(self._most)(_Remembered.result)
            results = self._results.setdefault(now, made)
        return results(entry)

    def __len__(self) -> int:
        return sum(x.cache_info().currsize for x in self._results.values())


class _Remembered:
    """A key, and what makes its result, which is forgotten afterwards."""

    __slots__ = ("hash", "key", "make")

    def __init__(self, key: tuple, make: Callable[[], Any]):
        self.key, self.hash, self.make = key, hash(key), make

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other) -> bool:
        return self.key == other.key

    def result(self) -> Any:
        """The result, made once."""
        make = self.make
        del self.make
        return make()


@jax.jit
def _nothing():
    return ()


def settings() -> Any:
    """One object for all global settings that JAX traces by, which lives until it forgets.

    JAX keeps what it has traced apart by its settings (precision of numbers, default device, mesh),
    and lets go of it in `jax.clear_caches()`: so this is a trace.
    """
    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        with jax.disable_jit(False):
            return _nothing.trace().jaxpr
    return _nothing.trace().jaxpr
