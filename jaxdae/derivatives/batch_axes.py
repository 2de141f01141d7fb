"""Axes of the batch that a kernel serves, and which of its arguments all members share."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np


class Axes(NamedTuple):
    """Axes of the batch, and which arguments have them; members share the others.

    Args:
        shape: lengths of the axes.
        batched: for each argument, whether it has them.
    """

    shape: tuple[int, ...]
    batched: tuple[bool, ...]

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def members(self) -> int:
        """Members of the batch."""
        return int(np.prod(self.shape))

    def ranks(self) -> tuple[int, ...]:
        """Axes of the batch in each argument."""
        return tuple(self.rank if x else 0 for x in self.batched)


def with_new_axis(arguments, axes_in, axes: Axes) -> tuple[list, Axes]:
    """Arguments with one more axis of the batch, the first one."""
    size = next(x.shape[a] for x, a in zip(arguments, axes_in, strict=True) if a is not None)
    moved, batched = [], []
    for x, a, has in zip(arguments, axes_in, axes.batched, strict=True):
        if a is not None:
            # Members have an argument of their own along all axes of the batch or along none.
            x = jnp.moveaxis(x, a, 0)
            x = x if has else broadcast_along(x, axes.shape, 1)
        elif has:
            x = jnp.broadcast_to(x, (size, *x.shape))
        moved.append(x)
        batched.append(a is not None or has)
    return moved, Axes((size, *axes.shape), tuple(batched))


def broadcast_along(x, shape: tuple[int, ...], at: int):
    """The same for all members along more axes."""
    reshaped = x.reshape(*x.shape[:at], *(1 for _ in shape), *x.shape[at:])
    return jnp.broadcast_to(reshaped, (*x.shape[:at], *shape, *x.shape[at:]))
