"""Least squares for a batch of fits at once: steps, weights, noise that is not known, the end."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdae.identification.fit import Fit, Samples
from jaxdae.identification.uncertainty import (
    estimated_noise,
    first_noise,
    SampleCounts,
    seen_columns,
)
from jaxdae.linalg.tall import Short, shortened
from jaxdae.tuning.damping import ComposedLeastSquares, levenberg_marquardt
from jaxdae.tuning.linearization import initialized, stepped

# A step that changes the unknowns by this part of their standard errors, and the residuals by no
# more than this part of the noise, is the last.
_TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
_SMALL = {"float64": 1e-9, "float32": 1e-5}
# Steps refused in a row after which there is no decrease to be found: each is a quarter as long.
_MOST_REFUSED = 30
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


class Data(NamedTuple):
    """What the residuals of fits depend on besides unknowns: samples, noise, weight of gaps."""

    values: Samples
    noise: Any
    weight: Any


class FitProgress(NamedTuple):
    """Where every fit of a batch is."""

    y: Float[Array, "fits p"]  # unknowns, shape `(fits, p)`
    state: Any  # of the method
    steps: Int[Array, " fits"]  # taken or refused, shape `(fits,)`
    refused: Int[Array, " fits"]  # in a row, shape `(fits,)`
    # Which fits have ended, those not counted whose steps are spent: they may go on.
    done: Bool[Array, " fits"]

    @property
    def local(self) -> Short:
        """Residuals and Jacobian at `y`, shortened, of each fit."""
        info = self.state.f_info
        return Short(info.residual, info.jac.pytree)


class Ended(NamedTuple):
    """How the fits of a batch ended."""

    x: np.ndarray  # unknowns, shape `(fits, p)`
    # Of channels, one for those whose noise is in the weights, shape `(fits, channels)`.
    noise: np.ndarray
    cost: np.ndarray  # sum of squares, shape `(fits,)`
    steps: np.ndarray  # taken or refused, shape `(fits,)`
    converged: np.ndarray  # which fits are at a minimum, and came to the end, shape `(fits,)`
    # Which unknowns are at a bound that the minimum is beyond, shape `(fits, p)`.
    pressed: np.ndarray
    spent: np.ndarray  # which fits took all their steps, shape `(fits,)`
    stuck: np.ndarray  # which fits are where they began, shape `(fits,)`
    gaps: np.ndarray  # between intervals, in units of the motion's size, shape `(fits, gaps)`
    freedom: np.ndarray  # degrees of freedom of estimated noise levels, shape `(fits, channels)`
    noise_change: np.ndarray  # of the noise levels in the last round, relative, shape `(fits,)`


def estimate(
    fit: Fit, x, values: Samples, counts: SampleCounts, *, steps: int,
    callback: Callable[[np.ndarray], Any] = lambda _: None,
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
        callback: called after each step with the number of steps of each fit.
    """
    many, single = x.shape[0], fit.joints.shape[0] == 0
    stages = (0.0,) if single else _WEIGHTS
    guess, stage, rounds, total = x, 0, 0, np.zeros(many, int)
    noise = np.tile(first_noise(fit, counts), (many, 1))
    spent, freedom, change = total > 0, np.full(noise.shape, np.nan), np.zeros(noise.shape)
    cast = lambda a: jnp.asarray(np.broadcast_to(a, (many, *np.shape(a)[1:])), x.dtype)  # noqa: E731
    data = Data(values, cast(noise), cast(0.0))
    while stage < len(stages) and rounds < _MOST_ROUNDS and not spent.all():
        data = data._replace(noise=cast(noise), weight=cast(stages[stage]))
        before = np.asarray(data.noise, float)
        left = np.minimum(steps - total, steps if single else _STEPS_OF_ROUND)
        x, taken = _minimize(fit, data, x, left, lambda n, before=total: callback(before + n))
        total, spent = total + taken, total + taken >= steps
        if not single and not np.all(_minimum(fit, x, *linearized(fit, x, data))[0] | spent):
            continue
        if counts.unknown_noise.any():
            jac = linearized(fit, x, data)[1]
            noise, freedom = estimated_noise(fit, x, values, counts, before, jac)
        change, rounds = np.abs(noise / before - 1), rounds + 1
        stage += stage < len(stages) - 1 or not np.any(change > NOISE_TOLERANCE)
    data = data._replace(noise=cast(noise))
    residuals, jac = (np.asarray(a) for a in linearized(fit, x, data))
    cost, first = _squares(residuals), _squares(np.asarray(linearized(fit, guess, data)[0]))
    gaps = residuals[:, residuals.shape[1] - fit.gap_count :]
    reached, pressed = _minimum(fit, x, residuals, jac)
    return Ended(
        x=np.asarray(x),
        noise=np.asarray(data.noise),
        cost=cost - _squares(gaps),
        steps=total,
        converged=reached & ((stage == len(stages)) | ~spent),
        pressed=pressed,
        spent=spent,
        stuck=~reached & ~(cost < first * (1 - _RELATIVE)) & ~spent,
        gaps=gaps / np.asarray(data.weight)[:, None],
        freedom=freedom,
        noise_change=change.max(axis=1),
    )


def repeated(tree: Any, count: int) -> Any:
    """The same for every fit of a batch."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


def value_and_jacobian(function: Callable, x):
    """A function's value and its Jacobian, by forward differentiation."""
    twice = lambda x: (function(x),) * 2  # noqa: E731
    jac, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jac


@eqx.filter_jit
def linearized(fit: Fit, x, data: Data):
    """Residuals and their Jacobian by the unknowns, of a batch of fits."""

    def one(x, data):
        return value_and_jacobian(lambda x: fit.residuals(x, *data), x)

    return eqx.filter_vmap(one)(x, data)


def _directions(jac: np.ndarray, nodes: np.ndarray, gaps: int, units: np.ndarray) -> np.ndarray:
    """Parameters, with later starts that keep the gaps, and the gaps, each as long as changes one.

    In the unknowns themselves a small change of a parameter alone opens gaps, whose weight would
    allow it tiny steps only.
    """
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


@jax.jit
def _along(base, directions, y):
    return base + jax.vmap(jnp.matmul)(directions, y)


def _minimize(fit: Fit, data: Data, x, steps: np.ndarray, callback: Callable) -> tuple[Any, Any]:
    """Unknowns after steps of a round, and how many: as many as are given at most, or to minima.

    Steps are made in well-conditioned unknowns, `x + directions @ y`.
    """
    jac = np.asarray(linearized(fit, x, data)[1])
    pairs = zip(jac, np.asarray(x), strict=True)
    made = [_directions(j, fit.node_entries, fit.gap_count, fit.units(at)) for j, at in pairs]
    directions = jnp.asarray(np.stack(made), x.dtype)
    lengths = np.diagonal(np.asarray(directions), axis1=1, axis2=2)
    progress = _first_progress(jnp.zeros_like(x), jac.shape[1])
    while not np.all(np.asarray(progress.done) | (np.asarray(progress.steps) >= steps)):
        trial = _along(x, directions, progress.state.y_eval)
        residuals, jac = linearized(fit, trial, data)
        rests = progress.done | (progress.steps >= steps)
        progress = _advance(progress, residuals, jac @ directions, rests)
        value, slope = (np.asarray(a) for a in progress.local)
        free = ~_pressed(fit, _along(x, directions, progress.y), value, slope, lengths)
        ended = _expected_decrease(value, slope, free) <= _TOLERANCE[str(slope.dtype)] ** 2
        ended &= np.asarray(progress.refused) == 0
        progress = progress._replace(done=progress.done | (ended & ~rests))
        callback(np.asarray(progress.steps))
    return _along(x, directions, progress.y), np.asarray(progress.steps)


@eqx.filter_jit
def _first_progress(y: Float[Array, "fits p"], residuals: int) -> FitProgress:
    """Fits before their first step."""
    rows = min(residuals, y.shape[1] + 1)

    def one(y):
        short = Short(jnp.zeros(rows, y.dtype), jnp.zeros((rows, y.size), y.dtype))
        state = initialized(_method(y), _linear(short, y), short.value, y)
        zero = jnp.zeros((), int)
        return FitProgress(y, state, zero, zero, jnp.zeros((), bool))

    return eqx.filter_vmap(one)(y)


@eqx.filter_jit
def _advance(progress: FitProgress, residuals, jac, rests) -> FitProgress:
    """One step of all fits, but of those that rest."""

    def one(progress, residuals, jac, rests):
        before, trial = progress.state, progress.state.y_eval
        local = _shortened(residuals, jac)
        y, state = stepped(_method(trial), _linear(local, trial), progress.y, before)
        accepted = state.num_steps_since_acceptance == 0
        refused = jnp.where(accepted, 0, progress.refused + 1)
        done = accepted & ~before.first_step & _small(progress, trial)
        new = FitProgress(y, state, progress.steps + 1, refused, done | (refused >= _MOST_REFUSED))
        keep = lambda a, b: jnp.where(rests, a, b) if eqx.is_array(b) else b  # noqa: E731
        return jax.tree.map(keep, progress, new)

    return eqx.filter_vmap(one)(progress, residuals, jac, rests)


def _shortened(residuals, jac) -> Short:
    """NaN, with a finite slope, where they are not finite: no step is taken there."""
    finite = jnp.isfinite(residuals).all() & jnp.isfinite(jac).all()
    value, slope = shortened(*(jnp.where(finite, x, 0.0) for x in (residuals, jac)))
    return Short(jnp.where(finite, value, jnp.nan), slope)


_brief = jax.jit(jax.vmap(_shortened))


def _linear(local: Short, point) -> Callable:
    return lambda y, _: (local.value + local.slope @ (y - point), None)


def _small(progress: FitProgress, trial) -> Array:
    """Whether the step from where a fit is to its trial point changes next to nothing."""
    least, part = (x[str(trial.dtype)] for x in (_TOLERANCE, _SMALL))
    local, step = progress.local, trial - progress.y
    tiny = jnp.abs(step) <= least + part * jnp.abs(progress.y)
    change = jnp.linalg.norm(local.slope @ step)
    return tiny.all() & (change <= least + part * jnp.linalg.norm(local.value))


def _method(y) -> ComposedLeastSquares:
    return levenberg_marquardt(float(jnp.finfo(y.dtype).eps))


def _minimum(fit: Fit, x, residuals, jac) -> tuple[np.ndarray, np.ndarray]:
    """Which fits have nothing more to win, and which unknowns a bound holds there."""
    residuals, jac = np.asarray(residuals), np.asarray(jac)
    pairs = zip(jac, np.asarray(x), strict=True)
    seen = np.stack([seen_columns(j, fit.units(at)) for j, at in pairs])
    limit = _OPEN * (1 + _RELATIVE * _squares(residuals))
    pressed = _pressed(fit, x, residuals, jac, np.ones(seen.shape))
    value, slope = (np.asarray(a) for a in _brief(residuals, jac))
    decrease = _expected_decrease(value, slope, seen & ~pressed)
    return np.isfinite(limit) & (decrease <= limit), pressed


def _pressed(fit: Fit, x, residuals, jac, lengths: np.ndarray) -> np.ndarray:
    """Which unknowns are so near to a bound that the way to it lowers chi-square by nothing.

    The sum of squares falls towards the bound, by its slope in the unconstrained number at most: of
    `Interval`, a step of one there is the distance that is left. Slopes are those of changes of the
    unknowns by `lengths`.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        slopes = 2 * np.einsum("fm,fmp->fp", residuals, jac) / lengths
        outward, flat = fit.outward(np.asarray(x)), np.abs(slopes) <= _OPEN
        # Nothing at all is left where the unconstrained number has saturated.
        return (outward != 0) & flat & (outward * slopes <= 0)


def _squares(residuals: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.sum(residuals**2, axis=1)


def _expected_decrease(residuals: np.ndarray, jac: np.ndarray, free: np.ndarray) -> np.ndarray:
    """By how much a step of Gauss and Newton would lower the sums of squares, were models linear.

    Zero at a minimum, where the residuals are orthogonal to all columns of the Jacobian; NaN where
    something is not finite.
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
