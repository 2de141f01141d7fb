"""What the data say of the parameters, and of noise levels that are not known."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from jaxdae.identification.fit import Fit
from jaxdae.identification.linearization import LinearizedFit, triangle

# Sensitivities are exact to round-off, which fixed steps multiply; below this part of the largest
# (of columns of length one) a singular value is zero.
ROUND_OFF = {8: 1e-9, 4: 1e-4}
# Parts of a direction below this do not belong to it.
NEGLIGIBLE = 1e-3
# Degrees of freedom below this are zero to round-off: the fit goes through every sample.
_NO_FREEDOM = 1e-6
# Of columns of length one, singular values below this part of the largest are zero.
_DEPENDENT = 1e-8
# Standard deviation of normal numbers, by the median of their sizes.
_OF_MEDIAN = 1.4826
# Runs of some hundred steps are exact to so many units of round-off of what they show.
_ROUND_OFFS = 50


class Sensitivity(NamedTuple):
    """Directions of the unknowns, by how far the data see them."""

    # Of the unknowns in the directions that are seen, shape `(p, p)`.
    covariance: Float[np.ndarray, "p p"]
    # Directions that change no residual, orthonormal in scaled unknowns, `(p, k)`.
    unseen: Float[np.ndarray, "p k"]
    sizes: Float[np.ndarray, " p"]  # lengths of the columns of the Jacobian, shape `(p,)`
    singular_values: Float[np.ndarray, " p"]  # of the Jacobian with columns of length one

    @property
    def rank(self) -> int:
        """Number of independent directions that the data see."""
        return self.sizes.size - self.unseen.shape[1]


def seen_columns(found: LinearizedFit, units: np.ndarray) -> Bool[np.ndarray, " p"]:
    """Which unknowns change a residual by more than round-off, beside the `units` of each."""
    effects = found.largest() * units
    return effects > ROUND_OFF[found.precision.itemsize] * effects.max(initial=0.0)


def sensitivity(found: LinearizedFit, units: np.ndarray) -> Sensitivity:
    r"""Covariance `(J^T J)^{-1}` by the singular values of `J` with columns of length one.

    Directions whose singular value vanishes to round-off are not identifiable: the data say
    nothing of them, and the covariance is that of the others. Unknowns are those that are left
    when later starts follow from closed gaps; `units` are theirs.
    """
    tolerance = ROUND_OFF[found.precision.itemsize]
    found = found.closed()
    kept = kept_entries(found)
    seen = seen_columns(found, np.where(kept, units, 1.0))[kept]
    jac = np.where(seen, triangular(found)[:, kept], 0.0)
    sizes = np.linalg.norm(jac, axis=0)
    scale = np.where(seen, sizes, 1.0)
    # As many rows as columns at least: then the short form has all directions.
    rows = np.pad(jac / scale, ((0, max(0, sizes.size - len(jac))), (0, 0)))
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    good = values > tolerance * values.max(initial=0.0)
    basis = right[good].T / scale[:, None]
    covariance = (basis / values[good] ** 2) @ basis.T
    return Sensitivity(covariance, right[~good].T, sizes, values)


def kept_entries(found: LinearizedFit) -> Bool[np.ndarray, " p"]:
    """Which unknowns residuals depend on, when later starts follow from closed gaps."""
    kept = np.zeros(found.unknowns, bool)
    kept[: found.prior_slopes.shape[1]] = True
    for g in found.groups:
        kept[g.entries] = True
    return kept


def triangular(found: LinearizedFit) -> Float[np.ndarray, "k p"]:
    """A matrix of few rows with the products of the Jacobian's columns."""
    p = found.prior_slopes.shape[1]
    parts, last = [], [found.prior_slopes]
    for g in found.groups:
        d = g.entries.shape[1]
        rows = triangle(np.concatenate([g.own, g.shared], axis=2))
        for entries, r in zip(g.entries, rows, strict=True):
            part = np.zeros((min(d, len(r)), found.unknowns))
            part[:, :p], part[:, entries] = r[:d, d:], r[:d, :d]
            parts.append(part)
        last.append(rows[:, d:, d:].reshape(-1, p))
    rest = triangle(np.concatenate(last))
    return np.concatenate([*parts, np.pad(rest, ((0, 0), (0, found.unknowns - p)))])


def open_entries(found: Sensitivity) -> np.ndarray:
    """Which unknowns have a part in a direction that the data do not see."""
    return np.linalg.norm(found.unseen, axis=1) > NEGLIGIBLE


def propagated(
    found: Sensitivity, slopes: Float[np.ndarray, "k p"]
) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, " k"]]:
    """Covariance of functions of the unknowns, in the directions that are seen, and their errors.

    Standard errors are infinite where a direction that is not seen takes part; `slopes` are the
    derivatives of the functions.
    """
    covariance = slopes @ found.covariance @ slopes.T
    unknown = np.any(slopes[:, open_entries(found)] != 0, axis=1)
    errors = np.where(unknown, np.inf, np.sqrt(np.maximum(np.diagonal(covariance), 0.0)))
    return covariance, errors


class SampleCounts(NamedTuple):
    """What a fit has to go by."""

    samples: np.ndarray  # of each channel
    unknown_noise: np.ndarray  # which channels have a noise level to be estimated
    others: int  # measurements besides samples

    @property
    def total(self) -> int:
        """Samples and other measurements together."""
        return int(self.samples.sum()) + self.others


def first_noise(fit: Fit, counts: SampleCounts, *, robust: bool = False) -> np.ndarray:
    """Spread of the samples of channels whose noise is not known, to begin with.

    Where outliers are expected it is that by the median, of which they change little.
    """
    noise = np.ones(len(fit.model.channels))
    for c in np.flatnonzero(counts.unknown_noise):
        samples = _samples(fit, int(c))
        middle = median_level(samples - np.median(samples)) if robust else 0.0
        noise[c] = middle or float(np.std(samples)) or 1.0
    return noise


def median_level(differences: Float[np.ndarray, " n"]) -> float:
    """Standard deviation of normal differences by the median of their sizes, NaN left out."""
    return float(np.nanmedian(np.abs(differences))) * _OF_MEDIAN


def round_off(fit: Fit) -> np.ndarray:
    """Of each channel, below which a run says nothing of the noise: round-off of the samples."""
    sizes = [np.abs(_samples(fit, c)).max(initial=0.0) for c in range(len(fit.model.channels))]
    return _ROUND_OFFS * float(jnp.finfo(jnp.result_type(float)).eps) * np.array(sizes)


def _samples(fit: Fit, c: int) -> np.ndarray:
    """All samples of a channel."""
    batches = [(b, b.channels.index(c)) for b in fit.batches if c in b.channels]
    parts = [np.asarray(b.values)[:, i][np.asarray(b.weights)[:, i] > 0] for b, i in batches]
    return np.concatenate(parts)


class Explained(NamedTuple):
    """Rows of an orthonormal basis of the columns of a Jacobian, of the records of a group."""

    own: Float[np.ndarray, "records m d"]  # of what each has alone
    shared: Float[np.ndarray, "records m k"]  # of what is left of what all share


class Basis(NamedTuple):
    """An orthonormal basis of the columns of a Jacobian, and how estimates follow from it."""

    groups: list[Explained]
    priors: Float[np.ndarray, "n k"]  # rows of the priors
    # From products of residuals with the shared part to changes of what all records share.
    shared_map: Float[np.ndarray, "p k"]


def basis_of(found: LinearizedFit, seen: np.ndarray) -> Basis:
    """By the starts of each record first, then by what all share, of unknowns that are `seen`."""
    p = found.prior_slopes.shape[1]
    norms = found.norms()
    scale = np.where(seen & (norms > 0), 1.0 / np.where(norms > 0, norms, 1.0), 0.0)
    own, left, last = [], [], [found.prior_slopes * scale[:p]]
    for g in found.groups:
        columns = g.own * scale[g.entries][:, None]
        u, sizes, _ = np.linalg.svd(columns, full_matrices=False)
        good = sizes > _DEPENDENT * sizes.max(axis=1, initial=0.0, keepdims=True)
        u = np.where(good[:, None], u, 0.0)
        rest = g.shared * scale[:p]
        rest = rest - u @ (np.swapaxes(u, 1, 2) @ rest)
        own.append(u)
        left.append(rest)
        last.append(triangle(rest).reshape(-1, p))
    _, sizes, right = np.linalg.svd(np.concatenate(last), full_matrices=False)
    good = sizes > _DEPENDENT * sizes.max(initial=0.0)
    to_basis = right[good].T / sizes[good]
    parts = [Explained(u, rest @ to_basis) for u, rest in zip(own, left, strict=True)]
    return Basis(parts, last[0] @ to_basis, scale[:p, None] * to_basis)


def root_mean_square(residuals: Float[np.ndarray, " n"], freedom: float) -> float:
    """Noise level of residuals that are normal, with so many degrees of freedom."""
    return float(np.sqrt(np.sum(residuals**2) / freedom))


def estimated_noise(
    fit: Fit, found: LinearizedFit, counts: SampleCounts, noise: np.ndarray, units: np.ndarray,
    level_of: Callable[[np.ndarray, float], float] = root_mean_square,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    r"""Noise levels from the residuals of a fit, each channel by its own degrees of freedom.

        sigma_c^2 = sum_{i in c} r_i^2 / (n_c - sum_{i in c} H_ii),    H = J (J^T J)^{-1} J^T

    The leverages `H_ii` say how many of the parameters each channel determines; they add up to the
    number of parameters. No level is below round-off.

    Args:
        fit: what was fitted.
        found: residuals in units of the noise so far.
        counts: how much there is.
        noise: so far, shape `(channels,)`.
        units: of the unknowns.
        level_of: the level, in units of that so far, from residuals and their degrees of freedom.

    Returns:
        Levels, and the degrees of freedom that the samples of each channel leave.
    """
    freedom = channel_freedom(found, counts, units)
    free = freedom > _NO_FREEDOM
    level = noise * channel_levels(found, np.where(free, freedom, 1.0), level_of)
    level = np.maximum(level, round_off(fit))
    return np.where(counts.unknown_noise & free & (level > 0), level, noise), freedom


def channel_levels(
    found: LinearizedFit,
    freedom: Float[np.ndarray, " channels"],
    level_of: Callable[[np.ndarray, float], float] = root_mean_square,
) -> Float[np.ndarray, " channels"]:
    """Noise level of each channel, in units of that so far; a sample that is missing is zero."""
    parts = [[g.value[:, g.rows == c].ravel() for g in found.groups] for c in range(freedom.size)]
    return np.array([level_of(np.concatenate(x), float(freedom[c])) for c, x in enumerate(parts)])


def channel_freedom(
    found: LinearizedFit, counts: SampleCounts, units: np.ndarray
) -> Float[np.ndarray, " channels"]:
    """Samples of each channel less the parameters that they determine; arguments as above."""
    taken = np.zeros(counts.samples.size)
    if not found.finite:
        return np.maximum(counts.samples - taken, 0.0)
    found = found.closed()
    explained = basis_of(found, seen_columns(found, units))
    for g, part in zip(found.groups, explained.groups, strict=True):
        leverages = np.sum(part.own**2, axis=(0, 2)) + np.sum(part.shared**2, axis=(0, 2))
        rows = g.rows >= 0
        np.add.at(taken, g.rows[rows], leverages[rows])
    return np.maximum(counts.samples - taken, 0.0)


def require_freedom(counts: SampleCounts, freedom: np.ndarray, unknowns: int, names) -> None:
    """Refuse channels whose noise level is wanted and whose samples are all met exactly."""
    rows = zip(names, counts.samples, counts.unknown_noise, freedom, strict=True)
    none = [
        f"of {name!r} cannot be estimated from {n} sample{'' if n == 1 else 's'} and {unknowns} "
        f"unknown{'' if unknowns == 1 else 's'}"
        for name, n, unknown, left in rows
        if unknown and left <= _NO_FREEDOM
    ]
    if none:
        raise ValueError(
            f"identify: the noise {', that '.join(none)}: the model can meet every sample. Give "
            "the level, Measurement(values, sigma), or more samples."
        )
