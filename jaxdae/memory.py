"""What was made of equal keys, for as long as JAX keeps what it has traced."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax

from jaxdae.compiled import kinds


class Memory:
    """Results by their keys, the last ones used.

    `jax.clear_caches()` empties it, too: after that JAX traces functions anew, with the methods and
    global values that they have then, and so must what was made of them.

    Args:
        most: results that are kept.
    """

    def __init__(self, most: int):
        self._age = 0
        self._results = lru_cache(most)(_Entry.result)

    def get(self, key: tuple, declared: Any, make: Callable[[], Any]) -> Any:
        """The result of a key; made if it is not known, or cannot be.

        Args:
            key: what the result depends on.
            declared: pytrees of which the key has static parts, whose values must also be of equal
                kinds: Python takes 1, 1.0 and True for equal.
            make: gives the result.
        """
        try:
            entry = _Entry((key, kinds(declared)), make)
        except TypeError:
            return make()
        age = _age()
        if age != self._age:
            self._results.cache_clear()
            self._age = age
        return self._results(entry)

    def __len__(self) -> int:
        return self._results.cache_info().currsize


class _Entry:
    """A key, and what makes its result, which is forgotten afterwards."""

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


_TRACED: list[None] = []


@jax.jit
def _traced():
    _TRACED.append(None)


def _age() -> int:
    """A number that grows when JAX forgets what it has traced."""
    with jax.disable_jit(False):
        jax.eval_shape(_traced)
    return len(_TRACED)
