"""From data and first guesses to the problem that is solved: starts, intervals, batches."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxdae.identification.data import Channel, Experiment, label, Prior, UnknownStart
from jaxdae.identification.fit import (
    Batch,
    Fit,
    MeasurementModel,
    names_of,
    priors_of,
    Runs,
    Samples,
    Unknowns,
    values_of,
)
from jaxdae.identification.linearization import evaluate, Evaluation, linearizations
from jaxdae.identification.losses import Loss, SQUARES
from jaxdae.identification.sensors import Sensors
from jaxdae.identification.uncertainty import (
    channel_freedom,
    first_noise,
    require_freedom,
    ROUND_OFF,
    SampleCounts,
)
from jaxdae.systems import State, Variables
from jaxdae.systems.precision import in_dtype, known_array
from jaxdae.tuning.parametrizations import is_parametrization, resolve, trainable

# Runs of one batch take as many fixed steps; one this much longer than another has its own.
_MOST_LONGER = 2.0


class Freedom(NamedTuple):
    """How a start may move, and offsets and scales of sensors with it."""

    # From independent coordinates `z` to changes of the numbers of a state, `(q, v, w)` or
    # `(y, z)`, and of those of sensors, shape `(numbers, d)`.
    moves: Any
    prior: Any  # from `z` to what the guess's own noise makes of it, shape `(d, d)`
    names: Sequence[str] = ()  # of the coordinates
    sensors: int = 0  # how many of them, the last ones, are of sensors

    @property
    def priors(self) -> int:
        """Number of independent measurements that the guess is."""
        return int(np.linalg.matrix_rank(self.prior)) if self.prior.size else 0

    @property
    def sizes(self) -> np.ndarray:
        """How far one unit of each coordinate moves what it is named after."""
        return np.abs(self.moves).max(axis=0, initial=0.0)


@dataclasses.dataclass(frozen=True)
class Piece:
    """One interval of an experiment, and how it starts."""

    experiment: int  # its number
    number: int  # its own, in the experiment
    start: float  # when it starts [s]
    at: np.ndarray  # numbers of its samples
    ts: np.ndarray  # their times [s]
    values: np.ndarray  # by channel, zero where a sample is missing, shape `(channels, times)`
    weights: np.ndarray  # one over the noise, zero where a sample is missing
    given: Any  # controller and conditions
    guess: State | Variables  # state at the start
    own: np.ndarray  # offsets and scales of sensors in this experiment
    freedom: Freedom  # how both may move
    function: Callable | None  # the start as a function of the declaration, if it is one
    project: bool  # whether it is brought onto the constraints
    origin: float  # from which times count [s]; zero where the equations depend on time

    @property
    def end(self) -> float:
        """When it ends [s]."""
        return float(self.ts[-1])


class Task(NamedTuple):
    """A fit and what belongs to it."""

    fit: Fit  # the residuals
    groups: list[list[Piece]]  # the intervals that its batches are made of
    counts: SampleCounts  # what there is to go by
    channels: Mapping[str, Channel]  # by name
    x: Any  # first guess of all unknowns
    loss: Loss = SQUARES  # of the samples

    @property
    def unknowns(self) -> int:
        """Number of what is estimated from the data."""
        return self.x.size - self.fit.gap_count

    @property
    def intervals(self) -> list[tuple[int, int, Piece]]:
        """All intervals with the numbers of their batch and of their run in it."""
        groups = enumerate(self.groups)
        return [(b, run, one) for b, group in groups for run, one in enumerate(group)]


def prepared(
    model: MeasurementModel,
    params: Unknowns,
    experiments: Sequence[Experiment],
    channels: Mapping[str, Channel],
    intervals: int,
    priors: Mapping[str, Prior] | None = None,
) -> Task:
    """The problem of a fit."""
    trained, frozen = eqx.partition(params, trainable(params))
    if not jax.tree.leaves(trained.params):
        raise ValueError(
            "identify: nothing to estimate, no leaf of `params` is a floating-point array; write "
            "jnp.array(1.2) or Positive(1.2) in place of the Python number 1.2."
        )
    trained, names = jax.tree.map(jnp.asarray, trained), names_of(params)
    for name, value in zip(names, np.asarray(values_of(params)), strict=True):
        if not np.isfinite(value):
            raise ValueError(
                f"identify: the first guess of {name!r} is {value:g}, must be a finite number."
            )
    full = lambda trained: resolve(eqx.combine(trained, frozen))  # noqa: E731
    groups = groups_of(model, full, trained, experiments, tuple(channels), intervals)
    batches = tuple(batch_of(group, model.settings.dt) for group in groups)
    dtype = jnp.result_type(float)
    zeros = tuple(jnp.zeros(b.runs.prior.shape[:2], dtype) for b in batches)
    joints, gaps = gaps_between(groups)
    known = priors_of(_with_calibrations(priors, model.sensors), names)
    like = (trained, zeros)
    fit = Fit(model, frozen, like, batches, jnp.asarray(joints), jnp.asarray(gaps, dtype), known)
    samples, unknown = np.zeros(len(channels), int), np.zeros(len(channels), bool)
    for experiment in experiments:
        for c, name in enumerate(channels):
            if name in experiment.measurements:
                found = experiment.measurements[name]
                samples[c] += int(np.sum(~np.isnan(found.values)))
                unknown[c] = found.sigma is None
    others = sum(x.freedom.priors for group in groups for x in group) + known.entries.size
    counts = SampleCounts(samples, unknown, others)
    return Task(fit, groups, counts, channels, ravel_pytree(like)[0])


def _with_calibrations(priors: Any, sensors: Sensors) -> Any:
    """Priors with what is known of offsets and scales that all records share."""
    known = {n: Prior(x.guess, x.sigma) for n, x in sensors.shared.items() if np.isfinite(x.sigma)}
    if not known or not isinstance(priors, Mapping | None):
        return priors
    return {**known, **(priors or {})}


def guesses(task: Task, params: Unknowns, starts: int, spread: float, key) -> Float[Array, "k p"]:
    """First guesses: the given one and normal perturbations of the model's parameters."""
    units = jax.tree.map(
        lambda x: (
            jax.tree.map(jnp.ones_like, eqx.filter(x, trainable(x)))
            if is_parametrization(x)
            else jnp.where(x == 0, 1.0, jnp.abs(x))
        ),
        eqx.filter(params.params, eqx.is_inexact_array),
        is_leaf=is_parametrization,
    )
    units = ravel_pytree(units)[0]
    noise = jax.random.normal(key, (starts, units.size), task.x.dtype).at[0].set(0.0)
    return jnp.tile(task.x, (starts, 1)).at[:, : units.size].add(spread * noise * units)


def usable(task: Task, x, values: Samples, names, experiments) -> tuple[Any, Samples, Evaluation]:
    """First guesses with finite residuals and derivatives, their samples, and these residuals."""
    fit = task.fit
    evaluation = evaluate(fit, x, values)
    found = linearizations(fit, evaluation)
    good = np.array([one.finite for one in found])
    if not good.any():
        raise ValueError(_failure(task, x, evaluation, experiments))
    noise, units = (
        first_noise(fit, task.counts, robust=task.loss.robust),
        [fit.units(np.asarray(at)) for at in x],
    )
    weighted = [one.weighted(noise, 1.0) for one in found]
    pairs = [(weighted[i], units[i]) for i in np.flatnonzero(good)]
    if task.counts.unknown_noise.any():
        freedom = np.stack([channel_freedom(one, task.counts, unit) for one, unit in pairs])
        require_freedom(task.counts, freedom.max(axis=0), task.unknowns, task.channels)
    effects = np.stack([one.largest() * unit for one, unit in pairs]).max(axis=0)[: len(names)]
    # Where others are seen, the result says what is not.
    least = ROUND_OFF[found[0].precision.itemsize]
    seen = effects > (0.0 if (effects > least).any() else least)
    unseen = [x for x, is_so in zip(names, seen, strict=True) if not is_so]
    if unseen:
        raise ValueError(
            f"identify: no channel sees {', '.join(x.removeprefix('log ') for x in unseen)}: every "
            "derivative is zero, to round-off; hold it, by a Python number in place of the array, "
            "or measure a channel that it changes."
        )
    if good.all():
        return x, values, evaluation
    return jax.tree.map(lambda a: a[good], (x, values, evaluation))


def _failure(task: Task, x, evaluation: Evaluation, experiments) -> str:
    """Which runs fail at the first guess, in words."""
    failed = {
        batch.members[run]
        for batch, found in zip(task.fit.batches, evaluation.runs, strict=True)
        for run in np.flatnonzero(~np.isfinite(np.asarray(found.made.values[0])).all(axis=(1, 2)))
    }
    which = "the derivatives are not finite"
    if failed:
        i, _ = min(failed)
        which = (
            f"the run of experiment {label(i, experiments[i])} does not reach its last sample at "
            f"t = {experiments[i].ts[-1]:.6g} s, or a channel is not finite on the way"
        )
    at = "the first guess" if x.shape[0] == 1 else f"all {x.shape[0]} first guesses"
    return (
        f"identify: it fails at {at}; at the first, {which}. Start from parameters nearer to the "
        "real ones, take a smaller dt, or divide the records, intervals=…."
    )


def no_freedom(state) -> Freedom:
    """Of a start that is known."""
    return Freedom(np.zeros((ravel_pytree(state)[0].size, 0)), np.zeros((0, 0)))


def groups_of(
    model: MeasurementModel,
    params: Callable,
    trained: Any,
    experiments: Sequence[Experiment],
    channels,
    count,
) -> list[list[Piece]]:
    """Intervals of all experiments, `count` of each, in groups of one kind."""
    groups: list[list[Piece]] = []
    for i, experiment in enumerate(experiments):
        for one in _intervals(model, params, trained, i, experiment, channels, count):
            group = next((g for g in groups if _fit_together(g[0], one)), None)
            if group is None:
                groups.append([one])
            else:
                group.append(one)
    return groups


def _intervals(
    model: MeasurementModel, params, trained, i, experiment: Experiment, channels, count: int
):
    """Intervals of an experiment, each with about as many samples; they meet at samples."""
    ts, t0, name = experiment.ts, float(experiment.t0), label(i, experiment)
    if not ts[-1] > t0:
        raise ValueError(
            f"identify: experiment {name} ends where it starts, at t = {t0:g} s; "
            "give samples at later times."
        )
    later = np.flatnonzero(ts > t0)
    if not 1 <= count <= later.size:
        raise ValueError(
            f"identify: {count} intervals of experiment {name}, which has "
            f"{later.size} samples after its start; give between 1 and as many."
        )
    blocks = np.array_split(later, count)
    blocks[0] = np.arange(blocks[0][-1] + 1)
    starts = [t0, *(float(ts[x[-1]]) for x in blocks[:-1])]
    given = in_dtype((experiment.controller, experiment.conditions), jnp.result_type(float))
    parts_of = lambda trained: model.parts(params(trained), given)  # noqa: E731
    own = model.sensors.first_own()
    first = _first(parts_of, trained, experiment, name, t0)
    begun = [first]
    if count > 1:
        states = _guessed(parts_of(trained), model.settings, experiment, name, first[0], starts)
        begun += [node(parts_of(trained), t, x) for t, x in zip(starts[1:], states, strict=True)]
    freedoms = [_with_sensors(x[1], model.sensors, first=k == 0) for k, x in enumerate(begun)]
    return [
        Piece(
            i, k, t, at, ts[at], *samples_of(experiment, at, channels), given,
            how[0], own, free, *how[2:],
        )
        for k, (t, at, how, free) in enumerate(zip(starts, blocks, begun, freedoms, strict=True))
    ]  # fmt: skip


def _with_sensors(free: Freedom, sensors: Sensors, *, first: bool) -> Freedom:
    """With offsets and scales of sensors as further coordinates, guessed in the first interval."""
    own = sensors.own
    if not own:
        return free
    known = np.diag([1.0 / x.sigma if first else 0.0 for x in own.values()])
    block = scipy.linalg.block_diag
    moves, prior = block(free.moves, np.eye(len(own))), block(free.prior, known)
    return Freedom(moves, prior, [*free.names, *own], len(own))


def samples_of(experiment: Experiment, at: np.ndarray, channels) -> tuple[np.ndarray, np.ndarray]:
    """Values and weights of some samples, zero where they are missing."""
    values, weights = np.zeros((2, len(channels), at.size))
    for c, name in enumerate(channels):
        if name in experiment.measurements:
            measured = experiment.measurements[name]
            x = measured.values[at]
            sigma = np.ones(at.size) if measured.sigma is None else measured.sigma[at]
            values[c] = np.where(np.isnan(x), 0.0, x)
            weights[c] = np.where(np.isnan(x), 0.0, 1.0 / sigma)
    return values, weights


# Guess, freedom, function, projection and origin, as in `Piece`.
_Begun = tuple[Any, Freedom, Callable | None, bool, float]


def _first(parts_of: Callable, trained, experiment: Experiment, name: str, t: float) -> _Begun:
    """How an experiment starts."""
    start, parts = experiment.start, parts_of(trained)
    wanted = start.guess if isinstance(start, UnknownStart) else start
    function = None if isinstance(wanted, State | Variables) else wanted
    what = f"identify: the start of experiment {name} is"
    if function is not None:
        what, wanted = f"{what} a function that returned", function(parts.declaration)
    guess = parts.as_state(wanted, what)
    if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(guess)):
        raise ValueError(
            f"identify: the start of experiment {name} is not finite; give numbers for "
            f"{', '.join(guess._fields) if isinstance(guess, Variables) else 'q, v and w'}."
        )
    parts.check(t, guess)
    if isinstance(start, UnknownStart):
        near, free, _, project, origin = node(parts, t, guess, start)
        return near if function is None else guess, free, function, project, origin
    # Whether a parameter moves the constraints at a known start.
    residuals = lambda trained: parts_of(trained).residuals(t, guess)  # noqa: E731
    slopes = () if function is not None else jax.tree.leaves(jax.jacfwd(residuals)(trained))
    moves = any(np.any(np.asarray(x) != 0) for x in slopes)
    parts.check_start(t, guess, name, moves=moves)
    project = moves or parts.always_projects
    return guess, no_freedom(guess), function, project, _origin(parts, guess, t)


def node(parts, t: float, state, start: UnknownStart | None = None) -> _Begun:
    """How an interval starts that is estimated; later ones anywhere on the constraints."""
    near = parts.consistent(t, state)
    free = Freedom(*parts.directions(t, near, UnknownStart(near) if start is None else start))
    return near, free, None, parts.is_constrained(t, near), _origin(parts, near, t)


def _guessed(parts, settings, experiment: Experiment, name: str, start, starts: list):
    """Guesses of the states where later intervals start.

    Those that the experiment gives; else those of a run with the first guess of the parameters.
    """
    if experiment.guess is not None:
        at = [int(np.flatnonzero(experiment.ts == t)[0]) for t in starts[1:]]
        return [jax.tree.map(lambda x, i=i: x[i], experiment.guess) for i in at]
    problem, method = parts.prepared(
        start, starts[0], experiment.ts[-1], settings.dt, np.asarray(starts[1:]), settings
    )
    states = parts.states_of(parts.trajectory(problem, method))
    if not all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(states)):
        raise ValueError(
            f"identify: with the first guess the run of experiment {name} does not reach the start "
            f"of its last interval, t = {starts[-1]:.6g} s; give Experiment(…, guess=…), "
            "states at the times of the samples as the measurements suggest them."
        )
    return [jax.tree.map(lambda x, i=i: x[i], states) for i in range(len(starts) - 1)]


def _origin(parts, state, start: float) -> float:
    """Zero where the equations depend on time itself, else the start."""
    return 0.0 if parts.depends_on_time(state) else start


def gaps_between(groups: list[list[Piece]]) -> tuple[np.ndarray, np.ndarray]:
    """Joints between intervals, and what a gap there is.

    Returns:
        Pairs of runs, numbered through all groups, one of which goes on where the other ends, shape
        `(joints, 2)`; from the difference of their states to its independent part in units of the
        motion's size nearby, which changes by many powers of ten where it is unstable, shape
        `(joints, d, numbers)`.
    """
    made = [x for group in groups for x in group]
    numbers = {(x.experiment, x.number): i for i, x in enumerate(made)}
    pairs, gaps = [], []
    for (i, k), number in numbers.items():
        if k == 0:
            continue
        pairs.append((numbers[i, k - 1], number))
        near = (numbers.get((i, j)) for j in (k - 1, k, k + 1))
        states = [(made[x].guess, made[x].own) for x in near if x is not None]
        sizes = []
        for leaves in zip(*map(jax.tree.leaves, states), strict=True):
            values = np.abs(np.stack([np.ravel(x) for x in leaves]))
            sizes.append(np.full(values.shape[1], values.max(initial=0.0) or 1.0))
        scale = np.concatenate(sizes)[:, None]
        directions = made[number].freedom.moves / scale
        gaps.append(np.linalg.pinv(directions / np.linalg.norm(directions, axis=0)) / scale.T)
    if not pairs:
        return np.zeros((0, 2), int), np.zeros((0, 0, 0))
    return np.array(pairs), np.stack(gaps)


def _fit_together(one: Piece, other: Piece) -> bool:
    """Whether two runs are of one kind, so that one program makes both."""
    if one.function is not other.function or one.project != other.project:
        return False
    short, long = sorted((one.end - one.start, other.end - other.start))
    if one.start - one.origin != other.start - other.origin or long > _MOST_LONGER * short:
        return False
    trees = [(x.guess, x.own, x.freedom.moves, x.freedom.prior, x.given) for x in (one, other)]
    # Of what is no array, integers of conditions say, the runs of a batch share one value.
    shapes = [jax.tree.map(lambda x: x.shape if eqx.is_array(x) else x, x) for x in trees]
    return eqx.tree_equal(*shapes) is True


def _stacked(arrays: Sequence, dtype) -> Array:
    """Arrays of all runs, without a program of JAX."""
    return known_array(np.stack([np.asarray(x) for x in arrays]), dtype)


def batch_of(group: list[Piece], dt: float | None) -> Batch:
    """Runs of one kind as one batch, with fixed steps of `dt` at most or adaptive ones."""
    origin = np.array([x.origin for x in group])
    start = np.array([x.start for x in group]) - origin
    end = np.array([x.end for x in group]) - origin
    most = max(x.ts.size for x in group)
    ts = np.stack([np.pad(x.ts, (0, most - x.ts.size), mode="edge") for x in group])
    channels = range(group[0].weights.shape[0])
    seen = [c for c in channels if any(x.weights[c].any() for x in group)]
    pad = lambda x: np.pad(x[seen], ((0, 0), (0, most - x.shape[1])))  # noqa: E731
    stack = lambda xs: _stacked([*xs], jnp.result_type(float))  # noqa: E731
    arrays = [eqx.filter(x.given, eqx.is_array) for x in group]
    given = eqx.combine(
        jax.tree.map(lambda *xs: _stacked(xs, xs[0].dtype), *arrays),
        eqx.filter(group[0].given, eqx.is_array, inverse=True),
    )
    i = int(np.argmax(end - start))
    duration = float(end[i] - start[i])
    # Above the quotient by round-off, not to make a step more.
    steps = None if dt is None else max(1, int(np.ceil(duration / dt * (1 - 1e-9))))
    step = None if steps is None else duration / steps * (1 + 1e-9)
    return Batch(
        Runs(
            jnp.asarray(start),
            jnp.asarray(end),
            jnp.asarray(ts - origin[:, None]),
            jnp.asarray(origin),
            jax.tree.map(lambda *xs: stack(xs), *(x.guess for x in group)),
            stack(x.own for x in group),
            stack(x.freedom.moves for x in group),
            stack(x.freedom.prior for x in group),
            given,
        ),
        stack(pad(x.values) for x in group),
        stack(pad(x.weights) for x in group),
        tuple(seen),
        group[0].function,
        group[0].project,
        tuple((x.experiment, x.number) for x in group),
        (float(start[i]), float(end[i]), step),
    )
