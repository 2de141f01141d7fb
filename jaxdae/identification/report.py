"""What `identify` returns: parameters, how well they are known, what is left of the data."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, PyTree

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.diagnosis.findings import Finding
from jaxdae.identification.correlated import (
    Autocorrelation,
    autocorrelation_of,
    robust_errors,
    RobustErrors,
)
from jaxdae.identification.data import Experiment, label, Prior
from jaxdae.identification.findings import (
    at_bounds,
    findings_of,
    open_directions,
    singular_positions,
    SingularPositions,
)
from jaxdae.identification.fit import names_of, Predictions, raw_names_of, values_of
from jaxdae.identification.least_squares import (
    Ended,
    NOISE_TOLERANCE,
)
from jaxdae.identification.linearization import value_and_jacobian
from jaxdae.identification.preparation import Piece, Task
from jaxdae.identification.steepness import SteepFriction
from jaxdae.identification.uncertainty import open_entries, propagated, round_off
from jaxdae.reprs import shown
from jaxdae.systems import State, Variables
from jaxdae.tuning.parametrizations import resolve

# Correlations of at least this size are worth a line, but not more than so many.
_STRONG = 0.9
_MOST_SHOWN = 5
# Standard errors of so many numbers of single experiments are listed one by one.
_MOST_STARTS = 12
# Noise levels are kept in the precision of the runs.
_ABOVE = 1 + 1e-6


@dataclasses.dataclass(frozen=True)
class FittedChannel:
    """A channel of an experiment beside the fitted model.

    Args:
        ts: times of the samples [s], shape `(times,)`.
        measured: samples, NaN where one is missing.
        model: what the fitted model says.
        sigma: standard deviation of the noise, given or estimated, shape `(times,)`.
        unit: of the channel.
    """

    ts: Float[np.ndarray, " times"]
    measured: Float[np.ndarray, " times"]
    model: Float[np.ndarray, " times"]
    sigma: Float[np.ndarray, " times"]
    unit: str

    def __repr__(self) -> str:
        return shown(self)

    @property
    def residuals(self) -> Float[np.ndarray, " times"]:
        """Measured less model, in the channel's unit."""
        return self.measured - self.model


class SensorLine(NamedTuple):
    """What a sensor makes of what it measures, `scale * value + offset`.

    Args:
        offset: in the channel's unit.
        scale: without a unit.
    """

    offset: float
    scale: float


@dataclasses.dataclass(frozen=True)
class Identification:
    """Parameters estimated from data.

    Attributes:
        params: the estimate, every parametrization replaced by its value.
        raw: the estimate with its parametrizations; pass it to `identify` to go on.
        names: of the estimated numbers.
        values: the estimated numbers, shape `(p,)`.
        initial_values: what they were at first.
        priors: what was known of them beforehand, by name.
        standard_errors: of the estimate, infinite for what the data do not determine: the robust
            ones where differences from the model are correlated (`correlated`), else the classical.
        covariance: of the estimate, likewise, shape `(p, p)`; where a direction is not determined,
            of the others alone.
        classical_errors: standard errors for independent noise of the levels in `noise`; with a
            loss other than squares, for independent noise of any distribution, by the sandwich
            formula at `identify`.
        classical_covariance: covariance likewise, `(J^T J)^{-1}` or the sandwich.
        robust_errors: standard errors by clusters of samples, which hold for noise that is
            correlated within them, and of another level; NaN for too few samples.
        robust_covariance: covariance likewise.
        error_freedom: degrees of freedom of `standard_errors`, for quantiles of Student's
            distribution, shape `(p,)`; infinite where noise levels are known and squares are
            summed.
        loss: of the samples, "linear", "huber" or "soft_l1".
        f_scale: of that loss, in units of the noise.
        samples_beyond: number of samples further than that from the model, which count less; zero
            where squares are summed.
        autocorrelation: of the differences of neighbouring samples from the model, by channel.
        chi_square: sum of the squared residuals in units of the noise, those of measured starts and
            of priors included; with another loss the sum of that.
        degrees_of_freedom: samples, measured starts and priors less what was estimated of them.
        noise: noise level of the channels: what was estimated where none was given.
        estimated_noise: names of the channels whose noise was estimated.
        noise_freedom: degrees of freedom of each of these estimates: samples of the channel less
            the parameters that they determine. The relative error is about `1/sqrt(2 freedom)`.
        round_off: names of the channels in whose samples there is no noise but round-off.
        noise_change: by which part noise levels changed in the last round of their estimation.
        at_bounds: numbers nearer to a bound of their `Interval` than their standard error.
        unidentifiable: directions that no channel sees, in words.
        starts: fitted starts, one for each experiment, a `State` or, of a `DAE`, `Variables`.
        moved_starts: by experiment, how far a start that is known was brought to the constraints of
            the estimate: largest change of coordinates, velocities or `y`, as a part of their
            largest.
        start_errors: standard errors of the independent coordinates of unknown starts, and of
            offsets and scales of sensors that every record has for itself, by name; where
            differences are correlated by `r`, enlarged by `sqrt((1 + r) / (1 - r))`.
        sensors: offsets and scales of the channels' sensors, by name, one for each experiment.
        data: channels of each experiment beside the model, by name.
        gap: largest gap between intervals of a divided record, as a part of the motion's size.
        singular_positions: singular positions that runs pass with the estimate, or else with the
            first guess.
        steps: of the method, taken or refused.
        evaluations: of the residuals with their derivatives: one at the first guess, then one for
            each step.
        stop_reason: "converged"; "bound" where it has converged with a parameter at a bound of its
            `Interval`, beyond which the data would have it; "noise" where the fit is at a minimum
            but the estimates of noise levels still change; "steps"; or "no decrease".
        wall_seconds: duration of the call [s].
        gradient_certificate: of the weighted residuals at the estimate, by
            `identify(..., certify=True)`; `None` without.
    """

    params: PyTree
    raw: PyTree
    names: tuple[str, ...]
    values: Float[np.ndarray, " p"]
    initial_values: Float[np.ndarray, " p"]
    priors: Mapping[str, Prior]
    standard_errors: Float[np.ndarray, " p"]
    covariance: Float[np.ndarray, "p p"]
    classical_errors: Float[np.ndarray, " p"]
    classical_covariance: Float[np.ndarray, "p p"]
    robust_errors: Float[np.ndarray, " p"]
    robust_covariance: Float[np.ndarray, "p p"]
    error_freedom: Float[np.ndarray, " p"]
    loss: str
    f_scale: float
    samples_beyond: int
    autocorrelation: Mapping[str, Autocorrelation]
    chi_square: float
    degrees_of_freedom: int
    noise: Mapping[str, float]
    estimated_noise: tuple[str, ...]
    noise_freedom: Mapping[str, float]
    round_off: tuple[str, ...]
    noise_change: float
    at_bounds: tuple[str, ...]
    unidentifiable: tuple[str, ...]
    starts: tuple[Any, ...]
    moved_starts: Mapping[str, float]
    start_errors: Mapping[str, float]
    sensors: tuple[Mapping[str, SensorLine], ...]
    data: tuple[Mapping[str, FittedChannel], ...]
    gap: float
    singular_positions: tuple[SingularPositions, ...]
    steps: int
    evaluations: int
    stop_reason: str
    wall_seconds: float
    gradient_certificate: Any = None
    # Smooth friction at rest that is too steep for the steps, or `None`.
    steep_friction: SteepFriction | None = None
    # The problem itself, from which posteriors and repetitions start.
    problem: Any = dataclasses.field(repr=False, default=None)

    @property
    def correlated(self) -> tuple[str, ...]:
        """Names of the channels whose neighbouring samples are hardly independent."""
        return tuple(name for name, x in self.autocorrelation.items() if x.found)

    def intervals(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Confidence intervals of the estimated numbers, by name.

        The estimate with so many `standard_errors` on both sides as Student's distribution has at
        the `level`, with `error_freedom` degrees of freedom.

        Args:
            level: probability that an interval holds the number, between zero and one.

        Raises:
            ValueError: for a level that is not between zero and one.
        """
        from scipy.special import ndtri, stdtrit

        if not 0 < level < 1:
            raise ValueError(f"intervals: level is {level}, must be between 0 and 1, such as 0.95.")
        many = np.where(np.isfinite(self.error_freedom), self.error_freedom, 1.0)
        part = 0.5 * (1 + level)
        width = np.where(np.isfinite(self.error_freedom), stdtrit(many, part), ndtri(part))
        width = width * self.standard_errors
        rows = zip(self.names, self.values, width, strict=True)
        return {name: (float(x - half), float(x + half)) for name, x, half in rows}

    @property
    def reduced_chi_square(self) -> float:
        """Chi-square by degrees of freedom: one where model and noise levels are right."""
        freedom = self.degrees_of_freedom
        return self.chi_square / freedom if freedom > 0 else float("nan")

    @property
    def correlation(self) -> Float[np.ndarray, "p p"]:
        """Correlation matrix of the estimate; NaN for what the data do not determine."""
        sizes = np.where(np.isfinite(self.standard_errors), self.standard_errors, np.nan)
        with np.errstate(invalid="ignore"):
            return self.covariance / np.outer(sizes, sizes)

    @property
    def probability(self) -> float:
        """Probability of a larger chi-square, were model and noise levels right; NaN if estimated.

        Where noise levels are estimated, or another loss than squares is summed, it says nothing.
        """
        from scipy.special import chdtrc

        return self._tail(chdtrc)

    @property
    def probability_below(self) -> float:
        """Probability of a smaller chi-square, as `probability`: tiny where noise is overstated."""
        from scipy.special import chdtr

        return self._tail(chdtr)

    def _tail(self, distribution: Callable) -> float:
        known = not self.estimated_noise and self.degrees_of_freedom > 0 and self.loss == "linear"
        return float(distribution(self.degrees_of_freedom, self.chi_square)) if known else np.nan

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What must not be overlooked; `identify` has warned of it."""
        return tuple(findings_of(self))

    def __getitem__(self, name: str) -> float:
        """The estimate of one number by its name."""
        return float(self.values[self._index(name)])

    def standard_error(self, name: str) -> float:
        """The standard error of one number by its name."""
        return float(self.standard_errors[self._index(name)])

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"nothing called {name!r} was estimated; there are: {self.names}")
        return self.names.index(name)

    def __repr__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Estimates with standard errors, noise, fit and correlations, ready to print."""
        width = max(map(len, self.names))
        other = self.classical_errors if self.correlated else self.robust_errors
        rows = zip(
            self.names, self.values, self.standard_errors, other, self.initial_values, strict=True
        )
        which = "classical" if self.correlated else "robust"
        lines = ["parameters"]
        lines += [
            f"  {name:<{width}}  {_estimate(x, s)}"
            f"{f', {which} ± {o:.2g}' if np.isfinite(o) else ''}   from {a:.6g}"
            for name, x, s, o, a in rows
        ]
        lines += [f"  prior: {k} {x.mean:.6g} ± {x.sigma:.3g}" for k, x in self.priors.items()]
        lines += self._start_lines()
        lines += ["noise"]
        lines += [
            f"  {name}: {s:.4g}{' (estimated)' * (name in self.estimated_noise)}"
            for name, s in self.noise.items()
        ]
        lines += [*self._record_line(), self._fit_line(), *self._error_lines()]
        ended = f"steps       {self.steps}, stopped by {self.stop_reason}"
        lines += [f"{ended}; {self.evaluations} evaluations"]
        lines += self._strong_correlations()
        lines += [f"not identifiable: {x}" for x in self.unidentifiable]
        lines += [f"at its bound: {x}" for x in self.at_bounds]
        return "\n".join(lines)

    def _error_lines(self) -> list[str]:
        if not self.autocorrelation:
            return []
        listed = ", ".join(f"{n} {x.correlation:+.2f}" for n, x in self.autocorrelation.items())
        which = "robust" if self.correlated else "classical"
        return [f"errors      {which}; correlation of neighbouring differences: {listed}"]

    def _start_lines(self) -> list[str]:
        """Standard errors of what belongs to single experiments; of many their range."""
        errors = self.start_errors
        if len(errors) <= _MOST_STARTS:
            return [f"  start: {name} ± {s:.3g}" for name, s in errors.items()]
        kinds: dict[str, list[float]] = {}
        for name, s in errors.items():
            kinds.setdefault(re.split(r" (?:at the start of|in) experiment ", name)[0], []).append(
                s
            )
        return [
            f"  of each experiment: {name} ± {min(x):.3g} to {max(x):.3g}, {len(x)} in all"
            for name, x in kinds.items()
        ]

    def _record_line(self) -> list[str]:
        """Root mean square of the differences in units of the noise, by experiment."""
        sizes = [
            np.sqrt(np.nanmean(np.concatenate([(y.residuals / y.sigma) ** 2 for y in x.values()])))
            for x in self.data
        ]
        if len(sizes) < 2:
            return []
        worst = int(np.nanargmax(sizes))
        return [
            f"experiments {len(sizes)}, differences of {np.nanmin(sizes):.2g} to "
            f"{np.nanmax(sizes):.2g} times the noise, the largest in experiment {worst + 1}"
        ]

    def _fit_line(self) -> str:
        if self.loss != "linear":
            return (
                f"loss        {self.chi_square:.4g} at {self.degrees_of_freedom} degrees of "
                f"freedom, {self.loss} beyond {self.f_scale:g} sigma, where {self.samples_beyond} "
                "samples are; standard errors by the sandwich formula"
            )
        fit = f"chi-square  {self.chi_square:.4g} at {self.degrees_of_freedom} degrees of freedom"
        if self.estimated_noise:
            return f"{fit}; it is near them by the estimate of the noise"
        return f"{fit}, reduced {self.reduced_chi_square:.4g}, probability {self.probability:.2g}"

    def _strong_correlations(self) -> list[str]:
        matrix = self.correlation
        pairs = [(i, j) for j in range(len(self.names)) for i in range(j)]
        strong = [pair for pair in pairs if abs(matrix[pair]) > _STRONG]
        return [
            f"correlation {self.names[i]}, {self.names[j]}: {matrix[i, j]:+.4f}"
            for i, j in sorted(strong, key=lambda pair: -abs(matrix[pair]))[:_MOST_SHOWN]
        ]


def _estimate(value: float, error: float) -> str:
    if not np.isfinite(error):
        return f"{value:.6g}, not identifiable"
    relative = f" ({100 * error / abs(value):.2g} %)" if value else ""
    return f"{value:.6g} ± {error:.2g}{relative}"


def identification(
    task: Task, params, ended: Ended, guessed: list[Predictions], experiments
) -> Identification:
    """Everything that the best fit, as it `ended`, says.

    `params` is the first guess, and `guessed` what the model says with it.
    """
    fit, x = task.fit, jnp.asarray(ended.x, task.x.dtype)
    kept = ~fit.node_entries
    weighted = ended.found.weighted(ended.noise, 1.0)
    samples, made = int(task.counts.samples.sum()), ended.made
    found = task.loss.sensitivity(weighted, fit.units(np.asarray(x)), samples)
    units = fit.units(np.asarray(x))[kept]
    singular = _singularities(task, x, made, guessed, raw_names_of(params), experiments)
    data = _data(task, made, ended, experiments)
    values, by_shared = _values_and_slopes(fit.split(x)[0], fit.frozen)
    slopes = np.zeros((by_shared.shape[0], x.size))
    slopes[:, : fit.shared_count] = by_shared
    covariance, errors = propagated(found, slopes[:, kept])
    correlation = autocorrelation_of(data, len(errors), _exact(task, ended), task.loss)
    robust = _robust(
        fit, task.loss.rows_of_errors(weighted), slopes, x, covariance, errors, correlation
    )
    correlated = any(one.found for one in correlation.values())
    degrees = task.counts.total - found.rank
    estimated = bool(task.counts.unknown_noise.any()) or task.loss.robust
    usual = np.full(errors.shape, float(max(degrees, 1)) if estimated else np.inf)
    raw, names = fit.raw(x), names_of(params)
    begun = [(b, run, one) for b, run, one in task.intervals if one.number == 0]
    start_names = [name for _, _, one in begun for name in _names_of_start(one, experiments)]
    # Of starts in the units of what they are named after.
    sizes = np.concatenate([np.zeros(0), *(one.freedom.sizes for _, _, one in begun)])
    deviations = np.where(open_entries(found), np.inf, np.sqrt(np.diagonal(found.covariance)))
    wider = robust.inflation if correlated else 1.0
    raw_names = [*raw_names_of(params), *start_names]
    starts = {
        one.experiment: jax.tree.map(lambda a, run=run: jnp.asarray(a[run]), made[b].first)
        for b, run, one in begun
    }
    shared = fit.params(x).shared
    lines = {one.experiment: _lines(task, shared, made[b].own[run]) for b, run, one in begun}
    priors = zip(fit.priors.entries, fit.priors.means, fit.priors.sigmas, strict=True)
    unknown = dict(zip(task.channels, task.counts.unknown_noise, strict=True))
    freedom = dict(zip(task.channels, map(float, ended.freedom), strict=True))
    return Identification(
        params=resolve(raw.params),
        raw=raw.params,
        names=names,
        values=np.asarray(values),
        initial_values=np.asarray(values_of(params)),
        priors={names[int(k)]: Prior(float(mean), float(sigma)) for k, mean, sigma in priors},
        standard_errors=robust.errors if correlated else errors,
        covariance=robust.covariance if correlated else covariance,
        classical_errors=errors,
        classical_covariance=covariance,
        robust_errors=robust.errors,
        robust_covariance=robust.covariance,
        error_freedom=robust.freedom if correlated else usual,
        loss=task.loss.name,
        f_scale=task.loss.scale,
        samples_beyond=task.loss.beyond(weighted),
        autocorrelation=correlation,
        chi_square=float(ended.cost),
        degrees_of_freedom=degrees,
        noise=_noise(task, ended),
        estimated_noise=tuple(name for name, is_so in unknown.items() if is_so),
        noise_freedom={name: freedom[name] for name, is_so in unknown.items() if is_so},
        round_off=_exact(task, ended),
        noise_change=float(ended.noise_change),
        at_bounds=at_bounds(raw, errors),
        unidentifiable=tuple(open_directions(found, raw_names, units)),
        starts=tuple(starts[i] for i in range(len(experiments))),
        moved_starts=_moved(starts, experiments),
        start_errors=dict(
            zip(
                start_names, deviations[len(deviations) - len(sizes) :] * sizes * wider, strict=True
            )
        ),
        sensors=tuple(lines[i] for i in range(len(experiments))),
        data=data,
        gap=float(np.abs(ended.gaps).max(initial=0.0)),
        singular_positions=singular,
        steps=int(ended.steps),
        evaluations=int(ended.steps) + 1,
        stop_reason=_stop_reason(ended),
        wall_seconds=0.0,
        problem=(task, x, jnp.asarray(ended.noise)),
    )


@jit(options=BRIEFLY)
def _values_and_slopes(trained, frozen):
    """Estimated numbers, and their derivatives by the unknowns that all records share."""
    shared, back = ravel_pytree(trained)
    return value_and_jacobian(lambda x: values_of(eqx.combine(back(x), frozen)), shared)


def _exact(task: Task, ended: Ended) -> tuple[str, ...]:
    """Channels in whose samples there is no noise but round-off."""
    exact = task.counts.unknown_noise & (ended.noise <= _ABOVE * round_off(task.fit))
    return tuple(name for name, is_so in zip(task.channels, exact, strict=True) if is_so)


def _robust(
    fit, weighted, slopes, x, covariance, errors, correlation: Mapping[str, Autocorrelation]
) -> RobustErrors:
    """Errors by clusters of samples; NaN for too few, infinite where nothing is determined."""
    if not correlation or not weighted.finite:
        nan = np.full(covariance.shape, np.nan)
        return RobustErrors(nan[0], nan, nan[0], 1.0)
    worst = max(one.correlation for one in correlation.values())
    found = robust_errors(
        weighted, fit.units(np.asarray(x)), slopes[:, : fit.shared_count], covariance, worst
    )
    return found._replace(errors=np.where(np.isinf(errors), np.inf, found.errors))


def _names_of_start(one: Piece, experiments: Sequence[Experiment]) -> list[str]:
    """Names of the coordinates of a start, and of the numbers of its sensors."""
    experiment = label(one.experiment, experiments[one.experiment])
    names = [*one.freedom.names]
    states = len(names) - one.freedom.sensors
    return [
        f"{name} {'at the start of' if i < states else 'in'} experiment {experiment}"
        for i, name in enumerate(names)
    ]


def _lines(task: Task, shared: Mapping[str, Any], own) -> dict[str, SensorLine]:
    """Offsets and scales of all channels in one experiment."""
    sensors = task.fit.model.sensors
    rows = enumerate(sensors.names)
    return {n: SensorLine(*map(float, sensors.line(i, shared, own))) for i, n in rows}


def _singularities(
    task: Task, x, made, guessed, names, experiments
) -> tuple[SingularPositions, ...]:
    """With the estimate, or else with the guess: a fit may lose what vanishes with a parameter."""
    passed = lambda x, made: singular_positions(task, x, made, names, experiments)  # noqa: E731
    return passed(x, made) or tuple(x._replace(guessed=True) for x in passed(task.x, guessed))


def _moved(starts: Mapping[int, Any], experiments: Sequence[Experiment]) -> dict[str, float]:
    """How far known starts were brought to the constraints: largest change, by their largest."""
    found = {}
    for i, experiment in enumerate(experiments):
        if isinstance(experiment.start, State | Variables):
            before, after = (
                [np.asarray(x) for x in jax.tree.leaves(_given(x))]
                for x in (experiment.start, starts[i])
            )
            found[label(i, experiment)] = max(
                float(np.abs(b - a).max(initial=0.0) / (np.abs(a).max(initial=0.0) or 1.0))
                for a, b in zip(before, after, strict=True)
            )
    return found


def _given(start: State | Variables) -> Any:
    """What of a start does not follow from the rest."""
    return start.y if isinstance(start, Variables) else (start.q, start.v)


def _stop_reason(ended: Ended) -> str:
    if not ended.converged:
        return "steps" if ended.spent else "no decrease"
    if ended.noise_change > NOISE_TOLERANCE:
        return "noise"
    return "bound" if ended.pressed.any() else "converged"


def _noise(task: Task, ended: Ended) -> dict[str, float]:
    """Noise levels by channel; the root mean square of those that were given."""
    levels = {}
    for c, name in enumerate(task.channels):
        levels[name] = float(ended.noise[c])
        if not task.counts.unknown_noise[c]:
            weights = np.concatenate([one.weights[c] for _, _, one in task.intervals])
            levels[name] = float(np.sqrt(np.mean(1.0 / weights[weights > 0] ** 2)))
    return levels


def _data(task: Task, made: list[Predictions], ended: Ended, experiments: Sequence[Experiment]):
    """Samples beside the model, by experiment and channel."""
    channels = tuple(task.channels)
    model = [{n: np.full(e.ts.shape, np.nan) for n in e.measurements} for e in experiments]
    for b, run, one in task.intervals:
        for c, values in zip(task.fit.batches[b].channels, made[b].values[run], strict=True):
            if channels[c] in model[one.experiment]:
                model[one.experiment][channels[c]][one.at] = values[: one.at.size]

    def fitted(experiment: Experiment, name: str, shown: np.ndarray) -> FittedChannel:
        x = experiment.measurements[name]
        level = np.full(x.values.shape, float(ended.noise[channels.index(name)]))
        sigma = level if x.sigma is None else x.sigma
        unit = task.channels[name].unit
        return FittedChannel(experiment.ts, x.values, shown, sigma, unit)

    return tuple(
        {name: fitted(experiment, name, x) for name, x in rows.items()}
        for experiment, rows in zip(experiments, model, strict=True)
    )
