"""Solves that stand in a traced program as calls, by whose names they are recognized.

Whoever takes a program apart can then solve by other means, without following the loops.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import jax

Shape = tuple[int, ...]


class Call(NamedTuple):
    """What the name of a call says.

    Args:
        kind: which solve it is.
        shapes: those of its arguments. Under `jax.vmap` they remain those of one member.
    """

    kind: str
    shapes: tuple[Shape, ...]


def named(function: Callable, call: Call) -> Callable:
    """A function as a compiled call with the name that says what it is."""

    def solve(*arguments):
        return function(*arguments)

    solve.__name__ = "_".join((call.kind, *("x".join(map(str, x)) for x in call.shapes)))
    return jax.jit(solve)


def read_name(name: str, kinds) -> Call | None:
    """What a name says, if it is that of a call of one of some kinds."""
    found = re.fullmatch(r"([a-z_]+?)((?:_[0-9]+(?:x[0-9]+)*)+)", name)
    if found is None or found[1] not in kinds:
        return None
    shapes = found[2].removeprefix("_").split("_")
    return Call(found[1], tuple(tuple(map(int, x.split("x"))) for x in shapes))
