"""How objects show themselves at the prompt: short arrays in full, long ones by their shape."""

import copy
import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.checks import are_known
from jaxdae.tables import array_text

# Numbers that are shown in full: a gain of four constraints is a matrix of sixteen.
_MOST = 16


class _Text:
    """A text that stands in a tree for what it describes."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


class Module(eqx.Module):
    """A module of equinox that shows the values of its fields.

    Settings that have their default are left out; numbers and arrays are always shown.
    """

    def __repr__(self) -> str:
        return shown(self)

    def in_short(self) -> str | None:
        """The text that stands for it, in place of its fields; `None` for those."""


def shown(value: Any) -> str:
    """A tree, a record or a dataclass by its fields, with the values of short arrays.

    Args:
        value: of any kind; inside JAX's transformations traced arrays show that they are.
    """
    try:
        return eqx.tree_pformat(_described(value))
    except Exception:  # a class in it that refuses texts; no object may fail to show itself
        return eqx.tree_pformat(value)


def _described(value: Any) -> Any:
    leaves, structure = jax.tree.flatten(value, is_leaf=lambda x: _in_short(x) is not None)
    if len(leaves) == 1 and leaves[0] is value:
        return _fields_described(value)
    return structure.unflatten([_fields_described(x) for x in leaves])


def _in_short(x: Any) -> str | None:
    return x.in_short() if isinstance(x, Module) else None


def _fields_described(x: Any) -> Any:
    """A leaf; a dataclass that JAX knows nothing of with its fields as texts."""
    text = _in_short(x)
    if text is not None:
        return _Text(text)
    if not dataclasses.is_dataclass(x) or isinstance(x, type):
        return _leaf(x)
    result = copy.copy(x)
    for field in dataclasses.fields(x):
        object.__setattr__(result, field.name, _described(getattr(x, field.name)))
    return result


def _leaf(x: Any) -> Any:
    if isinstance(x, bool | int | float | complex):
        return _Text(repr(x))
    if not isinstance(x, jax.Array | np.ndarray | np.generic):
        return x
    if x.size == 0:
        return _Text("[]")
    shape = eqx.tree_pformat(jax.ShapeDtypeStruct(x.shape, x.dtype), struct_as_array=True)
    if not are_known(x):
        return _Text(f"traced {shape}")
    if isinstance(x, jax.Array) and x.is_deleted():
        return _Text(f"deleted {shape}")
    known = x.dtype.kind in "biufc" and getattr(x, "is_fully_addressable", True)
    return _Text(array_text(x) if known and x.size <= _MOST else shape)
