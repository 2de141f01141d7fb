"""Parameters of a system from measured data."""

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import diffrax
import jax
import numpy as np
from jaxtyping import PyTree

from jaxdae.identification.cautions import warnings_of
from jaxdae.identification.data import Channel, check_data, Experiment
from jaxdae.identification.estimate import Ended, estimate, repeated, samples_of
from jaxdae.identification.naming import names_of
from jaxdae.identification.noise import Counts, require_freedom
from jaxdae.identification.preparation import guesses, prepared, usable
from jaxdae.identification.priors import Prior
from jaxdae.identification.report import identification
from jaxdae.identification.residuals import Fit
from jaxdae.identification.result import Identification
from jaxdae.identification.runs import Model, Settings
from jaxdae.identification.settings import check_search, check_step
from jaxdae.identification.store import contents_of, Store
from jaxdae.interruptions import heard
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.problem import MAX_STEPS


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
    checkpoint: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
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
            controller)`; of experiments with conditions, `build(params, conditions)`.
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
        checkpoint: file in which every step is saved, so that an interrupted fit can go on.
        resume: go on from `checkpoint`, with more `steps` too; the numbers are those of an
            uninterrupted fit. Without such a file the fit starts afresh. What `build`, channels and
            solver compute must be the same as then; of `build` only what JAX traces is compared.
        overwrite: allow a fresh fit to replace the file `checkpoint`.
        progress: show a progress bar.

    Returns:
        `Identification`: estimates, standard errors, covariance, and what cannot be identified.

    Warns:
        RuntimeWarning: where directions of the parameters change no channel (their standard errors
            are infinite), where the method or the estimates of noise levels have not converged,
            where few degrees of freedom are left for a noise level or the data have none, where an
            estimate is at the bound of its `Interval`, where known noise levels do not explain
            what is left of the data or are far above it, where standard errors are many times the
            estimates, and where a run passes a singular position that its formulation is not made
            for, by fixed steps, or that vanishes with a parameter.

    Raises:
        ValueError: for data that do not fit each other, settings that make no sense, a prior of
            what is not estimated, a parameter that no channel sees, a noise level that cannot be
            estimated, first guesses from which no run succeeds, or from which the sum of squares
            cannot decrease.
        TypeError: for arguments of the wrong kind.
        FileExistsError: if `checkpoint` exists and neither `resume` nor `overwrite` is set.
        CheckpointError: if the file to resume from is damaged or belongs to another fit; if another
            fit writes the file.
    """
    began = time.perf_counter()
    experiments = _sequence(experiments)
    check_search(steps=steps, starts=starts, intervals=intervals, spread=spread, key=key)
    check_data(channels, experiments)
    check_step(dt, experiments)
    settings = Settings(dt, solver, stepsize_controller, max_steps, backend)
    with heard():
        model = Model(build, tuple(x.reading for x in channels.values()), settings)
        task = prepared(model, params, experiments, channels, intervals, priors)
        key = jax.random.key(0) if key is None else key
        first = guesses(task, params, starts, spread, key)
        first = first[usable(task, first, names_of(params).raw, experiments)]
        values = repeated(samples_of(task.fit), first.shape[0])
        store = _store(checkpoint, resume, overwrite, task.fit, first)
        alone = contextlib.nullcontext() if store is None else store.alone()
        with alone, _Bar(progress, steps) as bar:
            ended = estimate(
                task.fit, first, values, task.counts, steps=steps, store=store, watch=bar.show
            )
    best = _best(ended, task.counts)
    require_freedom(task.counts, best.freedom, task.unknowns, task.channels)
    result = identification(task, params, best, experiments)
    for text in warnings_of(result):
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return dataclasses.replace(result, wall_seconds=time.perf_counter() - began)


def _store(path, resume: bool, overwrite: bool, fit: Fit, x) -> Store | None:
    if path is not None:
        contents = contents_of(fit, x)
        return Store(path, resume=resume, overwrite=overwrite, contents=contents)
    if resume or overwrite:
        raise ValueError("identify: `resume` and `overwrite` need the file: give `checkpoint`.")
    return None


def _sequence(experiments: Any) -> tuple[Experiment, ...]:
    if isinstance(experiments, Experiment):
        return (experiments,)
    return tuple(experiments) if isinstance(experiments, Sequence) else experiments


def _best(ended: Ended, counts: Counts) -> Ended:
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
    return Ended(*(x[best] for x in ended))


class _Bar:
    """A progress bar, or none."""

    def __init__(self, shown: bool, steps: int):
        from tqdm import tqdm

        self._bar = tqdm(total=steps, disable=not shown, unit="step")

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()

    def show(self, steps: np.ndarray) -> None:
        """The step that the longest fit is in."""
        self._bar.update(int(steps.max()) - self._bar.n)
