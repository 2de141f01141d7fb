"""Members of a batch: which one is meant, and what differs between them."""

import operator
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.checks import are_known


class Varied(eqx.Module):
    """What differs between the members of a batch.

    Args:
        values: numbers or texts by name, each with the axes of the batch first; JAX's own
            transformations take numbers alone.
        axes: names of the batch axes; empty where they have none.
    """

    values: dict[str, Any]
    axes: tuple[str, ...] = eqx.field(static=True, default=())

    @classmethod
    def of(cls, shape: tuple[int, ...], axes, values: dict[str, Any]) -> "Varied":
        """Values of a batch of a shape, checked, and repeated along the axes they do not name."""
        if not shape:
            raise ValueError("this is one run, not a batch: nothing varies between its members.")
        axes = _axis_names(shape, axes)
        return cls({name: _spread(name, x, shape, axes) for name, x in values.items()}, axes)

    def chosen(self, index, dropped: int) -> "Varied":
        """Of the members that are chosen; `dropped` says how many axes an index takes away."""
        values = {name: x[index] for name, x in self.values.items()}
        return Varied(values, self.axes[dropped:])


def _axis_names(shape: tuple[int, ...], axes) -> tuple[str, ...]:
    if axes is None:
        return ()
    axes = (axes,) if isinstance(axes, str) else tuple(axes)
    if len(axes) != len(shape) or len(set(axes)) != len(axes):
        raise ValueError(
            f"the batch has {len(shape)} axes, of lengths {shape}, and the names given are {axes}; "
            "give one name for each, all different."
        )
    return axes


def _spread(name: str, value, shape: tuple[int, ...], axes: tuple[str, ...]) -> Any:
    """With all axes of the batch: values of the name of an axis go along that axis."""
    given = np.shape(value)
    traced = not are_known(value)
    value = value if traced else np.asarray(value)
    if np.dtype(value.dtype).kind not in "biufcU":
        raise ValueError(f"{name} holds {value.dtype}; give numbers or texts.")
    if given[: len(shape)] == shape:
        return value
    if name in axes and given[:1] == shape[axes.index(name) :][:1]:
        place = axes.index(name)
        spread = value.reshape(
            *(1,) * place, given[0], *(1,) * (len(shape) - place - 1), *given[1:]
        )
        repeat = jax.numpy.broadcast_to if traced else np.broadcast_to
        return repeat(spread, (*shape, *given[1:]))
    hint = "" if len(shape) == 1 else ", or that of the axis it names alone"
    raise ValueError(
        f"{name} has shape {given}, and the batch {shape}; its first axes must be those of the "
        f"batch{hint}."
    )


def checked_index(index, shape: tuple[int, ...]) -> Any:
    """An index of members that is inside of a batch: JAX would take the nearest there is.

    Args:
        index: an integer, a tuple of integers for as many axes, a slice, or an array of integers or
            booleans, which choose along the first axis; what is traced is not checked.
        shape: of the batch.

    Raises:
        TypeError: for a single run, or another kind of index.
        IndexError: past the end of an axis.
    """
    if not shape:
        raise TypeError("this is one run, not a batch: it has no members to choose from.")
    if not are_known(index):
        return index
    if isinstance(index, tuple):
        if len(index) > len(shape):
            raise IndexError(f"{len(index)} indices for a batch of {len(shape)} axes, {shape}.")
        return tuple(_position(i, n) for i, n in zip(index, shape, strict=False))
    if isinstance(index, slice):
        return index
    chosen = np.asarray(index)
    if chosen.ndim == 0:
        return _position(index, shape[0])
    if chosen.dtype == bool and chosen.shape == shape[:1]:
        return np.flatnonzero(chosen)
    if chosen.ndim == 1 and chosen.dtype.kind in "iu":
        return np.array([_position(i, shape[0]) for i in chosen], int)
    raise TypeError(
        f"members of a batch of shape {shape} are chosen by integers, a slice, or one boolean for "
        f"each along the first axis; got {chosen.dtype} of shape {chosen.shape}."
    )


def _position(index, length: int) -> int:
    try:
        place = operator.index(index)
    except TypeError as error:
        raise TypeError(f"a member is chosen by an integer; got {index!r}.") from error
    if isinstance(index, bool | np.bool_):
        raise TypeError(f"a member is chosen by an integer; got {index!r}.")
    if not -length <= place < length:
        raise IndexError(f"member {place} of a batch of {length} (they count from 0).")
    return place % length
