"""Many small parameters as few arrays.

What a mechanism of a hundred bodies has is a thousand arrays of a few numbers. A kernel that took
each of them would spend more code on handing them on than on the equations of motion, so that the
masses of all bodies are one array, their inertias another, and so on: what has one place in the
declaration, but for its number in a list.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# Kernels take up to so many parameters one by one, and larger ones than this always.
_FEW, _SMALL = 64, 64


class Packing(NamedTuple):
    """Which parameters are parts of one array.

    Args:
        groups: numbers of the parameters in each array.
        shapes: of the parameters.
    """

    groups: tuple[tuple[int, ...], ...]
    shapes: tuple[tuple[int, ...], ...]

    def packed(self, leaves: list) -> list:
        """The arrays, from the parameters; one that is alone keeps its shape."""
        return [
            leaves[group[0]]
            if len(group) == 1
            else jnp.concatenate([jnp.ravel(leaves[i]) for i in group])
            for group in self.groups
        ]

    def unpacked(self, arrays) -> list:
        """The parameters, from the arrays; what is behind these stays out."""
        leaves: list[Any] = [None] * len(self.shapes)
        for group, array in zip(self.groups, arrays, strict=False):
            parts = [array]
            if len(group) > 1:
                parts = jax.lax.split(array, [int(np.prod(self.shapes[i])) for i in group])
            for i, part in zip(group, parts, strict=True):
                leaves[i] = jnp.reshape(part, self.shapes[i])
        return leaves


def packing(tree) -> Packing:
    """How the arrays of a pytree become few."""
    paths = jax.tree_util.tree_leaves_with_path(tree)
    shapes = tuple(x.shape for _, x in paths)
    groups: dict[Any, list[int]] = {}
    for i, (path, x) in enumerate(paths):
        alone = len(paths) <= _FEW or not 0 < x.size <= _SMALL
        groups.setdefault(i if alone else (_place(path), str(x.dtype)), []).append(i)
    return Packing(tuple(map(tuple, groups.values())), shapes)


def _place(path) -> str:
    """A place in a declaration without the numbers of lists."""
    words = ("*" if isinstance(x, jax.tree_util.SequenceKey) else str(x) for x in path)
    return "".join(words)
