"""Names and values of what is estimated, and what is known of it beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxdae.tuning.parametrizations import (
    HurwitzPolynomial,
    Interval,
    is_parametrization,
    Positive,
    PositiveDefinite,
)


class Prior:
    """A parameter as it is known from elsewhere: normal, in the parameter's own unit.

    It counts as one more measurement, `(x - mean) / sigma`, of the value itself: of a `Positive`
    not of the logarithm.

    Args:
        mean: where the parameter is expected.
        sigma: standard deviation.

    Raises:
        ValueError: unless both are finite numbers, and the standard deviation is positive.
    """

    mean: float
    sigma: float

    def __init__(self, mean: float, sigma: float):
        self.mean, self.sigma = _number("mean", mean), _number("sigma", sigma)
        if self.sigma <= 0:
            raise ValueError(
                f"Prior: sigma is {self.sigma:g}, must be > 0; to hold a parameter write a Python "
                "number in place of the array."
            )


def _number(name: str, value: Any) -> float:
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "fiu" or not np.isfinite(value):
        raise ValueError(f"Prior: {name} is {value!r}, must be one finite number.")
    return float(value)


class Priors(NamedTuple):
    """Priors of a fit: numbers of the estimated entries, their means and standard deviations."""

    entries: np.ndarray
    means: Float[Array, " k"]
    sigmas: Float[Array, " k"]


def priors_of(priors: Mapping[str, Prior] | None, names: Sequence[str]) -> Priors:
    """Priors by the numbers of their parameters; `ValueError` for one of another name."""
    priors = {} if priors is None else priors
    if not isinstance(priors, Mapping):
        raise TypeError(
            f"identify: priors is a {type(priors).__name__}, must be by name, such as "
            '{"mass": Prior(1.2, 0.1)}.'
        )
    for name, prior in priors.items():
        if name not in names:
            raise ValueError(
                f"identify: there is a prior of {name!r}, but nothing of that name is estimated; "
                f"there are: {', '.join(names)}."
            )
        if not isinstance(prior, Prior):
            raise TypeError(
                f"identify: the prior of {name!r} is a {type(prior).__name__}, must be "
                "Prior(mean, sigma)."
            )
    dtype = jnp.result_type(float)
    entries = np.array([names.index(name) for name in priors], int)
    means, sigmas = ([getattr(p, x) for p in priors.values()] for x in ("mean", "sigma"))
    return Priors(entries, jnp.asarray(means, dtype), jnp.asarray(sigmas, dtype))


_WRITTEN_AS = {
    Positive: "log",
    Interval: "logit",
    PositiveDefinite: "factor of",
    HurwitzPolynomial: "factor of",
}


def names_of(params: PyTree) -> tuple[str, ...]:
    """Names of the estimated numbers, such as `mass` or `stiffness[1]`, in the order of leaves."""
    return tuple(
        name
        for path, x in _estimated(params)
        for name in _entries(path, np.shape(x.value if is_parametrization(x) else x))
    )


def raw_names_of(params: PyTree) -> tuple[str, ...]:
    """Names of the unconstrained numbers that they are written by, such as `log mass`."""
    names = []
    for path, x in _estimated(params):
        how = f"{_WRITTEN_AS.get(type(x), 'raw')} " if is_parametrization(x) else ""
        shape = x.raw.shape if is_parametrization(x) else np.shape(x)
        names += [how + name for name in _entries(path, shape)]
    return tuple(names)


def values_of(params: PyTree) -> jax.Array:
    """The estimated numbers themselves, in the order of their names."""
    leaves = (x.value if is_parametrization(x) else x for _, x in _estimated(params))
    return jnp.concatenate([jnp.ravel(x) for x in leaves])


def _estimated(params: PyTree) -> list[tuple[Any, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_parametrization)
    return [(path, x) for path, x in leaves if is_parametrization(x) or eqx.is_inexact_array(x)]


def _entries(path: Any, shape: tuple[int, ...]) -> list[str]:
    base = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
    return [f"{base}[{', '.join(map(str, i))}]" if shape else base for i in np.ndindex(shape)]
