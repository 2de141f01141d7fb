"""What is known of parameters before they are fitted."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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


class Priors(NamedTuple):
    """Priors of a fit.

    Args:
        entries: numbers of the parameters among those that are estimated.
        means: where they are expected.
        sigmas: standard deviations.
    """

    entries: np.ndarray
    means: Float[Array, " k"]
    sigmas: Float[Array, " k"]


def arranged(priors: Mapping[str, Prior] | None, names: Sequence[str]) -> Priors:
    """Priors by the numbers of their parameters.

    Args:
        priors: by name.
        names: of what is estimated.

    Raises:
        ValueError: for a name that is not among them.
        TypeError: for what is no `Prior`.
    """
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


def by_name(priors: Priors, names: Sequence[str]) -> dict[str, Prior]:
    """Priors as they were given.

    Args:
        priors: of a fit.
        names: of what is estimated.
    """
    rows = zip(priors.entries, priors.means, priors.sigmas, strict=True)
    return {names[int(k)]: Prior(float(mean), float(sigma)) for k, mean, sigma in rows}


def _number(name: str, value: Any) -> float:
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "fiu" or not np.isfinite(value):
        raise ValueError(f"Prior: {name} is {value!r}, must be one finite number.")
    return float(value)
