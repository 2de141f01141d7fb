"""One floating-point precision for everything in a run."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def in_dtype(tree, dtype):
    """Every floating-point number and array of a pytree as an array of one precision.

    Python numbers would otherwise be compiled in, and a new value compile everything anew. Whole
    numbers stay as they are (counts decide shapes), except in fields declared as `float`.

    Args:
        tree: pytree.
        dtype: floating-point type.

    Returns:
        The pytree with arrays of that type.

    Raises:
        ValueError: for complex numbers: coordinates and parameters are real.
    """

    def convert(leaf):
        if isinstance(leaf, complex) or (eqx.is_array(leaf) and jnp.iscomplexobj(leaf)):
            raise ValueError(
                f"complex value {leaf}: systems, gains and states are real; give its real and "
                "imaginary part as two numbers."
            )
        if isinstance(leaf, float) or eqx.is_inexact_array(leaf):
            return jnp.asarray(leaf, dtype)
        return leaf

    return jax.tree.map(convert, _whole_to_float(tree))


def as_floats(*values) -> tuple[Any, ...]:
    """Arrays of one floating-point type: that of the arrays given; lists and integers follow.

    Args:
        values: arrays, numbers, nested lists, or `None`, which stays.

    Returns:
        A tuple of arrays.
    """
    typed = [x for x in values if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)]
    dtype = jnp.result_type(*typed) if typed else jnp.result_type(float)
    return tuple(None if x is None else jnp.asarray(x, dtype) for x in values)


def _whole_to_float(tree):
    """Whole numbers given for fields that are declared as `float`, as the user means them."""
    if isinstance(tree, tuple):
        return type(tree)(_whole_to_float(x) for x in tree) if type(tree) is tuple else tree
    if not (isinstance(tree, eqx.Module) and dataclasses.is_dataclass(tree)):
        return tree
    names = [
        field.name
        for field in dataclasses.fields(tree)
        if field.type in (float, "float") and type(getattr(tree, field.name, None)) is int
    ]
    if not names or any(field.metadata.get("static") for field in _fields(tree, names)):
        return tree
    return eqx.tree_at(
        lambda x: [getattr(x, n) for n in names], tree, [float(getattr(tree, n)) for n in names]
    )


def _fields(tree, names):
    return [field for field in dataclasses.fields(tree) if field.name in names]
