"""Entries and sums of products of entries, at places that are known before anything is computed."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class Sums(NamedTuple):
    """Sums of terms made of entries of arrays, each sum with terms of its own.

    Args:
        indices: for each factor of a term the entry it takes, shape `(terms, sums)`, or `(terms,)`
            with `targets`; -1 where a sum has fewer terms than others.
        targets: which sum a term belongs to, in increasing order; `None` for a table.
        size: number of sums.
    """

    indices: tuple[np.ndarray, ...]
    targets: np.ndarray | None
    size: int


def sums(targets: Iterable[int], factors: Iterable[Iterable[int]], count: int) -> Sums:
    """Sort terms by the sum they belong to: a table, unless that would be mostly empty.

    Args:
        targets: which sum each term belongs to.
        factors: for each factor, the entry that each term takes.
        count: number of sums.
    """
    target = np.array(list(targets), int)
    order = np.argsort(target, kind="stable")
    target = target[order]
    indices = [np.array(list(x), int)[order] for x in factors]
    terms = np.bincount(target, minlength=count)
    longest = int(terms.max(initial=0))
    if longest * count > 4 * target.size + 64:
        return Sums(tuple(indices), target, count)
    row = np.arange(target.size) - np.repeat(np.cumsum(terms) - terms, terms)
    tables = tuple(np.full((longest, count), -1) for _ in indices)
    for table, index in zip(tables, indices, strict=True):
        table[row, target] = index
    return Sums(tables, None, count)


def add_up(sums: Sums, term: Callable[..., Array]) -> Array:
    """Sums over `term(*indices)`, whose last axes are those of the indices; `(..., size)`."""
    terms = term(*sums.indices)
    if sums.targets is None:
        return jnp.sum(terms, axis=-2)
    zero = jnp.zeros((*terms.shape[:-1], sums.size), terms.dtype)
    return zero.at[..., sums.targets].add(terms, indices_are_sorted=True, mode="promise_in_bounds")


def take(x: Array, index: np.ndarray) -> Array:
    """Entries along the last axis by known indices, zero for -1; `(..., *index.shape)`."""
    if x.shape[-1] == 0:
        return jnp.zeros((*x.shape[:-1], *index.shape), x.dtype)
    missing = index < 0
    inside = np.where(missing, 0, index)
    taken = x.at[..., inside].get(mode="promise_in_bounds", wrap_negative_indices=False)
    return jnp.where(missing, 0, taken) if missing.any() else taken
