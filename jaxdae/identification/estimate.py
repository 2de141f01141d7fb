"""Fits of a batch of data sets: weights, noise that is not known, and how each one ended."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.identification.least_squares import (
    begin,
    brief,
    FitProgress,
    FitSolver,
    TOLERANCE,
    value_and_jacobian,
)
from jaxdae.identification.noise import Counts, estimated_noise, first_noise, Levels
from jaxdae.identification.residuals import Fit, Measured, Samples
from jaxdae.identification.uncertainty import seen_columns
from jaxdae.tuning.linearization import Short

# Noise levels have converged where they change by less than this part: far below what they are
# known to from any number of samples.
NOISE_TOLERANCE = 1e-3
_MOST_ROUNDS = 30
# A fit is at a minimum where a further step promises less than this decrease of chi-square, or this
# part of it: a tenth of a standard error. Directions that data see less than the last are open.
_OPEN = 1e-2
_RELATIVE = 1e-8
_SEEN = 1e-6
# Coordinates of divided records are good near where they are made, and are made anew so often.
_STEPS_OF_ROUND = 8
# Weights of gaps between intervals, one after the other: at first they hardly bind, in the end they
# close to round-off of the motion's size.
_WEIGHTS = (1e1, 1e2, 1e3, 1e4, 1e5)


class Measurements(NamedTuple):
    """What the residuals of a fit depend on besides its unknowns.

    Args:
        values: what was measured.
        noise: of channels, one for those whose noise is in the weights.
        weight: of gaps between intervals.
    """

    values: Any
    noise: Any
    weight: Any


class Coordinates(NamedTuple):
    """Unknowns `x = base + directions @ y` in which the least squares are well conditioned.

    Args:
        base: where `y` is zero, shape `(p,)`.
        directions: of which each changes the residuals by about one, shape `(p, p)`.
    """

    base: Any
    directions: Any


@eqx.filter_jit
def linearized(fit: Fit, x, data: Measurements):
    """Residuals and their Jacobian by the unknowns, of a batch of fits."""

    def one(x, data):
        return value_and_jacobian(lambda x: fit.residuals(x, *data), x)

    return eqx.filter_vmap(one)(x, data)


@jax.jit
def _unknowns(along: Coordinates, y):
    return along.base + jax.vmap(jnp.matmul)(along.directions, y)


def _solver(fit: Fit, data: Measurements, along: Coordinates) -> FitSolver:
    """Of fits in the coordinates of a round; runs are made by one program in all rounds."""

    def evaluate(y):
        residuals, jac = linearized(fit, _unknowns(along, y), data)
        return residuals, jac @ along.directions

    def at_end(y, local: Short) -> np.ndarray:
        x, lengths = _unknowns(along, y), jnp.diagonal(along.directions, axis1=1, axis2=2)
        value, slope = np.asarray(local.value), np.asarray(local.slope)
        free = ~_pressed(fit, x, value, slope, np.asarray(lengths))
        return expected_decrease(value, slope, free) <= TOLERANCE[str(y.dtype)] ** 2

    return FitSolver(evaluate, at_end)


class Ended(NamedTuple):
    """How the fits of a batch ended.

    Args:
        x: unknowns, shape `(fits, p)`.
        noise: of channels, shape `(fits, channels)`.
        cost: sum of squares, shape `(fits,)`.
        steps: taken or refused, shape `(fits,)`.
        converged: which fits are at a minimum, and came to the end, shape `(fits,)`.
        pressed: which unknowns are at a bound that the minimum is beyond, shape `(fits, p)`.
        spent: which fits took all their steps, shape `(fits,)`.
        stuck: which fits are where they began, shape `(fits,)`.
        gaps: between intervals, in units of the motion's size, shape `(fits, gaps)`.
        freedom: degrees of freedom of estimated noise levels, shape `(fits, channels)`.
        noise_change: of the noise levels in the last round, relative, shape `(fits,)`.
    """

    x: np.ndarray
    noise: np.ndarray
    cost: np.ndarray
    steps: np.ndarray
    converged: np.ndarray
    pressed: np.ndarray
    spent: np.ndarray
    stuck: np.ndarray
    gaps: np.ndarray
    freedom: np.ndarray
    noise_change: np.ndarray


def repeated(tree: Any, count: int) -> Any:
    """The same for every fit of a batch."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


def samples_of(fit: Fit) -> Samples:
    """What was measured."""
    shapes = [b.starts.tangent.prior.shape[:2] for b in fit.batches]
    runs = [Measured(b.values, jnp.zeros(s)) for b, s in zip(fit.batches, shapes, strict=True)]
    return Samples(runs, fit.priors.means)


def estimate(
    fit: Fit, x, values, counts: Counts, *, steps: int,
    store: "AbstractStore | None" = None, watch: Callable | None = None,
) -> Ended:  # fmt: skip
    """Fit a batch of data sets.

    Noise levels that are not known are those of maximum likelihood, corrected for the number of
    parameters that each channel determines: fit and noise are estimated in turn.

    Args:
        fit: what is fitted.
        x: where to begin, shape `(fits, p)`.
        values: what was measured in every fit, leading axis `fits`.
        counts: how much there is.
        steps: largest number of steps of each fit, in all rounds together.
        store: where every step is saved, and from where an interrupted fit goes on.
        watch: called after each step with the number of steps of each fit.
    """
    many, single = x.shape[0], fit.joints.shape[0] == 0
    stages = (0.0,) if single else _WEIGHTS
    guess, stage, rounds, total = x, 0, 0, np.zeros(many, int)
    noise = np.tile(first_noise(fit, counts), (many, 1))
    last = _Last(total, total > 0, np.full(noise.shape, np.nan), np.zeros(many))
    data = Measurements(values, jnp.asarray(noise, x.dtype), jnp.zeros(many, x.dtype))
    while stage < len(stages) and rounds < _MOST_ROUNDS and not last.spent.all():
        begun = _begun(fit, x, data, stages, Where(noise, total, stage, rounds))
        begun = begun if store is None else store.restored(begun)
        total, stage, rounds = np.asarray(begun.total), int(begun.stage), int(begun.rounds)
        along, noise = begun.along, np.asarray(begun.noise, float)
        weight = jnp.full(many, stages[stage], x.dtype)
        data = data._replace(noise=begun.noise, weight=weight)
        left = np.minimum(steps - total, steps if single else _STEPS_OF_ROUND)
        watching = _watching(begun, store, watch)
        progress = _solver(fit, data, along).run(begun.progress, left, watching)
        x, total = _unknowns(along, progress.y), total + np.asarray(progress.steps)
        spent = total >= steps
        last = last._replace(steps=total, spent=spent)
        if not single and not np.all(_at_minimum(fit, x, data) | spent):
            continue
        levels = _levels(fit, x, data, counts, noise)
        change, noise, rounds = np.abs(levels.noise / noise - 1), levels.noise, rounds + 1
        last = _Last(total, spent, levels.freedom, change.max(axis=1))
        stage += stage < len(stages) - 1 or not np.any(change > NOISE_TOLERANCE)
    data = data._replace(noise=jnp.asarray(noise, x.dtype))
    return _ended(fit, guess, x, data, last, finished=stage == len(stages))


class _Last(NamedTuple):
    """What the last round says, of each fit: as in `Ended`."""

    steps: np.ndarray
    spent: np.ndarray
    freedom: np.ndarray
    noise_change: np.ndarray


def _levels(fit: Fit, x, data: Measurements, counts: Counts, noise: np.ndarray) -> Levels:
    """Noise levels after a round; those that are given stay."""
    if not counts.unknown_noise.any():
        return Levels(noise, np.full(noise.shape, np.nan))
    jac = linearized(fit, x, data)[1]
    return estimated_noise(fit, x, data.values, counts, noise, jac)


class Where(NamedTuple):
    """Where a fit is between its rounds.

    Args:
        noise: of channels, shape `(fits, channels)`.
        total: steps so far, shape `(fits,)`.
        stage: number of the weight of the gaps.
        rounds: how often the noise was estimated.
    """

    noise: Any
    total: Any
    stage: Any
    rounds: Any


class Round(NamedTuple):
    """One round of fit and noise.

    Args:
        progress: of the fits.
        along: coordinates of the unknowns.
        noise: as in `Where`, the others too.
        total: before the round.
        stage: of the round.
        rounds: before it.
    """

    progress: FitProgress
    along: Coordinates
    noise: Any
    total: Any
    stage: Any
    rounds: Any


def _at_minimum(fit: Fit, x, data: Measurements) -> np.ndarray:
    """Which fits have nothing more to win with the present weights."""
    return _minimum(fit, x, *(np.asarray(a) for a in linearized(fit, x, data))).reached


class _Minimum(NamedTuple):
    """Which fits have nothing more to win, and which unknowns a bound holds there."""

    reached: np.ndarray
    pressed: np.ndarray


def _minimum(fit: Fit, x, residuals: np.ndarray, jac: np.ndarray) -> _Minimum:
    seen = np.stack(
        [seen_columns(j, fit.units(at)) for j, at in zip(jac, np.asarray(x), strict=True)]
    )
    limit = _OPEN * (1 + _RELATIVE * _squares(residuals))
    pressed = _pressed(fit, x, residuals, jac, np.ones(seen.shape))
    short = brief(residuals, jac)
    value, slope = np.asarray(short.value), np.asarray(short.slope)
    decrease = expected_decrease(value, slope, seen & ~pressed)
    return _Minimum(np.isfinite(limit) & (decrease <= limit), pressed)


def _pressed(fit: Fit, x, residuals, jac, lengths: np.ndarray) -> np.ndarray:
    """Which unknowns are so near to a bound that the way to it lowers chi-square by nothing.

    The sum of squares falls towards the bound, by its slope in the unconstrained number at most: of
    `Interval`, a step of one there is the distance that is left.

    Args:
        fit: what is fitted.
        x: unknowns, shape `(fits, p)`.
        residuals: of each fit, or as short a vector as stands for them.
        jac: their derivatives, shape `(fits, residuals, p)`.
        lengths: changes of the unknowns to which these belong, shape `(fits, p)`.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        slopes = 2 * np.einsum("fm,fmp->fp", residuals, jac) / lengths
        outward, flat = fit.outward(np.asarray(x)), np.abs(slopes) <= _OPEN
        # Nothing at all is left where the unconstrained number has saturated.
        return (outward != 0) & flat & (outward * slopes <= 0)


def _begun(fit: Fit, x, data: Measurements, stages, at: Where) -> Round:
    """A round before its first step."""
    weight = jnp.full(x.shape[0], stages[at.stage], x.dtype)
    data = data._replace(noise=jnp.asarray(at.noise, x.dtype), weight=weight)
    jac = linearized(fit, x, data)[1]
    progress = begin(jnp.zeros_like(x), jac.shape[1])
    along = coordinates(fit, x, np.asarray(jac))
    return Round(progress, along, data.noise, *map(jnp.asarray, at[1:]))


class AbstractStore(abc.ABC):
    """Where rounds are kept, so that an interrupted fit can go on."""

    @abc.abstractmethod
    def restored(self, begun: Round) -> Round:
        """The round that was stored, as far as it had come; once. Else the one that begins."""

    @abc.abstractmethod
    def save(self, now: Round) -> None:
        """Keep a round as it is."""


def _watching(begun: Round, store: AbstractStore | None, watch: Callable | None):
    def each(progress: FitProgress) -> None:
        if store is not None:
            store.save(begun._replace(progress=progress))
        if watch is not None:
            watch(np.asarray(begun.total + progress.steps))

    return each


def _ended(fit: Fit, guess, x, data: Measurements, last: _Last, *, finished: bool) -> Ended:
    """How fits ended, with the final noise."""
    residuals, jac = (np.asarray(a) for a in linearized(fit, x, data))
    cost, first = _squares(residuals), _squares(np.asarray(linearized(fit, guess, data)[0]))
    gaps = residuals[:, residuals.shape[1] - fit.gap_count :]
    minimum = _minimum(fit, x, residuals, jac)
    converged = minimum.reached & (finished | ~last.spent)
    stuck = ~minimum.reached & ~(cost < first * (1 - _RELATIVE)) & ~last.spent
    return Ended(
        np.asarray(x),
        np.asarray(data.noise),
        cost - _squares(gaps),
        last.steps,
        converged,
        minimum.pressed,
        last.spent,
        stuck,
        gaps / np.asarray(data.weight)[:, None],
        last.freedom,
        last.noise_change,
    )


def _squares(residuals: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.sum(residuals**2, axis=1)


def expected_decrease(residuals: np.ndarray, jac: np.ndarray, free: np.ndarray) -> np.ndarray:
    """By how much a step of Gauss and Newton would lower the sums of squares, were models linear.

    Zero at a minimum, where the residuals are orthogonal to all columns of the Jacobian; NaN where
    something is not finite.

    Args:
        residuals: of each fit, shape `(fits, residuals)`.
        jac: their Jacobians, shape `(fits, residuals, p)`.
        free: which unknowns may change, shape `(fits, p)`.
    """
    tiny = np.finfo(jac.dtype).tiny
    finite = np.asarray(np.isfinite(residuals).all(axis=1) & np.isfinite(jac).all(axis=(1, 2)))
    jac = np.where(free[:, None] & finite[:, None, None], jac, 0.0)
    jac = jac / np.maximum(np.abs(jac).max(axis=1, keepdims=True), tiny)  # norms overflow
    jac = jac / np.maximum(np.linalg.norm(jac, axis=1, keepdims=True), tiny)
    directions, values, _ = np.linalg.svd(jac, full_matrices=False)
    seen = values > _SEEN * values.max(axis=1, initial=0.0, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # of a fit that is beyond help
        inside = np.einsum("fm,fmk->fk", residuals, directions)
        return np.where(finite, np.sum(np.where(seen, inside, 0.0) ** 2, axis=1), np.nan)


def coordinates(fit: Fit, x, jac: np.ndarray) -> Coordinates:
    """Coordinates at a point: parameters, with later starts that keep the gaps, and the gaps.

    In the unknowns themselves a small change of a parameter alone opens gaps, whose weight would
    allow it tiny steps only. Each direction is as long as changes the residuals by one.

    Args:
        fit: what is fitted.
        x: the point of each fit, shape `(fits, p)`.
        jac: derivatives of the residuals there, shape `(fits, residuals, p)`.
    """
    pairs = zip(jac, np.asarray(x), strict=True)
    made = [_directions(j, fit.node_entries, fit.gap_count, fit.units(at)) for j, at in pairs]
    return Coordinates(x, jnp.asarray(np.stack(made), x.dtype))


def _directions(jac: np.ndarray, nodes: np.ndarray, gaps: int, units: np.ndarray) -> np.ndarray:
    directions = np.eye(jac.shape[1])
    if not np.isfinite(jac).all():
        return directions
    if gaps:
        opened = np.linalg.pinv(jac[-gaps:, nodes])
        directions[np.ix_(nodes, ~nodes)] = -opened @ jac[-gaps:, ~nodes]
        directions[np.ix_(nodes, nodes)] = opened
        jac = jac @ directions
    seen = seen_columns(jac, units)
    largest = np.maximum(np.abs(jac).max(axis=0), np.finfo(float).tiny)
    sizes = largest * np.linalg.norm(jac / largest, axis=0)  # whose squares would overflow
    # A step along what nothing sees would go anywhere.
    good = seen & np.isfinite(sizes) & (sizes > 0)
    return np.where(good, directions / np.where(good, sizes, 1.0), 0.0)
