"""The result of a fit: errors of the estimate, what is left of the data, and warnings."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.identification.data import Experiment
from jaxdae.identification.estimate import Ended, linearized, Measurements, repeated, samples_of
from jaxdae.identification.naming import names_of, values_of
from jaxdae.identification.nodes import label
from jaxdae.identification.preparation import Task
from jaxdae.identification.result import FittedChannel, Identification
from jaxdae.identification.starts import Freedom
from jaxdae.identification.uncertainty import (
    condensed,
    open_directions,
    open_entries,
    Sensitivity,
    sensitivity,
)
from jaxdae.tuning.parametrizations import resolve

# A chi-square less probable than this says that the model or its noise levels are wrong.
_IMPROBABLE = 1e-4
# Gaps between intervals above this part of the motion's size are none of round-off.
_GAP = 1e-5


def identification(task: Task, params, ended: Ended, experiments) -> Identification:
    """Everything that a fit says.

    Args:
        task: what was fitted.
        params: the first guess.
        ended: the best fit.
        experiments: what was measured.
    """
    fit, x = task.fit, jnp.asarray(ended.x)
    jac = _jacobian(task, x, ended)
    names = names_of(params)
    kept = ~fit.node_entries
    units = fit.units(np.asarray(x))[kept]
    found = sensitivity(condensed(jac, ~kept, fit.gap_count), units)
    trained, _ = fit.split(x)
    of_values = lambda x: values_of(eqx.combine(fit.split(x)[0], fit.frozen))  # noqa: E731
    slopes = np.asarray(jax.jacfwd(of_values)(x))[:, kept]
    covariance = slopes @ found.covariance @ slopes.T
    errors = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    unknown = np.any(slopes[:, open_entries(found)] != 0, axis=1)
    raw_names = [*names.raw, *_start_names(task, experiments)]
    raw = eqx.combine(trained, fit.frozen)
    return Identification(
        params=resolve(raw),
        raw=raw,
        names=names.values,
        values=np.asarray(of_values(x)),
        initial_values=np.asarray(values_of(params)),
        standard_errors=np.where(unknown, np.inf, errors),
        covariance=covariance,
        chi_square=float(ended.cost),
        degrees_of_freedom=task.counts.total - found.rank,
        noise=_noise(task, ended),
        estimated_noise=_named(task, task.counts.unknown_noise),
        unidentifiable=tuple(open_directions(found, raw_names, units)),
        starts=_starts(task, x, experiments),
        start_errors=_start_errors(task, found, raw_names[len(names.raw) :]),
        data=_data(task, x, ended, experiments),
        gap=float(np.abs(ended.gaps).max(initial=0.0)),
        steps=int(ended.steps),
        stop_reason="converged" if ended.converged else "no decrease" if ended.stuck else "steps",
        wall_seconds=0.0,
        problem=(task, x, jnp.asarray(ended.noise)),
    )


def _jacobian(task: Task, x, ended: Ended) -> np.ndarray:
    """Derivatives of the residuals by the unknowns at the estimate."""
    one = lambda a: jnp.asarray(a, x.dtype)[None]  # noqa: E731
    values = repeated(samples_of(task.fit), 1)
    data = Measurements(values, one(ended.noise), one(1.0))
    return np.asarray(linearized(task.fit, x[None], data)[1][0])


def _unknown_starts(task: Task) -> list[tuple[int, Freedom]]:
    """Experiment and freedom of each start, in the order of the unknowns."""
    return [
        (i, free)
        for batch, freedoms in zip(task.fit.batches, task.layout.freedoms, strict=True)
        for (i, interval), free in zip(batch.members, freedoms, strict=True)
        if interval == 0
    ]


def _start_names(task: Task, experiments) -> list[str]:
    return [
        f"{name} at the start of experiment {label(i, experiments[i])}"
        for i, free in _unknown_starts(task)
        for name in free.names
    ]


def _start_errors(task: Task, found: Sensitivity, names: Sequence[str]) -> dict[str, float]:
    """Standard errors of the starts, in the units of what they are named after."""
    sizes = np.concatenate([np.zeros(0), *(free.sizes for _, free in _unknown_starts(task))])
    errors = np.sqrt(np.diagonal(found.covariance))
    errors = np.where(open_entries(found), np.inf, errors)[len(errors) - len(sizes) :]
    return dict(zip(names, errors * sizes, strict=True))


def _noise(task: Task, ended: Ended) -> dict[str, float]:
    """Noise levels by channel; the root mean square of those that were given."""
    levels = {}
    for c, name in enumerate(task.channels):
        if task.counts.unknown_noise[c]:
            levels[name] = float(ended.noise[c])
            continue
        batches = [b for b in task.fit.batches if c in b.channels]
        weights = np.concatenate(
            [np.asarray(b.weights)[:, b.channels.index(c)].ravel() for b in batches]
        )
        levels[name] = float(np.sqrt(np.mean(1.0 / weights[weights > 0] ** 2)))
    return levels


def _named(task: Task, chosen: np.ndarray) -> tuple[str, ...]:
    return tuple(name for name, x in zip(task.channels, chosen, strict=True) if x)


@eqx.filter_jit
def _made(fit, x):
    return fit.readings(x)


def _starts(task: Task, x, experiments):
    found = {}
    for batch, made in zip(task.fit.batches, _made(task.fit, x), strict=True):
        for run, (i, interval) in enumerate(batch.members):
            if interval == 0:
                found[i] = jax.tree.map(lambda a, run=run: a[run], made.first)
    return tuple(found[i] for i in range(len(experiments)))


def _data(task: Task, x, ended: Ended, experiments: Sequence[Experiment]):
    """Samples beside the model, by experiment and channel."""
    model = [{n: np.full(e.ts.shape, np.nan) for n in e.measurements} for e in experiments]
    for batch, made in zip(task.fit.batches, _made(task.fit, x), strict=True):
        for run, (i, interval) in enumerate(batch.members):
            at = task.layout.samples[i, interval]
            for c, values in zip(batch.channels, np.asarray(made.values[run]), strict=True):
                name = tuple(task.channels)[c]
                if name in model[i]:
                    model[i][name][at] = values[: at.size]
    out = []
    for experiment, found in zip(experiments, model, strict=True):
        fitted = {}
        for name, x in experiment.measurements.items():
            c = tuple(task.channels).index(name)
            level = np.full(x.values.shape, float(ended.noise[c]))
            sigma = level if x.sigma is None else x.sigma
            unit = task.channels[name].unit
            fitted[name] = FittedChannel(experiment.ts, x.values, found[name], sigma, unit)
        out.append(fitted)
    return tuple(out)


def warnings_of(result: Identification) -> list[str]:
    """What a user must not overlook, in words."""
    texts = []
    if result.unidentifiable:
        texts.append(
            "identify: the data do not determine all parameters: "
            + "; ".join(result.unidentifiable)
            + ". Their standard errors are infinite; hold one of them, or measure another channel."
        )
    if result.stop_reason != "converged":
        how = "after all its steps" if result.stop_reason == "steps" else "finding no decrease"
        texts.append(
            f"identify: the method stopped {how} ({result.steps}) without meeting its tolerance; "
            "estimate and errors may be off. Give more steps, or start from `result.raw`."
        )
    if result.gap > _GAP:
        texts.append(
            f"identify: intervals do not meet, the largest gap is {result.gap:.2g} of the motion's "
            "size; the estimate is not that of one motion. Give more steps or a better guess."
        )
    if result.probability < _IMPROBABLE:
        texts.append(
            f"identify: chi-square is {result.chi_square:.4g} at {result.degrees_of_freedom} "
            f"degrees of freedom (probability {result.probability:.1g}): the model or its noise "
            "levels do not explain the data, and the standard errors are too small."
        )
    return texts
