"""Names of what is estimated: entries of the parameters, and of what they are written by."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.tuning.parametrizations import (
    AbstractParametrization,
    HurwitzPolynomial,
    Interval,
    is_parametrization,
    Positive,
    PositiveDefinite,
)


class Names(NamedTuple):
    """Names of the entries of the parameters.

    Args:
        values: of the numbers that are estimated, such as `mass` or `stiffness[1]`.
        raw: of the unconstrained numbers that they are written by, such as `log mass`.
    """

    values: tuple[str, ...]
    raw: tuple[str, ...]


def names_of(params: PyTree) -> Names:
    """Names of the estimated entries of a pytree of parameters, in the order of its leaves."""
    values, raw = [], []
    for path, leaf in _estimated(params):
        base = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
        parametrized = is_parametrization(leaf)
        values += _entries(base, np.shape(leaf.value if parametrized else leaf))
        raw += _raw_entries(base, leaf)
    return Names(tuple(values), tuple(raw))


def values_of(params: PyTree) -> jax.Array:
    """The estimated numbers themselves, in the order of their names."""
    leaves = (x for _, x in _estimated(params))
    parts = (jnp.ravel(x.value if is_parametrization(x) else x) for x in leaves)
    return jnp.concatenate([*parts])


def _estimated(params: PyTree) -> list[tuple[Any, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_parametrization)
    return [(path, x) for path, x in leaves if is_parametrization(x) or eqx.is_inexact_array(x)]


def _entries(base: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [base]
    return [f"{base}[{', '.join(map(str, i))}]" for i in np.ndindex(shape)]


_WRITTEN_AS: dict[type[AbstractParametrization], Callable[[str], str]] = {
    Positive: lambda name: f"log {name}",
    Interval: lambda name: f"logit {name}",
    PositiveDefinite: lambda name: f"factor of {name}",
    HurwitzPolynomial: lambda name: f"factor of {name}",
}


def _raw_entries(base: str, leaf: Any) -> list[str]:
    if not is_parametrization(leaf):
        return _entries(base, np.shape(leaf))
    name = _WRITTEN_AS.get(type(leaf), lambda name: f"raw {name}")
    return [name(x) for x in _entries(base, leaf.raw.shape)]
