"""What the data say of the parameters, and of noise levels that are not known."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdae.identification.fit import Fit, Samples

# Sensitivities are exact to round-off, which fixed steps multiply; below this part of the largest
# (of columns of length one) a singular value is zero.
ROUND_OFF = {8: 1e-9, 4: 1e-4}
# Parts of a direction below this do not belong to it.
NEGLIGIBLE = 1e-3
# Degrees of freedom below this are zero to round-off: the fit goes through every sample.
_NO_FREEDOM = 1e-6
# Of columns of length one, singular values below this part of the largest are zero.
_DEPENDENT = 1e-8
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


def seen_columns(
    jac: Float[np.ndarray, "residuals p"], units: np.ndarray
) -> Bool[np.ndarray, " p"]:
    """Which unknowns change a residual by more than round-off, beside the `units` of each."""
    effects = np.abs(jac).max(axis=0, initial=0.0) * units
    return effects > ROUND_OFF[jac.dtype.itemsize] * effects.max(initial=0.0)


def sensitivity(jac: Float[np.ndarray, "residuals p"], units: np.ndarray) -> Sensitivity:
    r"""Covariance `(J^T J)^{-1}` by the singular values of `J` with columns of length one.

    Directions whose singular value vanishes to round-off are not identifiable: the data say
    nothing of them, and the covariance is that of the others.
    """
    tolerance = ROUND_OFF[jac.dtype.itemsize]
    seen = seen_columns(jac, units)
    jac = np.where(seen, np.asarray(jac, float), 0.0)
    sizes = np.linalg.norm(jac, axis=0)
    scale = np.where(seen, sizes, 1.0)
    # As many rows as columns at least: then the short form has all directions.
    rows = np.pad(jac / scale, ((0, max(0, sizes.size - len(jac))), (0, 0)))
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    good = values > tolerance * values.max(initial=0.0)
    basis = right[good].T / scale[:, None]
    covariance = (basis / values[good] ** 2) @ basis.T
    return Sensitivity(covariance, right[~good].T, sizes, values)


def condensed(
    jac: Float[np.ndarray, "residuals p"], nodes: np.ndarray, gaps: int
) -> Float[np.ndarray, "residuals q"]:
    """Derivatives by what is left when starts of later intervals (`nodes`) follow from closed gaps.

    The gaps are the last residuals, as many as these starts have unknowns.
    """
    if not gaps:
        return jac
    rows, closed = jac[:-gaps], jac[-gaps:]
    follow = np.linalg.solve(closed[:, nodes], closed[:, ~nodes])
    return rows[:, ~nodes] - rows[:, nodes] @ follow


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


def first_noise(fit: Fit, counts: SampleCounts) -> np.ndarray:
    """Spread of the samples of channels whose noise is not known, to begin with."""
    noise = np.ones(len(fit.model.channels))
    for c in np.flatnonzero(counts.unknown_noise):
        noise[c] = float(np.std(_samples(fit, int(c)))) or 1.0
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


def estimated_noise(
    fit: Fit, x, values: Samples, counts: SampleCounts, noise: np.ndarray, jac
) -> tuple[np.ndarray, np.ndarray]:
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

    Returns:
        Levels, and the degrees of freedom that the samples of each channel leave.
    """
    freedom = channel_freedom(fit, x, counts, jac)
    squares = np.asarray(_squares_by_channel(fit, x, values))
    free = freedom > _NO_FREEDOM
    found = np.maximum(np.sqrt(squares / np.where(free, freedom, 1.0)), round_off(fit))
    return np.where(counts.unknown_noise & free & (found > 0), found, noise), freedom


def channel_freedom(fit: Fit, x, counts: SampleCounts, jac) -> Float[np.ndarray, "fits channels"]:
    """Samples of each channel less the parameters that they determine; arguments as above."""
    pairs = zip(np.asarray(jac), np.asarray(x), strict=True)
    taken = np.stack([_leverages(fit, j, fit.units(at)) for j, at in pairs])
    return np.maximum(counts.samples - taken, 0.0)


def _leverages(fit: Fit, jac: np.ndarray, units: np.ndarray) -> Float[np.ndarray, " channels"]:
    """How many parameters the samples of each channel determine."""
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
    parts = []  # the channel of each residual; -1 for starts and priors
    for batch in fit.batches:
        runs, _, times = batch.values.shape
        parts.append(np.tile(np.repeat(batch.channels, times), runs))
        parts.append(np.full(batch.runs.prior.shape[:2], -1).ravel())
    places = np.concatenate([*parts, np.full(fit.priors.entries.size, -1)]).astype(int)
    np.add.at(total, places[places >= 0], leverages[places >= 0])
    return total


@eqx.filter_jit
def _squares_by_channel(fit: Fit, x, values: Samples) -> Float[Array, "fits channels"]:
    """Sums of squares of every channel, in the units of its weights."""

    def one(x, values):
        total = jnp.zeros(len(fit.model.channels), x.dtype)
        made = zip(fit.batches, fit.predictions(x), values.channels, strict=True)
        for batch, found, measured in made:
            squares = ((found.values - measured) * batch.weights) ** 2
            total = total.at[jnp.asarray(batch.channels)].add(squares.sum(axis=(0, 2)))
        return total

    return eqx.filter_vmap(one)(x, values)


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
