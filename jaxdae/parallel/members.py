"""A batch in parts: arrays with an entry for each member, arrays that all share, and the rest."""

from collections.abc import Callable, Sequence
from typing import Any, cast, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.storage.fingerprints import leaf_name

# In place of `None` among the axes, which JAX takes for an empty pytree.
_SHARED = object()


class Call(NamedTuple):
    """What is mapped: a function and a batch, one pytree for both."""

    function: Callable
    batch: PyTree


class SplitCall(NamedTuple):
    """A `Call` in three parts of its structure, each with `None` where it has no leaf.

    Args:
        mapped: arrays with leading axis `members`, on the host.
        shared: arrays that all members have in common, on the host.
        rest: everything else: functions, settings, plain numbers.
        total: number of members.
    """

    mapped: PyTree
    shared: PyTree
    rest: PyTree
    total: int

    def take(self, members: np.ndarray) -> PyTree:
        """The arrays of some members, their leading axes those of `members`."""
        return jax.tree.map(lambda x: x[members], self.mapped)


class _Keys(eqx.Module):
    """Random keys as the integers they consist of, which files and hosts can hold."""

    data: Any
    kind: Any = eqx.field(static=True)


def split(function: Callable, batch: PyTree, in_axes: PyTree) -> SplitCall:
    """Parts of a function and a batch."""
    call = Call(function, batch)
    leaves, structure = jax.tree_util.tree_flatten_with_path(call)
    mapped, shared, rest = [], [], []
    sizes: dict[str, int] = {}
    for (path, leaf), axis in zip(leaves, _axes(call, in_axes), strict=True):
        array = eqx.is_array(leaf)
        varies = array and axis is not _SHARED
        if varies:
            sizes[leaf_name(path)] = _length(path, leaf, axis)
        mapped.append(_on_host(leaf, axis) if varies else None)
        shared.append(_on_host(leaf, 0) if array and not varies else None)
        rest.append(None if array else leaf)
    mapped, shared, rest = (jax.tree.unflatten(structure, x) for x in (mapped, shared, rest))
    return SplitCall(mapped, shared, rest, _agreed(sizes))


def join(mapped: PyTree, shared: PyTree, rest: PyTree) -> Call:
    """One member, put together from the parts of `SplitCall`, `mapped` without their axis."""
    is_keys = lambda x: isinstance(x, _Keys)  # noqa: E731
    wrap = lambda x: jax.random.wrap_key_data(x.data, impl=x.kind) if is_keys(x) else x  # noqa: E731
    arrays = (jax.tree.map(wrap, x, is_leaf=is_keys) for x in (mapped, shared))
    return eqx.combine(*arrays, rest)


def stack(members: Sequence[PyTree]) -> PyTree:
    """Systems, gains, states, … of one shape as a batch.

    Args:
        members: pytrees of one structure; their floating-point numbers and arrays are stacked, all
            else must be the same.

    Returns:
        A pytree of that structure whose numbers are arrays with a leading axis `members`.

    Raises:
        ValueError: if there are none, or one differs from the first in more than its numbers.
    """
    if not members:
        raise ValueError("stack: there are no members; give one at least.")
    parts = [eqx.partition(member, eqx.is_inexact_array_like) for member in members]
    for index, part in enumerate(parts):
        if not _same_shape(part, parts[0]):
            raise ValueError(
                f"stack: member {index} differs from member 0 in more than the values of its "
                "numbers; a batch is of one shape: make one batch of each shape."
            )
    numbers = [part[0] for part in parts]
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(v) for v in x]), *numbers)
    return eqx.combine(stacked, parts[0][1])


def _same_shape(one: tuple[PyTree, PyTree], other: tuple[PyTree, PyTree]) -> bool:
    """Numbers of the same shapes and types, and the rest the same."""
    (a, a_rest), (b, b_rest) = one, other
    same = jax.tree.structure(a) == jax.tree.structure(b)
    return same and _types(a) == _types(b) and bool(eqx.tree_equal(a_rest, b_rest))


def _types(numbers: PyTree) -> list:
    return [(jnp.shape(x), jnp.result_type(x)) for x in jax.tree.leaves(numbers)]


def _axes(call: Call, in_axes: PyTree) -> list[Any]:
    """The axis of each leaf, or `_SHARED`."""
    marked = jax.tree.map(_checked_axis, in_axes, is_leaf=lambda axis: axis is None)
    try:
        return jax.tree.leaves(jax.tree.broadcast(Call(cast(Any, _SHARED), marked), call))
    except ValueError as error:
        raise ValueError(
            f"in_axes {in_axes} does not fit the batch ({error}); give one axis for everything, or "
            "a pytree that ends where branches of the batch share an axis."
        ) from error


def _checked_axis(axis):
    if axis is None:
        return _SHARED
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise TypeError(
            f"in_axes: {axis!r} is no axis; give an integer, or None for what all members share."
        )
    return axis


def _length(path, leaf, axis: int) -> int:
    if -leaf.ndim <= axis < leaf.ndim:
        return leaf.shape[axis]
    raise ValueError(
        f"the leaf {leaf_name(path)} of shape {tuple(leaf.shape)} has no axis {axis} of members; "
        "give in_axes with None for what all members share."
    )


def _agreed(sizes: dict[str, int]) -> int:
    if not sizes:
        raise ValueError("the batch has no array with an axis of members: there is nothing to map.")
    (first, count), *others = sizes.items()
    for name, size in others:
        if size != count:
            raise ValueError(
                f"the leaves {first} and {name} have {count} and {size} members; give as many of "
                "each, or in_axes with None for what all members share."
            )
    if count == 0:
        raise ValueError("the batch has 0 members; give one at least.")
    return count


def _on_host(leaf, axis: int):
    axis = axis % max(leaf.ndim, 1)  # of random keys, whose numbers come behind their own axes
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return _Keys(_moved(jax.random.key_data(leaf), axis), jax.random.key_impl(leaf))
    return _moved(leaf, axis)


def _moved(leaf, axis: int) -> np.ndarray:
    array = np.asarray(leaf)
    return np.moveaxis(array, axis, 0) if array.ndim else array
