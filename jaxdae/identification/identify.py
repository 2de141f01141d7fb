"""Parameters of a system, or of differential-algebraic equations, from measured data."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from jaxdae.certification.certificate import GradientCertificate
from jaxdae.certification.evaluations import Evaluator
from jaxdae.certification.examination import DIGITS, GradientExamination
from jaxdae.identification.data import Channel, check_data, Experiment, label, Prior
from jaxdae.identification.fit import Fit, MeasurementModel, raw_names_of, Settings, Unknowns
from jaxdae.identification.least_squares import Ended, estimate, repeated
from jaxdae.identification.losses import loss_of
from jaxdae.identification.preparation import guesses, prepared, usable
from jaxdae.identification.report import Identification, identification
from jaxdae.identification.sensors import Sensors
from jaxdae.identification.steepness import steep_friction
from jaxdae.identification.uncertainty import require_freedom, SampleCounts
from jaxdae.interruptions import heard
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.problem import MAX_STEPS
from jaxdae.stability.arguments import check_counts, check_least
from jaxdae.systems.calls import check_instance


def identify(
    build: Callable,
    params: PyTree,
    experiments: Sequence[Experiment] | Experiment,
    *,
    channels: Mapping[str, Channel],
    priors: Mapping[str, Prior] | None = None,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    max_steps: int = MAX_STEPS,
    backend: Backend = "auto",
    intervals: int = 1,
    steps: int = 100,
    starts: int = 1,
    spread: float = 0.5,
    key: Any = None,
    loss: Literal["linear", "huber", "soft_l1"] = "linear",
    f_scale: float = 1.345,
    progress: bool = False,
    certify: bool = False,
) -> Identification:
    r"""Estimate parameters, and starts that are not known, from measured motions.

    Minimized is the sum of squares of all differences between samples and model in units of the
    noise: the estimate of maximum likelihood for independent normal noise,

        chi^2 = sum_i (y_i - c_i(p, x0))^2 / sigma_i^2,

    by Levenberg and Marquardt's method, with sensitivities from forward differentiation of the
    runs. All runs of one kind are made in one batch. The covariance is `(J^T J)^{-1}`, `J` being
    the derivatives of the weighted differences at the estimate. It is that of a linear model:
    it holds where standard errors are small against the range over which the model is curved.

    Args:
        build: maps resolved parameters to `(system, formulation)`, or `(system, formulation,
            controller)`, or to a `DAE` or `(dae, controller)`; of experiments with conditions,
            `build(params, conditions)`.
        params: pytree of first guesses. Estimated are its floating-point arrays and its
            parametrizations (`Positive`, `Interval`, …); Python numbers are held.
        experiments: what was measured, one record or several.
        channels: what the instruments show, by the names used in the experiments.
        priors: what is known of estimated numbers from elsewhere, by their names in the result,
            such as `{"mass": Prior(1.2, 0.1), "stiffness[1]": Prior(40.0, 5.0)}`.
        dt: step [s], as for `simulate`; without it steps are adaptive, which is slower, but passes
            singular positions with derivatives that hold (`SingularityRobust`). Where times differ,
            all records of one kind take as many steps as the longest.
        solver: as for `simulate`.
        stepsize_controller: as for `simulate`.
        max_steps: as for `simulate`.
        backend: as for `simulate`.
        intervals: into how many every record is divided, for long or unstable ones: each interval
            starts from an unknown state of its own, and gaps between them are closed step by step
            (multiple shooting [BockPlitt1984]).
        steps: largest number of steps of the method in all, however often noise levels are
            estimated on the way and gaps between intervals closed further.
        starts: number of fits from different first guesses, made at once; the best is kept. The
            first is the guess itself, the others are normal perturbations of it.
        spread: their standard deviation in unconstrained numbers, the logarithm of a `Positive`;
            of plain arrays as a part of their value.
        key: random key of the perturbations; by default `jax.random.key(0)`.
        loss: what is summed in place of the squares `r^2` of the differences in units of their
            noise, so that outliers count less: `c^2 rho(r^2/c^2)` with `rho(z) = z` ("linear"),
            `z` up to one and `2 sqrt(z) - 1` beyond ("huber"), or `2 (sqrt(1 + z) - 1)`
            ("soft_l1") [Huber1981; TriggsEtAl2000]. Priors and starts keep their squares. Errors
            are those of the sandwich, `H^{-1} J^T diag(psi^2) J H^{-1} n / (n - p)` with
            `psi = r rho'` and `H = J^T diag(dpsi/dr) J`. Noise levels that are not given are those
            of the bulk of the differences, by Huber's proposal 2 [Huber1981, section 7.7], of each
            channel `sum psi(r/s)^2 = f E[psi(n)^2]` for `s`, with a standard normal `n` and `f`
            degrees of freedom; by Huber's loss they withstand up to a quarter of outliers.
        f_scale: c, in units of sigma, from which on differences count less; at 1.345 Huber's loss
            loses 5 % of the information of normal noise.
        progress: show a progress bar.
        certify: examine the derivatives at the estimate, as `jaxdae.certify` does but for the other
            backend: standard errors are made of them (`Identification.gradient_certificate`).

    Returns:
        `Identification`: estimates, standard errors, covariance, and what cannot be identified.

    Warns:
        RuntimeWarning: where directions of the parameters change no channel (their standard errors
            are infinite), where the method or the estimates of noise levels have not converged,
            where few degrees of freedom are left for a noise level or the data have none, where an
            estimate is at the bound of its `Interval`, where most samples are beyond the scale of
            a loss, where known noise levels do not explain
            what is left of the data or are far above it, where standard errors are many times the
            estimates, and where a run passes a singular position that its formulation is not made
            for, by fixed steps, or that vanishes with a parameter; where `certify` finds that
            derivatives at the estimate may not be trusted.

    Raises:
        ValueError: for data that do not fit each other, settings that make no sense, a prior of
            what is not estimated, a parameter that no channel sees, a noise level that cannot be
            estimated, first guesses from which no run succeeds, or from which the sum of squares
            cannot decrease.
        TypeError: for arguments of the wrong kind.
    """
    from tqdm import tqdm

    began = time.perf_counter()
    if isinstance(experiments, Experiment):
        experiments = (experiments,)
    experiments = tuple(experiments) if isinstance(experiments, Sequence) else experiments
    _check_search(steps=steps, starts=starts, intervals=intervals, spread=spread, key=key)
    check_data(channels, experiments)
    _check_step(dt, experiments)
    shape = loss_of(loss, f_scale)
    settings = Settings(dt, solver, stepsize_controller, max_steps, backend)
    with heard():
        model = measurement_model(build, channels, settings)
        unknowns = Unknowns(params, model.sensors.first_shared())
        task = prepared(model, unknowns, experiments, channels, intervals, priors)
        task = task._replace(loss=shape)
        key = jax.random.key(0) if key is None else key
        first = guesses(task, unknowns, starts, spread, key)
        values = repeated(task.fit.samples(), first.shape[0])
        names = raw_names_of(unknowns)
        first, values, begun = usable(task, first, values, names, experiments)
        with tqdm(total=steps, disable=not progress, unit="step") as bar:
            ended = estimate(
                task.fit, first, values, task.counts, steps=steps, begun=begun, loss=shape,
                callback=lambda taken: bar.update(int(taken.max()) - bar.n),
            )  # fmt: skip
    best = _best(ended, task.counts)
    require_freedom(task.counts, best.freedom, task.unknowns, task.channels)
    guessed = [jax.tree.map(lambda a: np.asarray(a)[0], r.made) for r in begun.runs]
    result = identification(task, unknowns, best, guessed, experiments)
    steep = steep_friction(task, jnp.asarray(best.x), best.made, experiments)
    result = dataclasses.replace(result, steep_friction=steep)
    for found in result.findings:
        warnings.warn(f"identify: {found.message}", RuntimeWarning, stacklevel=2)
    if certify:
        result = dataclasses.replace(result, gradient_certificate=_certificate(task.fit, best))
        if not result.gradient_certificate:
            text = str(result.gradient_certificate).rstrip(".")
            warnings.warn(f"identify: at the estimate, {text}.", RuntimeWarning, stacklevel=2)
    return dataclasses.replace(result, wall_seconds=time.perf_counter() - began)


def measurement_model(
    build: Callable, channels: Mapping[str, Channel], settings: Settings
) -> MeasurementModel:
    """What samples are compared with."""
    lines = tuple((x.offset, x.scale) for x in channels.values())
    read = tuple(x.reading for x in channels.values())
    return MeasurementModel(build, read, settings, Sensors(tuple(channels), lines))


def _certificate(fit: Fit, best: Ended) -> GradientCertificate:
    """Of the derivatives of the weighted residuals at an estimate, of which errors are made."""
    values, noise = fit.samples(), jnp.asarray(best.noise)
    trained, starts = fit.split(jnp.asarray(best.x))
    unknowns = {"parameters": trained, "starts": starts}

    def residuals(unknowns):
        x, _ = ravel_pytree((unknowns["parameters"], unknowns["starts"]))
        return fit.residuals(x, values, noise)

    evaluator = Evaluator(residuals, unknowns)
    return GradientExamination(
        evaluator, evaluator.flat(unknowns), DIGITS, backends=False
    ).certificate()


def _best(ended: Ended, counts: SampleCounts) -> Ended:
    """The fit of the largest likelihood; an error if it found no decrease at all.

    In units of noise levels of its own the sum of squares of every fit is the same: the levels
    themselves count.
    """
    unknown = counts.unknown_noise
    levels = 2 * np.sum(counts.samples[unknown] * np.log(ended.noise[:, unknown]), axis=1)
    best = int(np.nanargmin(ended.cost + levels))
    if ended.stuck[best]:
        raise ValueError(
            f"identify: no step from the first guess decreases the sum of squares, "
            f"{ended.cost[best]:.6g}; the derivatives do not describe it: a channel or the model "
            "jumps, or is made of integers. Smooth it, or start elsewhere."
        )
    return ended.one(best)


def _check_search(*, steps: Any, starts: Any, intervals: Any, spread: Any, key: Any) -> None:
    """Numbers of steps, starts and intervals, and how far starts are spread."""
    check_counts("identify", steps=(steps, 1), starts=(starts, 1), intervals=(intervals, 1))
    if not isinstance(spread, float | int | np.number | np.ndarray | jax.Array):
        raise ValueError(f"identify: spread is {spread!r}, must be a number of at least 0.")
    check_least("identify", spread=(spread, 0))
    if not np.isfinite(spread):
        raise ValueError(f"identify: spread is {spread}, must be finite.")
    if key is not None:
        check_instance("identify: key", key, jax.Array | np.ndarray, "jax.random.key(0)")


def _check_step(dt: Any, experiments: Sequence[Experiment]) -> None:
    """A step that is positive, and no longer than any record."""
    if dt is None:
        return
    numbers = isinstance(dt, float | int | np.number | np.ndarray | jax.Array)
    if not numbers or isinstance(dt, bool) or np.ndim(dt) != 0:
        raise TypeError(f"identify: dt is {dt!r}, must be one number, the step in seconds.")
    if not 0 < dt < np.inf:
        raise ValueError(
            f"identify: dt is {dt} s, must be positive and finite; leave it out for adaptive steps."
        )
    for i, experiment in enumerate(experiments):
        duration = float(experiment.ts[-1]) - float(experiment.t0)
        if 0 < duration * (1 + 1e-9) < dt:
            raise ValueError(
                f"identify: dt is {dt} s, longer than experiment {label(i, experiment)}, which "
                f"lasts {duration:.6g} s; give a step that resolves its motion."
            )
