"""Arrays of several kinds as one array of floating-point numbers, and back."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np


def packed(tree, dtype) -> jax.Array:
    """All arrays of a pytree, one after the other."""
    leaves = [jnp.ravel(x).astype(dtype) for x in jax.tree.leaves(eqx.filter(tree, _is_array))]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, dtype)


def packed_size(shapes) -> int:
    """Numbers in all arrays of a pytree, or of their shapes."""
    return sum(x.size for x in jax.tree.leaves(eqx.filter(shapes, _is_array)))


def unpacked(numbers, shapes):
    """A pytree of given shapes and types, from `packed`; what is no array in it stays."""
    arrays, rest = eqx.partition(shapes, _is_array)
    leaves, structure = jax.tree.flatten(arrays)
    # The last part, behind all of them, is empty.
    *parts, _ = jnp.split(numbers, np.cumsum([x.size for x in leaves], dtype=int))
    results = [
        (part != 0 if x.dtype == np.bool_ else part.astype(x.dtype)).reshape(x.shape)
        for part, x in zip(parts, leaves, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, results), rest)


def _is_array(x) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)
