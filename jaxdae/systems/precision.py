"""One floating-point precision for everything in a run."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from jaxdae.checks import are_known


def in_dtype(tree, dtype):
    """Every floating-point number and array of a pytree as an array of one precision.

    Python numbers would otherwise be compiled in, and a new value compile everything anew. Integers
    stay as they are (counts decide shapes), except in fields declared as `float`.

    Args:
        tree: pytree.
        dtype: floating-point type.

    Returns:
        The pytree with arrays of that type.

    Raises:
        ValueError: for complex numbers: coordinates and parameters are real.
    """
    leaves, structure = jax.tree.flatten(tree)
    if any(type(x) is int for x in leaves):
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        leaves = [
            float(x) if type(x) is int and _is_declared_float(tree, path) else x
            for x, path in zip(leaves, paths, strict=True)
        ]
    return structure.unflatten([_converted(x, dtype) for x in leaves])


def _converted(leaf, dtype):
    if type(leaf) is float:
        number = np.asarray(leaf, dtype)  # a hundredth of the time that an array of JAX takes
        number.flags.writeable = False
        return number
    _refuse_complex(leaf)
    if isinstance(leaf, float) or eqx.is_inexact_array(leaf):
        return leaf if getattr(leaf, "dtype", None) == dtype else known_array(leaf, dtype)
    return leaf


def known_array(value, dtype):
    """An array of a type, whose numbers stay known in a compiled program where they are."""
    if not are_known(value):
        return jnp.asarray(value, dtype)
    with jax.core.eval_context():
        if isinstance(value, jax.Array):
            return jnp.asarray(value, dtype)
        # Of NumPy's arrays none is converted by a program, which would have to be compiled.
        return jax.device_put(np.asarray(value, dtype))


def as_floats(*values) -> tuple[Any, ...]:
    """Arrays of one floating-point type: that of the arrays given; lists and integers follow.

    `None` stays.
    """
    jax.tree.map(_refuse_complex, values)
    typed = [x for x in values if hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.inexact)]
    dtype = jnp.result_type(*typed) if typed else jnp.result_type(float)
    return tuple(None if x is None else known_array(x, dtype) for x in values)


def as_numbers(name: str, value, dtype):
    """An array of one floating-point type."""
    try:
        return jnp.asarray(value, dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be numbers; got {value!r}.") from error


def _refuse_complex(leaf) -> None:
    if jnp.issubdtype(getattr(leaf, "dtype", type(leaf)), jnp.complexfloating):
        raise ValueError(
            f"complex value {leaf}: systems, gains and states are real; give its real and "
            "imaginary part as two numbers."
        )


def _is_declared_float(tree, path) -> bool:
    """Whether a path ends in a field declared as `float`: an integer there is meant as one."""
    for key in path[:-1]:
        tree = _child(tree, key)
    declared = dataclasses.fields(tree) if dataclasses.is_dataclass(tree) else ()
    name = getattr(path[-1], "name", None) if path else None
    return any(field.name == name and field.type in (float, "float") for field in declared)


def _child(tree, key):
    if isinstance(key, GetAttrKey):
        return getattr(tree, key.name)
    if isinstance(key, SequenceKey | DictKey):
        return tree[key.idx if isinstance(key, SequenceKey) else key.key]
    return None
