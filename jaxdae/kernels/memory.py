"""What was made of equal keys, for as long as JAX keeps what it has traced."""

from collections import OrderedDict
from collections.abc import Callable
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
        self._most, self._age = most, 0
        self._held: OrderedDict[tuple, Any] = OrderedDict()

    def get(self, key: tuple, declared: Any, make: Callable[[], Any]) -> Any:
        """The result of a key; made if it is not known, or cannot be.

        Args:
            key: what the result depends on.
            declared: pytrees of which the key has static parts, whose values must also be of equal
                kinds: Python takes 1, 1.0 and True for equal.
            make: gives the result.

        Returns:
            What `make` gave for an equal key.
        """
        own = (key, kinds(declared))
        try:
            hash(own)
        except TypeError:
            return make()
        age = _age()
        if age != self._age:
            self._held.clear()
            self._age = age
        if own not in self._held:
            self._held[own] = make()
        self._held.move_to_end(own)
        while len(self._held) > self._most:
            self._held.popitem(last=False)
        return self._held[own]

    def __len__(self) -> int:
        return len(self._held)


_TRACED: list[None] = []


@jax.jit
def _traced():
    _TRACED.append(None)


def _age() -> int:
    """A number that grows when JAX forgets what it has traced."""
    with jax.disable_jit(False):
        jax.eval_shape(_traced)
    return len(_TRACED)
