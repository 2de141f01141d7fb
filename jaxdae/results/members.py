"""Members of a batch: which one is meant, and what differs between them."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.checks import are_known
from jaxdae.storage.runs import with_head


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

    @classmethod
    def from_arrays(cls, known: Mapping[str, Any], axes: tuple[str, ...]) -> "Varied | None":
        """That of a run from a file, by its arrays; `None` where nothing was said."""
        values = with_head(known, "varied.")
        return cls(values, axes) if values or axes else None

    def arrays(self) -> dict[str, Any]:
        """What a file has of it, by name."""
        return {f"varied.{name}": x for name, x in self.values.items()}

    def chosen(self, index) -> "Varied":
        """Of the members that are chosen."""
        values = {name: x[index] for name, x in self.values.items()}
        return Varied(values, self.axes[dropped_axes(index) :])


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


def dropped_axes(index) -> int:
    """How many axes of the batch an index takes away."""
    return len(index) if isinstance(index, tuple) else int(isinstance(index, int))


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
    if isinstance(index, slice) or not are_known(index):
        return index
    several = isinstance(index, tuple)
    parts = [np.asarray(x) for x in (index if several else (index,))]
    first = parts[0] if parts else np.zeros(0)
    by_booleans = first.dtype == bool and first.ndim == 1
    most = 0 if several else 1
    if not by_booleans and any(x.dtype.kind not in "iu" or x.ndim > most for x in parts):
        raise TypeError(
            f"members of a batch of shape {shape} are chosen by integers, a slice, or one boolean "
            f"for each along the first axis; got {index!r}."
        )
    try:
        np.broadcast_to(0, shape)[tuple(parts)]
    except IndexError as error:
        raise IndexError(f"{error}; the batch has shape {shape}, counted from 0.") from error
    if by_booleans:
        return np.flatnonzero(first)
    if not several:
        return first % shape[0] if first.ndim else int(first) % shape[0]
    return tuple(int(i) % n for i, n in zip(parts, shape, strict=False))
