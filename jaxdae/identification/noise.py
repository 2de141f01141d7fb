"""Noise levels that are not known: first guesses, and estimates from what a fit leaves over."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.identification.residuals import Fit
from jaxdae.identification.uncertainty import condensed, seen_columns

# Degrees of freedom below this are zero to round-off: the fit goes through every sample.
NO_FREEDOM = 1e-6
# Of columns of length one, singular values below this part of the largest are zero.
_DEPENDENT = 1e-8
# Runs of some hundred steps are exact to so many units of round-off of what they show.
_ROUND_OFFS = 50


class Counts(NamedTuple):
    """What a fit has to go by.

    Args:
        samples: of each channel.
        unknown_noise: which channels have a noise level to be estimated.
        others: measurements besides samples.
        nodes: unknowns that the continuity of the states determines.
    """

    samples: np.ndarray
    unknown_noise: np.ndarray
    others: int
    nodes: int

    @property
    def total(self) -> int:
        """Samples and other measurements together."""
        return int(self.samples.sum()) + self.others


class Levels(NamedTuple):
    """Noise levels of a batch of fits.

    Args:
        noise: of channels, one for those whose noise is in the weights, `(fits, channels)`.
        freedom: degrees of freedom that the samples of each channel leave, `(fits, channels)`.
    """

    noise: np.ndarray
    freedom: np.ndarray


def first_noise(fit: Fit, counts: Counts) -> np.ndarray:
    """Spread of the samples of channels whose noise is not known, to begin with."""
    noise = np.ones(len(fit.model.channels))
    for c in np.flatnonzero(counts.unknown_noise):
        spread = float(np.std(_samples(fit, int(c))))
        noise[c] = spread if spread > 0 else 1.0
    return noise


def round_off(fit: Fit) -> np.ndarray:
    """Of each channel, below which a run says nothing of the noise: round-off of the samples."""
    sizes = [np.abs(_samples(fit, c)).max(initial=0.0) for c in range(len(fit.model.channels))]
    return _ROUND_OFFS * float(jnp.finfo(jnp.result_type(float)).eps) * np.array(sizes)


def _samples(fit: Fit, c: int) -> np.ndarray:
    """All samples of a channel."""
    batches = [(b, b.channels.index(c)) for b in fit.batches if c in b.channels]
    parts = [np.asarray(b.values)[:, i][np.asarray(b.weights)[:, i] > 0] for b, i in batches]
    return np.concatenate(parts)


def estimated_noise(fit: Fit, x, values, counts: Counts, noise: np.ndarray, jac) -> Levels:
    r"""Noise levels from the residuals of fits, each channel by its own degrees of freedom.

        sigma_c^2 = sum_{i in c} r_i^2 / (n_c - sum_{i in c} H_ii),    H = J (J^T J)^{-1} J^T

    The leverages `H_ii` say how many of the parameters each channel determines; they add up to the
    number of parameters. No level is below round-off.

    Args:
        fit: what was fitted.
        x: unknowns, shape `(fits, p)`.
        values: what was measured in every fit.
        counts: how much there is.
        noise: so far, shape `(fits, channels)`.
        jac: derivatives of the residuals in units of that noise, shape `(fits, residuals, p)`.
    """
    freedom = channel_freedom(fit, x, counts, jac)
    squares = np.asarray(channel_squares(fit, x, values))
    free = freedom > NO_FREEDOM
    found = np.maximum(np.sqrt(squares / np.where(free, freedom, 1.0)), round_off(fit))
    return Levels(np.where(counts.unknown_noise & free & (found > 0), found, noise), freedom)


def channel_freedom(fit: Fit, x, counts: Counts, jac) -> Float[np.ndarray, "fits channels"]:
    """Samples of each channel less the parameters that they determine; arguments as above."""
    pairs = zip(np.asarray(jac), np.asarray(x), strict=True)
    taken = np.stack([channel_leverages(fit, j, fit.units(at)) for j, at in pairs])
    return np.maximum(counts.samples - taken, 0.0)


def channel_leverages(fit: Fit, jac: np.ndarray, units: np.ndarray) -> Float[np.ndarray, " c"]:
    """How many parameters the samples of each channel determine.

    Args:
        fit: what was fitted.
        jac: derivatives of the residuals of one fit, in units of the noise.
        units: what changes of the unknowns are small against.
    """
    total = np.zeros(len(fit.model.channels))
    if not np.isfinite(jac).all():
        return total
    nodes = fit.node_entries
    rows = condensed(jac, nodes, fit.gap_count)
    rows = rows[:, seen_columns(rows, units[~nodes])].astype(float)
    rows = rows / np.abs(rows).max(axis=0)  # whose squares would overflow
    rows = rows / np.linalg.norm(rows, axis=0)
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    leverages = np.sum(left[:, sizes > _DEPENDENT * sizes.max(initial=0.0)] ** 2, axis=1)
    places = row_channels(fit)
    np.add.at(total, places[places >= 0], leverages[: places.size][places >= 0])
    return total


def row_channels(fit: Fit) -> np.ndarray:
    """Number of the channel of each residual but the gaps; -1 for starts and priors."""
    parts = []
    for batch in fit.batches:
        runs, _, times = batch.values.shape
        parts.append(np.tile(np.repeat(batch.channels, times), runs))
        parts.append(np.full(batch.starts.tangent.prior.shape[:2], -1).ravel())
    parts.append(np.full(fit.priors.entries.size, -1))
    return np.concatenate(parts).astype(int)


@eqx.filter_jit
def channel_squares(fit: Fit, x, values: Any) -> Float[Array, "fits channels"]:
    """Sums of squares of every channel, in the units of its weights."""

    def one(x, values):
        total = jnp.zeros(len(fit.model.channels), x.dtype)
        for batch, found, measured in zip(fit.batches, fit.readings(x), values.runs, strict=True):
            squares = ((found.values - measured.channels) * batch.weights) ** 2
            total = total.at[jnp.asarray(batch.channels)].add(squares.sum(axis=(0, 2)))
        return total

    return eqx.filter_vmap(one)(x, values)


def require_freedom(counts: Counts, freedom: np.ndarray, unknowns: int, names) -> None:
    """Refuse channels whose noise level is wanted and whose samples are all met exactly.

    Args:
        counts: how much there is.
        freedom: degrees of freedom of each channel.
        unknowns: number of what is estimated.
        names: of the channels.

    Raises:
        ValueError: naming the channels.
    """
    none = [
        f"of {name!r} cannot be estimated from {_counted(n, 'sample')} and "
        f"{_counted(unknowns, 'unknown')}"
        for name, n, unknown, left in zip(
            names, counts.samples, counts.unknown_noise, freedom, strict=True
        )
        if unknown and left <= NO_FREEDOM
    ]
    if none:
        raise ValueError(
            f"identify: the noise {', that '.join(none)}: the model can meet every sample. Give "
            "the level, Measurement(values, sigma), or more samples."
        )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
