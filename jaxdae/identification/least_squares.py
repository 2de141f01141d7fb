"""Least squares for a batch of fits at once: steps, weights, noise that is not known, the end."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.identification.correlated import neighbouring_correlation
from jaxdae.identification.damped_steps import Compressed, DampedStep
from jaxdae.identification.fit import Fit, Predictions, Samples
from jaxdae.identification.linearization import (
    evaluate,
    Evaluation,
    layouts_of,
    linearizations,
    LinearizedFit,
    moved_along,
)
from jaxdae.identification.losses import Loss, SQUARES
from jaxdae.identification.uncertainty import (
    channel_levels,
    estimated_noise,
    first_noise,
    SampleCounts,
    seen_columns,
)

# A fit ends where no step lowers chi-square by more than the square of this, in units of the
# reduced one: the estimate is within that part of a standard error of the minimum.
_TOLERANCE = {8: 1e-4, 4: 1e-2}
# Or where a step has lowered the sum of squares by less than this part, as foreseen; or where it
# changes all unknowns by less than that part.
_RELATIVE_REDUCTION = {8: 1e-12, 4: 1e-6}
_RELATIVE_STEP = {8: 1e-10, 4: 1e-5}
# Or where so many steps, one after the other, have lowered the sum of squares by less than this
# part, and a quarter of a standard error that holds for correlated noise is left: where friction
# sticks, the sum of squares of measured motions is not smooth enough to come nearer soon.
_SLOW_STEPS, _SLOW_REDUCTION, _SLOW_OPEN = 3, 5e-5, 0.0625
# Steps refused in a row after which there is no decrease to be found: each is a quarter as long.
_MOST_REFUSED = 30
# Noise levels have converged where they change by less than this part: far below what they are
# known to from any number of samples.
NOISE_TOLERANCE = 1e-3
_MOST_ROUNDS = 30
# A fit is at a minimum where a further step promises less than this decrease of chi-square, or this
# part of it: a tenth of a standard error. Noise levels are estimated from there on.
_OPEN = 1e-2
# And earlier where a level is overstated, as the spread of the samples is to begin with: residuals
# have a level below this part of it, and no step promises to lower chi-square by more than that
# part. Else a fit that comes near to its minimum slowly would go on with such levels.
_OVERSTATED, _PROMISED = 0.5, 0.1
_RELATIVE = 1e-8
# Weights of gaps between intervals, one after the other: at first they hardly bind, in the end they
# close to round-off of the motion's size.
_WEIGHTS = (1e1, 1e2, 1e3, 1e4, 1e5)
# Damping of the first step, beside columns of length one [MadsenNielsenTingleff2004, eq. 3.14]:
# bolder ones may end where hardly anything changes the sum of squares any more.
_FIRST_DAMPING = 1.0
# What damping is multiplied by: after a step that is refused, twice as much after each further one
# in a row, after one that the linearization
# foresees to less than a quarter, three quarters, a tenth, a hundredth.
_REFUSED, _GOOD, _FORESEEN, _EXACT = 4.0, 1 / 3.5, 0.1, 0.01


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
    gaps: Any  # between intervals, in units of the motion's size
    freedom: np.ndarray  # degrees of freedom of estimated noise levels, shape `(fits, channels)`
    noise_change: np.ndarray  # of the noise levels in the last round, relative, shape `(fits,)`
    found: Any  # linearizations at the end, in unit noise
    made: Any  # predictions, what the models say at the end, by batch

    def one(self, i: int) -> "Ended":
        """One fit of the batch."""
        return Ended(*(field[i] for field in self))


def estimate(
    fit: Fit, x, values: Samples, counts: SampleCounts, *, steps: int,
    begun: Evaluation | None = None, loss: Loss = SQUARES,
    callback: Callable[[np.ndarray], Any] = lambda _: None,
) -> Ended:  # fmt: skip
    """Fit a batch of data sets.

    Noise levels that are not known are those of maximum likelihood, corrected for the number of
    parameters that each channel determines, or those of the loss, `Loss.level`: they are estimated
    wherever the fit is near a minimum by the weights so far, from the residuals there, without
    another run.

    Args:
        fit: what is fitted.
        x: where to begin, shape `(fits, p)`.
        values: what was measured in every fit, leading axis `fits`.
        counts: how much there is.
        steps: largest number of steps of each fit, in all rounds together.
        begun: residuals at `x`, where they are known.
        loss: of the samples.
        callback: called after each step with the number of steps of each fit.
    """
    evaluation = evaluate(fit, x, values) if begun is None else begun
    noise, layouts = first_noise(fit, counts, robust=loss.robust), layouts_of(fit)
    pairs = zip(np.asarray(x, float), linearizations(fit, evaluation, layouts), strict=True)
    searches = [_Search(fit, counts, at, found, noise, steps, loss) for at, found in pairs]
    made = [_one(evaluation, i) for i in range(len(searches))]
    while any(not s.done for s in searches):
        trials = jnp.asarray(np.stack([s.trial for s in searches]), x.dtype)
        evaluation = evaluate(fit, trials, values)
        for i, found in enumerate(linearizations(fit, evaluation, layouts)):
            if not searches[i].done and searches[i].take(found, np.asarray(trials[i], float)):
                made[i] = _one(evaluation, i)
        callback(np.array([s.steps for s in searches]))
    results = [s.result() for s in searches]
    arrays = {k: np.stack([r[k] for r in results]) for k in results[0] if k not in ("gaps",)}
    return Ended(
        **arrays,
        gaps=[r["gaps"] for r in results],
        found=[s.found for s in searches],
        made=made,
    )


def _one(evaluation: Evaluation, i: int) -> list[Predictions]:
    return [jax.tree.map(lambda a: np.asarray(a)[i], r.made) for r in evaluation.runs]


def repeated(tree: Any, count: int) -> Any:
    """The same for every fit of a batch."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)


class _Search:
    """One fit on its way: Levenberg and Marquardt's method with weights that change.

    Damping is in the scales of the unknowns, the largest lengths so far of the columns of the
    Jacobian [More1978, section 6], so that steps do not depend on units.
    """

    def __init__(
        self, fit: Fit, counts: SampleCounts, x, found: LinearizedFit, noise, steps: int, loss: Loss
    ):  # fmt: skip
        self.fit, self.counts, self.most_steps, self.loss = fit, counts, steps, loss
        self.x, self.found, self.noise = x, found, noise
        self.stages = _WEIGHTS if fit.gap_count else (0.0,)
        self.stage = self.steps = self.refused = self.rounds = self.slow = 0
        self.damping, self.accepted, self.first, self.begun = _FIRST_DAMPING, True, x, found
        self.change, self.freedom = np.zeros(noise.shape), np.full(noise.shape, np.nan)
        self.complete = self.done = False
        self.too_bold = 0.0  # damping of the last step that was refused
        self.size, self.trial = found.precision.itemsize, x
        self.scale = np.zeros(x.size)
        self._arrived()

    @property
    def weight(self) -> float:
        return self.stages[self.stage]

    @property
    def last(self) -> bool:
        """Whether gaps have their last weight."""
        return self.stage == len(self.stages) - 1

    def take(self, found: LinearizedFit, trial: np.ndarray) -> bool:
        """Whether the trial point is accepted, of which the residuals are given."""
        self.steps += 1
        cost = self._cost(found) if found.finite else np.inf
        reduction, foreseen = self.cost - cost, self.step.decrease
        good = bool(np.isfinite(cost)) and reduction > 0
        exact = abs(reduction - foreseen) / foreseen if foreseen > 0 else np.inf
        small = max(foreseen, abs(reduction)) <= _RELATIVE_REDUCTION[self.size] * self.cost
        tiny = np.abs(trial - self.x) <= _RELATIVE_STEP[self.size] * np.abs(self.x)
        if good:
            factor = _EXACT if exact <= _EXACT else _FORESEEN
            if exact > _FORESEEN:
                # Not after a step that was refused, which would only be refused again.
                factor = _GOOD if reduction >= 0.75 * foreseen and self.accepted else 1.0
                factor = _REFUSED if reduction < 0.25 * foreseen else factor
            if self.damping * factor < self.too_bold:
                factor = max(factor, _GOOD)
            self.damping = max(self.damping * factor, float(np.finfo(self.x.dtype).eps) ** 0.75)
            slow = reduction <= _SLOW_REDUCTION * self.cost
            self.slow = self.slow + 1 if slow else 0
            self.x, self.found, self.refused = trial, found, 0
        else:
            self.too_bold = self.damping
            self.damping *= _REFUSED * 2.0**self.refused
            self.refused += 1
        self.accepted = good
        over = small or bool(tiny.all()) or self.refused >= _MOST_REFUSED
        if good:
            self._arrived(over=over)
        elif over:
            self._close()
        else:
            self._aim()
        if self.steps >= self.most_steps and not self.done:
            self._end_early()
        return good

    def _cost(self, found: LinearizedFit) -> float:
        return self.loss.cost(found.weighted(self.noise, self.weight))

    def _arrived(self, *, over: bool = False) -> None:
        """Weights, and what is next, where the fit is now."""
        while True:
            self._weigh()
            if self._overstated():
                self._estimate_noise()
                self._weigh()
            reduced = self._reduced()
            over |= self._ends_slowly(reduced)
            near = self.decrease <= _OPEN * reduced or over
            if not near:
                break
            if self.counts.unknown_noise.any() and self.rounds < _MOST_ROUNDS:
                self._estimate_noise()
                self._weigh()
            if not self.last:
                self.stage, over = self.stage + 1, False
                self.damping, self.scale = _FIRST_DAMPING * 1e-3, np.zeros_like(self.scale)
                continue
            tight = over or self.decrease <= _TOLERANCE[self.size] ** 2 * reduced
            if not tight:
                break
            still = bool(np.any(self.change > NOISE_TOLERANCE))
            if not still or self.rounds >= _MOST_ROUNDS:
                self.complete = self.done = True
                return
            over = False
        self._aim()

    def _reduced(self) -> float:
        """Chi-square by degrees of freedom, one at least."""
        found = self.found.weighted(self.noise, self.weight)
        return max(1.0, self.loss.reduced(found, max(self.counts.total - self.x.size, 1)))

    def _ends_slowly(self, reduced: float) -> bool:
        if self.slow < _SLOW_STEPS:
            return False
        r = neighbouring_correlation(self.found)
        return bool(self.decrease <= _SLOW_OPEN * reduced * (1 + r) / (1 - r))

    def _overstated(self) -> bool:
        """Whether noise levels that are not known are far above residuals that hardly fall."""
        counts = self.counts
        if self.done or self.rounds >= _MOST_ROUNDS or not counts.unknown_noise.any():
            return False
        freedom = np.where(np.isnan(self.freedom), counts.samples, self.freedom)
        found = self.found.weighted(self.noise, self.weight)
        levels = channel_levels(found, np.maximum(freedom, 1.0), self.loss.level)
        far = counts.unknown_noise & (levels < _OVERSTATED)
        return bool(far.any()) and self.decrease <= _PROMISED * self.cost

    def _end_early(self) -> None:
        """An end without steps: noise levels are those of the residuals there."""
        self.done = True
        if self.counts.unknown_noise.any() and self.found.finite:
            self._estimate_noise()

    def _close(self) -> None:
        """An end where there is no decrease to be found."""
        if self.counts.unknown_noise.any() and self.rounds < _MOST_ROUNDS and self.found.finite:
            self._estimate_noise()
        self.complete, self.done = self.last, True

    def _weigh(self) -> None:
        """Sum of squares, scales and what a step without damping promises, by the weights now."""
        weighted = self.loss.rows(self.found.weighted(self.noise, self.weight))
        self.cost = self._cost(self.found)
        if not weighted.finite:
            self.decrease, self.done = np.nan, True
            return
        moved = moved_along(weighted)
        norms = moved.norms()
        seen = self._seen(moved) & np.isfinite(norms) & (norms > 0)
        self.scale = np.maximum(self.scale, np.where(np.isfinite(norms), norms, 0.0))
        self.compressed = Compressed.of(weighted)
        self.scaling = np.where(seen, 1.0 / np.where(self.scale > 0, self.scale, 1.0), 0.0)
        free = seen & ~self._pressed(weighted)
        units = np.where(free, 1.0 / np.where(free, norms, 1.0), 0.0)
        self.decrease = self.compressed.step(units).decrease

    def _seen(self, weighted: LinearizedFit) -> np.ndarray:
        return seen_columns(weighted, self.fit.units(self.x))

    def _pressed(self, weighted: LinearizedFit) -> np.ndarray:
        """Which unknowns are so near to a bound that the way to it lowers chi-square by nothing.

        The sum of squares falls towards the bound, by its slope in the unconstrained number at
        most: of `Interval`, a step of one there is the distance that is left.
        """
        slopes = np.zeros(self.x.size)
        slopes[: self.fit.shared_count] = 2 * weighted.gradient()
        outward = self.fit.outward(self.x)
        # Nothing at all is left where the unconstrained number has saturated.
        with np.errstate(invalid="ignore"):
            return (outward != 0) & (np.abs(slopes) <= _OPEN) & (outward * slopes <= 0)

    def _estimate_noise(self) -> None:
        noise, self.freedom = estimated_noise(
            self.fit, self.found.weighted(self.noise, self.weight), self.counts, self.noise,
            self.fit.units(self.x), self.loss.level,
        )  # fmt: skip
        self.change, self.noise = np.abs(noise / self.noise - 1), noise
        self.rounds += 1

    def _aim(self) -> None:
        if not self.done:
            self.step: DampedStep = self.compressed.step(self.scaling, self.damping)
            self.trial = self.x + self.step.change

    def result(self) -> dict[str, Any]:
        """How it ended."""
        weighted = self.loss.rows(self.found.weighted(self.noise, self.weight))
        cost, first = self._cost(self.found), self._cost(self.begun)
        if self.found.finite:
            self._weigh()
        reached = bool(self.decrease <= _OPEN * (1 + _RELATIVE * cost))
        reached |= self._ends_slowly(self._reduced())
        spent = self.steps >= self.most_steps and not self.complete
        pressed = self._pressed(weighted) if self.found.finite else np.zeros(self.x.size, bool)
        gaps = self.found.gaps
        return {
            "x": self.x,
            "noise": self.noise,
            "cost": cost - float(np.sum((gaps * self.weight) ** 2)),
            "steps": self.steps,
            "converged": reached and self.complete,
            "pressed": pressed,
            "spent": spent,
            "stuck": not reached and not cost < first * (1 - _RELATIVE) and not spent,
            "gaps": gaps,
            "freedom": self.freedom,
            "noise_change": self.change.max(initial=0.0),
        }
