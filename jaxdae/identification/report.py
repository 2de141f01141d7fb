"""The result of a fit: errors of the estimate, and what is left of the data."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.identification.bounds import at_bounds
from jaxdae.identification.data import Experiment
from jaxdae.identification.estimate import (
    Ended,
    linearized,
    Measurements,
    NOISE_TOLERANCE,
    repeated,
    samples_of,
)
from jaxdae.identification.naming import names_of, values_of
from jaxdae.identification.nodes import label
from jaxdae.identification.noise import round_off
from jaxdae.identification.preparation import Task
from jaxdae.identification.priors import by_name
from jaxdae.identification.result import FittedChannel, Identification
from jaxdae.identification.singular import singular_passages, SingularPassage
from jaxdae.identification.starts import Freedom
from jaxdae.identification.uncertainty import (
    condensed,
    drowned,
    open_directions,
    open_entries,
    propagated,
    Sensitivity,
    sensitivity,
)
from jaxdae.systems import State
from jaxdae.tuning.parametrizations import resolve

# Noise levels are kept in the precision of the runs.
_ABOVE = 1 + 1e-6


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
    rows = condensed(jac, ~kept, fit.gap_count)
    found, data = sensitivity(rows, units), _data(task, x, ended, experiments)
    beside = dict.fromkeys(np.flatnonzero(drowned(rows, units)).tolist(), _heaviest(data))
    trained, _ = fit.split(x)
    of_values = lambda x: values_of(eqx.combine(fit.split(x)[0], fit.frozen))  # noqa: E731
    slopes = np.asarray(jax.jacfwd(of_values)(x))[:, kept]
    covariance, errors = propagated(found, slopes)
    raw_names = [*names.raw, *_start_names(task, experiments)]
    raw = eqx.combine(trained, fit.frozen)
    least, starts = round_off(fit), _starts(task, x, experiments)
    return Identification(
        params=resolve(raw),
        raw=raw,
        names=names.values,
        values=np.asarray(of_values(x)),
        initial_values=np.asarray(values_of(params)),
        priors=by_name(fit.priors, names.values),
        standard_errors=errors,
        covariance=covariance,
        chi_square=float(ended.cost),
        degrees_of_freedom=task.counts.total - found.rank,
        noise=_noise(task, ended),
        estimated_noise=_named(task, task.counts.unknown_noise),
        noise_freedom=_freedom(task, ended),
        round_off=_named(task, task.counts.unknown_noise & (ended.noise <= _ABOVE * least)),
        noise_change=float(ended.noise_change),
        at_bounds=at_bounds(raw, errors),
        unidentifiable=tuple(open_directions(found, raw_names, units, beside)),
        starts=starts,
        moved_starts=_moved(starts, experiments),
        start_errors=_start_errors(task, found, raw_names[len(names.raw) :]),
        data=data,
        gap=float(np.abs(ended.gaps).max(initial=0.0)),
        singular_passages=_passages(task, x, names.raw, experiments),
        steps=int(ended.steps),
        stop_reason=_stop_reason(ended),
        wall_seconds=0.0,
        problem=(task, x, jnp.asarray(ended.noise)),
    )


def _stop_reason(ended: Ended) -> str:
    if not ended.converged:
        return "steps" if ended.spent else "no decrease"
    if ended.noise_change > NOISE_TOLERANCE:
        return "noise"
    return "bound" if ended.pressed.any() else "converged"


def _freedom(task: Task, ended: Ended) -> dict[str, float]:
    """Degrees of freedom of the noise levels that were estimated."""
    pairs = zip(task.channels, ended.freedom, task.counts.unknown_noise, strict=True)
    return {name: float(freedom) for name, freedom, unknown in pairs if unknown}


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


def _passages(task: Task, x, names, experiments) -> tuple[SingularPassage, ...]:
    """With the estimate, or else with the guess: a fit may lose what vanishes with a parameter."""
    passed = lambda x: singular_passages(task, x, _made(task.fit, x), names, experiments)  # noqa: E731
    return passed(x) or tuple(one._replace(guessed=True) for one in passed(task.x))


def _moved(starts: Sequence[State], experiments: Sequence[Experiment]) -> dict[str, float]:
    """How far starts that are known were brought to the constraints, by experiment."""
    return {
        label(i, experiment): _change(experiment.start, start)
        for i, (experiment, start) in enumerate(zip(experiments, starts, strict=True))
        if isinstance(experiment.start, State)
    }


def _change(one: State, other: State) -> float:
    """Largest change of coordinates or velocities, as a part of their largest."""
    pairs = ((np.asarray(a), np.asarray(b)) for a, b in ((one.q, other.q), (one.v, other.v)))
    change = lambda a, b: np.abs(b - a).max(initial=0.0) / (np.abs(a).max(initial=0.0) or 1.0)  # noqa: E731
    return float(max(change(*x) for x in pairs))


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


def _heaviest(data) -> str:
    """Which channel drowns what others see, in words."""
    sizes: dict[str, float] = {}
    for experiment in data:
        for name, x in experiment.items():
            scaled = np.abs(np.where(np.isfinite(x.measured), x.model, 0.0)) / x.sigma
            sizes[name] = max(sizes.get(name, 0.0), float(scaled.max(initial=0.0)))
    name = max(sizes, key=sizes.__getitem__)
    others = [x for y, x in sizes.items() if y != name and x > 0]
    ratio = sizes[name] / min(others, default=sizes[name])
    return (
        f"is seen, but drowned by the weight of channel {name!r}: in units of their noise its "
        f"samples are {ratio:.2g} times those of the channel that counts least. Check the noise "
        f"level of {name!r}; what is left of the others is round-off beside it"
    )
