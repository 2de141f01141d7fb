"""Fits of a batch of data sets: weights, noise that is not known, and how each one ended."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.identification.least_squares import LeastSquares, value_and_jacobian
from jaxdae.identification.residuals import Fit

# Noise levels have converged where they change by less than this part: far below what they are
# known to from any number of samples.
_NOISE_TOLERANCE = 1e-3
_MOST_ROUNDS = 10
# A fit is at a minimum where a further step promises less than this decrease of chi-square, or this
# part of it: a tenth of a standard error. Directions that data see less than the last are open.
_OPEN = 1e-2
_RELATIVE = 1e-8
_SEEN = 1e-6


class Data(NamedTuple):
    """What the residuals of a fit depend on besides its unknowns.

    Args:
        values: samples, for each batch of runs.
        noise: of channels, one for those whose noise is in the weights.
        weight: of gaps between intervals.
        scale: of the unknowns.
    """

    values: Any
    noise: Any
    weight: Any
    scale: Any


class Weighted(eqx.Module):
    """Residuals of a fit by scaled unknowns."""

    fit: Fit

    def __call__(self, y, data: Data):
        """Residuals in units of the noise."""
        return self.fit.residuals(data.scale * y, data.values, data.noise, data.weight)


@eqx.filter_jit
def linearized(fit: Fit, x, data: Data):
    """Residuals and their Jacobian by the unknowns, of a batch of fits."""

    def one(x, data):
        return value_and_jacobian(
            lambda x: fit.residuals(x, data.values, data.noise, data.weight), x
        )

    return eqx.filter_vmap(one)(x, data)


@eqx.filter_jit
def channel_squares(fit: Fit, x, values) -> Float[Array, "fits channels"]:
    """Sums of squares of every channel, in the units of its weights."""

    def one(x, values):
        total = jnp.zeros(len(fit.model.channels), x.dtype)
        for batch, found, measured in zip(fit.batches, fit.readings(x), values, strict=True):
            squares = ((found.values - measured) * batch.weights) ** 2
            total = total.at[jnp.asarray(batch.channels)].add(squares.sum(axis=(0, 2)))
        return total

    return eqx.filter_vmap(one)(x, values)


class Counts(NamedTuple):
    """What a fit has to go by.

    Args:
        samples: of each channel.
        unknown_noise: which channels have a noise level to be estimated.
        others: measurements besides samples.
    """

    samples: np.ndarray
    unknown_noise: np.ndarray
    others: int

    @property
    def total(self) -> int:
        """Samples and other measurements together."""
        return int(self.samples.sum()) + self.others


class Ended(NamedTuple):
    """How the fits of a batch ended.

    Args:
        x: unknowns, shape `(fits, p)`.
        noise: of channels, shape `(fits, channels)`.
        cost: sum of squares, shape `(fits,)`.
        steps: taken or refused, shape `(fits,)`.
        converged: which fits are at a minimum, shape `(fits,)`.
        stuck: which fits are where they began, shape `(fits,)`.
    """

    x: np.ndarray
    noise: np.ndarray
    cost: np.ndarray
    steps: np.ndarray
    converged: np.ndarray
    stuck: np.ndarray


def repeated(tree: Any, count: int) -> Any:
    """The same for every fit of a batch."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


def samples_of(fit: Fit) -> list:
    """Samples of each batch of runs."""
    return [batch.values for batch in fit.batches]


def first_noise(fit: Fit, counts: Counts) -> np.ndarray:
    """Spread of the samples of channels whose noise is not known, to begin with."""
    noise = np.ones(len(fit.model.channels))
    for c in np.flatnonzero(counts.unknown_noise):
        parts = [
            np.asarray(b.values)[:, b.channels.index(c)][
                np.asarray(b.weights)[:, b.channels.index(c)] > 0
            ]
            for b in fit.batches
            if c in b.channels
        ]
        spread = float(np.std(np.concatenate(parts)))
        noise[c] = spread if spread > 0 else 1.0
    return noise


def estimate(
    fit: Fit, x, values, counts: Counts, *, steps: int, weight: float = 0.0,
    watch: Callable | None = None,
) -> Ended:  # fmt: skip
    """Fit a batch of data sets.

    Noise levels that are not known are those of maximum likelihood, corrected for the number of
    parameters: fit and noise are estimated in turn.

    Args:
        fit: what is fitted.
        x: where to begin, shape `(fits, p)`.
        values: samples of every fit, leading axis `fits`.
        counts: how many there are.
        steps: largest number of steps of each fit.
        weight: of gaps between intervals.
        watch: called after each step.
    """
    many = x.shape[0]
    noise = np.tile(first_noise(fit, counts), (many, 1))
    total, guess = np.zeros(many, int), x
    data = Data(values, jnp.asarray(noise, x.dtype), repeated(weight, many), None)
    for _ in range(_MOST_ROUNDS):
        data = scaled(fit, x, data._replace(noise=jnp.asarray(noise, x.dtype)))
        fits = LeastSquares(Weighted(fit), steps)
        progress = fits.run(fits.begin(x / data.scale, data), data, watch)
        x = progress.x * data.scale
        total += np.asarray(progress.steps)
        new = _noise(fit, x, values, counts, noise)
        change = np.abs(new / noise - 1)
        noise = new
        if not np.any(change > _NOISE_TOLERANCE):
            break
    data = data._replace(noise=jnp.asarray(noise, x.dtype))
    residuals, jac = (np.asarray(a) for a in linearized(fit, x, data))
    cost, first = _squares(residuals), _squares(np.asarray(linearized(fit, guess, data)[0]))
    small = expected_decrease(residuals, jac) <= _OPEN * (1 + _RELATIVE * cost)
    converged = small & np.isfinite(cost)
    stuck = ~converged & ~(cost < first * (1 - _RELATIVE))
    return Ended(np.asarray(x), noise, cost, total, converged, stuck)


def _squares(residuals: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.sum(residuals**2, axis=1)


def expected_decrease(residuals: np.ndarray, jac: np.ndarray) -> np.ndarray:
    """By how much a step of Gauss and Newton would lower the sums of squares, were models linear.

    Zero at a minimum, where the residuals are orthogonal to all columns of the Jacobian.

    Args:
        residuals: of each fit, shape `(fits, residuals)`.
        jac: their Jacobians, shape `(fits, residuals, p)`.
    """
    left = []
    for r, j in zip(residuals, jac, strict=True):
        if not (np.isfinite(r).all() and np.isfinite(j).all()):
            left.append(np.nan)
            continue
        j = j / np.maximum(np.abs(j).max(axis=0), np.finfo(j.dtype).tiny)  # norms overflow
        sizes = np.maximum(np.linalg.norm(j, axis=0), np.finfo(j.dtype).tiny)
        directions, values, _ = np.linalg.svd(j / sizes, full_matrices=False)
        seen = values > _SEEN * values.max(initial=0.0)
        with np.errstate(over="ignore"):  # of a fit that is beyond help
            left.append(float(np.sum((directions[:, seen].T @ r) ** 2)))
    return np.array(left)


def scaled(fit: Fit, x, data: Data) -> Data:
    """Unknowns in units that change the residuals by one, all else the same."""
    _, jac = linearized(fit, x, data._replace(scale=jnp.ones_like(x)))
    sizes = jnp.linalg.norm(jac, axis=1)
    good = jnp.isfinite(sizes) & (sizes > 0)
    return data._replace(scale=jnp.where(good, 1.0 / jnp.where(good, sizes, 1.0), 1.0))


def _noise(fit: Fit, x, values, counts: Counts, noise: np.ndarray) -> np.ndarray:
    if not counts.unknown_noise.any():
        return noise
    squares = np.asarray(channel_squares(fit, x, values))
    free = max(1.0 - x.shape[1] / counts.total, 1.0 / counts.total)
    found = np.sqrt(squares / (np.maximum(counts.samples, 1) * free))
    return np.where(counts.unknown_noise & (found > 0), found, noise)
