"""What is fitted to what: runs in batches, what channels show of them, weighted residuals.

All that is unknown is one vector: trained arrays of the parameters first, offsets and scales that
records share, then the independent coordinates of starts that are estimated, with the offsets and
scales of single records.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.checks import are_known
from jaxdae.identification.data import Prior
from jaxdae.identification.declared import Declared, declared, Settings
from jaxdae.identification.sensors import Sensors
from jaxdae.reprs import Module
from jaxdae.systems.precision import known_array
from jaxdae.tuning.parametrizations import (
    HurwitzPolynomial,
    Interval,
    is_parametrization,
    Positive,
    PositiveDefinite,
    resolve,
)

# Logits beyond this are of numbers in the first or last hundredth of their interval.
_NEAR_BOUND = float(np.log(99.0))


class Priors(NamedTuple):
    """Priors of a fit: numbers of the estimated entries, their means and standard deviations."""

    entries: np.ndarray
    means: Float[Array, " k"]
    sigmas: Float[Array, " k"]


def priors_of(priors: Mapping[str, Prior] | None, names: Sequence[str]) -> Priors:
    """Priors by the numbers of their parameters; `ValueError` for one of another name."""
    priors = {} if priors is None else priors
    if not isinstance(priors, Mapping):
        raise TypeError(
            f"identify: priors is a {type(priors).__name__}, must be by name, such as "
            '{"mass": Prior(1.2, 0.1)}.'
        )
    for name, prior in priors.items():
        if name not in names:
            raise ValueError(
                f"identify: there is a prior of {name!r}, but nothing of that name is estimated; "
                f"there are: {', '.join(names)}."
            )
        if not isinstance(prior, Prior):
            raise TypeError(
                f"identify: the prior of {name!r} is a {type(prior).__name__}, must be "
                "Prior(mean, sigma)."
            )
    dtype = jnp.result_type(float)
    entries = np.array([names.index(name) for name in priors], int)
    means, sigmas = ([getattr(p, x) for p in priors.values()] for x in ("mean", "sigma"))
    return Priors(entries, jnp.asarray(means, dtype), jnp.asarray(sigmas, dtype))


_WRITTEN_AS = {
    Positive: "log",
    Interval: "logit",
    PositiveDefinite: "factor of",
    HurwitzPolynomial: "factor of",
}


class Unknowns(NamedTuple):
    """What belongs to all records."""

    params: PyTree  # of the model
    shared: dict[str, Any]  # offsets and scales of sensors, by name


def names_of(params: PyTree) -> tuple[str, ...]:
    """Names of the estimated numbers, such as `mass` or `stiffness[1]`, in the order of leaves."""
    return tuple(
        name
        for path, x in _estimated(params)
        for name in _entries(path, np.shape(x.value if is_parametrization(x) else x))
    )


def raw_names_of(params: PyTree) -> tuple[str, ...]:
    """Names of the unconstrained numbers that they are written by, such as `log mass`."""
    names = []
    for path, x in _estimated(params):
        how = f"{_WRITTEN_AS.get(type(x), 'raw')} " if is_parametrization(x) else ""
        shape = x.raw.shape if is_parametrization(x) else np.shape(x)
        names += [how + name for name in _entries(path, shape)]
    return tuple(names)


def values_of(params: PyTree) -> jax.Array:
    """The estimated numbers themselves, in the order of their names."""
    leaves = (x.value if is_parametrization(x) else x for _, x in _estimated(params))
    return jnp.concatenate([jnp.ravel(x) for x in leaves])


def _estimated(params: PyTree) -> list[tuple[Any, Any]]:
    if isinstance(params, Unknowns):
        return [*_estimated(params.params), *_estimated(params.shared)]
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_parametrization)
    return [(path, x) for path, x in leaves if is_parametrization(x) or eqx.is_inexact_array(x)]


def _entries(path: Any, shape: tuple[int, ...]) -> list[str]:
    base = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
    return [f"{base}[{', '.join(map(str, i))}]" if shape else base for i in np.ndindex(shape)]


class Runs(NamedTuple):
    """How runs are made, with a leading axis of runs."""

    start: Any  # time where it starts [s], from `origin`
    end: Any  # where it ends [s]
    samples: Any  # where the channels are read; the last is the end
    origin: Any  # what is added to these times; zero where the equations depend on time
    guess: Any  # state at the start; of starts that are functions, what they give
    own: Any  # offsets and scales of sensors in this record, first guesses
    moves: Any  # from independent coordinates to changes of both
    prior: Any  # from these coordinates to what the guess's own noise makes of them
    given: Any  # controller and conditions


class Batch(Module):
    """Runs of one kind; every array has a leading axis of runs."""

    runs: Runs  # how they are made
    # Samples, shape `(runs, channels, times)`; zero where there is none.
    values: Float[Array, "runs channels times"]
    # One over the noise, zero where there is no sample.
    weights: Float[Array, "runs channels times"]
    channels: tuple[int, ...] = eqx.field(static=True)  # which channels these are
    # The start as a function of the declaration, if it is one.
    function: Callable | None = eqx.field(static=True)
    project: bool = eqx.field(static=True)  # whether starts are brought onto the constraints
    # Experiment and interval of each run.
    members: tuple[tuple[int, int], ...] = eqx.field(static=True)
    # Start, end [s] and fixed step (or `None`) of the longest run, for what is decided when a
    # program is made.
    longest: tuple[float, float, float | None] = eqx.field(static=True)

    def member(self, tree: Any, index: int) -> Any:
        """One run of a tree; what is no array all runs share."""
        return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, tree)


class Predictions(NamedTuple):
    """What the model says of the runs of a batch."""

    values: Any  # of the channels, shape `(runs, channels, times)`; NaN where a run failed
    first: Any  # states at the starts
    states: Any  # at the samples
    own: Any  # offsets and scales of sensors in these records, shape `(runs, s)`


class MeasurementModel(Module):
    """From parameters to what the channels show."""

    # Maps resolved parameters to `(system, formulation)` or `(…, controller)`, or to a `DAE` or
    # `(dae, controller)`.
    build: Callable
    channels: tuple[Callable, ...]  # functions of a trajectory
    settings: Settings  # how runs are simulated
    sensors: Sensors  # what is made of these functions

    def parts(self, unknowns: Unknowns, given) -> Declared:
        """What a run is made of."""
        controller, conditions = given
        params = unknowns.params
        made = self.build(params) if conditions is None else self.build(params, conditions)
        return declared(made, controller)

    def predictions(self, unknowns: Unknowns, batch: Batch, z: Float[Array, "runs d"]):
        """Channels and states of all runs of a batch, whose starts have the coordinates `z`."""
        one = lambda member, z: self.of_run(unknowns, batch, member, z)  # noqa: E731
        return eqx.filter_vmap(one)(batch.runs, z)

    def of_run(
        self, unknowns: Unknowns, batch: Batch, member: Runs, z: Float[Array, " d"]
    ) -> Predictions:
        """The same of one run."""
        parts = self.parts(unknowns, member.given).counted_from(member.origin)
        guess = member.guess
        if batch.function is not None:
            begun = batch.function(parts.declaration)
            guess = parts.as_state(begun, "identify: the function of a start returned")
        state, own = moved((guess, member.own), member.moves, z)
        if batch.project:
            state = parts.consistent(member.start, state)
        ts, trajectory = self._simulated(parts, state, member, batch.longest)
        read = lambda c: self._measured(c, trajectory, unknowns.shared, own)  # noqa: E731
        values = jnp.stack([read(c) for c in batch.channels])
        # Fixed steps may go on past the end of a run, and fail there.
        values = jnp.where(jnp.isfinite(trajectory.ts), values, jnp.nan)
        return Predictions(values, state, ts, own)

    def _measured(self, channel: int, trajectory, shared, own) -> Float[Array, " times"]:
        """What the sensor of a channel shows of a run."""
        values = _read(self.channels[channel], trajectory)
        return self.sensors.measured(channel, values, shared, own)

    def _simulated(self, parts: Any, state, member: Runs, longest):
        """States at the times of a run, of which the program knows how many they are; the run."""
        t0, t1, dt = longest
        ts = np.linspace(t0, t1, member.samples.shape[0])
        problem, method = parts.prepared(state, t0, t1, dt, ts, self.settings)
        dtype = jnp.result_type(*jax.tree.leaves(state))
        cast = lambda x: jnp.asarray(x, dtype)  # noqa: E731
        if problem.times.grid is None:
            times = problem.times._replace(start=cast(member.start), end=cast(member.end))
            problem = problem._replace(times=times)
        saveat = eqx.tree_at(lambda s: s.subs.ts, method.saveat, cast(member.samples))
        trajectory = parts.trajectory(problem, method._replace(saveat=saveat))
        later = eqx.tree_at(lambda x: x.ts, trajectory, trajectory.ts + cast(member.origin))
        return parts.states_of(trajectory), later


def moved(guess, moves: Float[Array, "numbers d"], z: Float[Array, " d"]):
    """The state with independent coordinates `z`, before it is projected."""
    numbers, unravel = ravel_pytree(guess)
    return unravel(numbers + jnp.asarray(moves, numbers.dtype) @ z)


def _like(tree: Any, x: Float[Array, " p"]) -> Any:
    """The numbers in a tree of arrays; known ones without a program of JAX."""
    leaves, structure = jax.tree.flatten(tree)
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    numbers = np.asarray(x) if are_known(x) else x
    made = [
        numbers[first : first + leaf.size].reshape(leaf.shape)
        for first, leaf in zip(ends, leaves, strict=False)
    ]
    array = known_array if are_known(x) else jnp.asarray
    made = [array(part, leaf.dtype) for part, leaf in zip(made, leaves, strict=True)]
    return jax.tree.unflatten(structure, made)


def _read(channel: Callable, trajectory):
    values = channel(trajectory)
    shape = None if values is None else np.shape(values)
    if shape != trajectory.ts.shape:
        found = "is None" if shape is None else f"has shape {shape}"
        raise ValueError(
            f"identify: a channel's reading {found}, must have one number at each "
            f"of the {trajectory.ts.size} times, such as lambda run: run.q[:, 0]."
        )
    return jnp.asarray(values)


class Samples(NamedTuple):
    """All that was measured."""

    channels: list[Any]  # samples of each batch, shape `(runs, channels, times)`
    starts: list[Any]  # of each batch what guesses say of `prior @ z`: zero, but in simulated data
    priors: Any  # of the parameters that have one


class Fit(Module):
    """What is fitted to what."""

    model: MeasurementModel  # from parameters to what channels show
    frozen: PyTree  # what of the parameters is not estimated
    # What is, at first: trained arrays, and independent coordinates of starts by batch.
    like: PyTree
    batches: tuple[Batch, ...]  # the runs
    joints: Any  # pairs of runs of which one goes on where the other ends, numbered through all
    gaps: Any  # independent part of a difference of states at each joint
    priors: Priors  # what is known of parameters beforehand

    def split(self, x: Float[Array, " p"]) -> tuple[PyTree, tuple]:
        """Trained arrays, and coordinates of the starts for each batch."""
        return _like(self.like, x)

    def raw(self, x: Float[Array, " p"]) -> Unknowns:
        """What all records share, with its parametrizations."""
        return eqx.combine(self.split(x)[0], self.frozen)

    def params(self, x: Float[Array, " p"]) -> Unknowns:
        """The same, parametrizations resolved."""
        return resolve(self.raw(x))

    def values(self, x: Float[Array, " p"]) -> Float[Array, " k"]:
        """The estimated numbers."""
        return values_of(self.raw(x))

    @property
    def shared_count(self) -> int:
        """Number of the first unknowns, which all records share."""
        return sum(x.size for x in jax.tree.leaves(self.like[0]))

    @property
    def unknown_count(self) -> int:
        """Number of all unknowns."""
        return self.shared_count + sum(z.size for z in self.like[1])

    def raw_of_shared(self, shared: Float[Array, " k"]) -> Unknowns:
        """What all records share, with its parametrizations, from these unknowns alone."""
        return eqx.combine(_like(self.like[0], shared), self.frozen)

    def samples(self) -> Samples:
        """What was measured."""
        starts = [jnp.zeros(b.runs.prior.shape[:2]) for b in self.batches]
        return Samples([b.values for b in self.batches], starts, self.priors.means)

    def predictions(self, x: Float[Array, " p"]) -> list[Predictions]:
        """What the model says of every batch."""
        params, made = self.params(x), zip(self.batches, self.split(x)[1], strict=True)
        return [self.model.predictions(params, batch, z) for batch, z in made]

    def residuals(
        self, x: Float[Array, " p"], values: Samples, noise: Float[Array, " channels"], weight=1.0
    ) -> Float[Array, " residuals"]:
        """Differences of model and samples in units of the noise, those of starts, of priors, gaps.

        `noise` is one for channels whose noise is known; `weight` is that of the gaps between
        intervals, in units of the motion's size.
        """
        starts, made, parts = self.split(x)[1], self.predictions(x), []
        for i, (batch, z, found) in enumerate(zip(self.batches, starts, made, strict=True)):
            scale = noise[jnp.asarray(batch.channels)][:, None]
            parts.append((found.values - values.channels[i]) * batch.weights / scale)
            parts.append(jax.vmap(jnp.matmul)(batch.runs.prior, z) - values.starts[i])
        expected = self.values(x)[self.priors.entries]
        parts.append((expected - values.priors) / self.priors.sigmas)
        parts.append(weight * self._gaps(made))  # last, so that they can be left out
        return jnp.concatenate([p.ravel() for p in parts])

    def _gaps(self, made: list[Predictions]) -> Float[Array, "joints d"]:
        """Gaps between the end of an interval and the start of the next."""
        if not self.joints.shape[0]:
            return jnp.zeros((0, 0))
        rows = jax.vmap(lambda state, own: ravel_pytree((state, own))[0])
        last = lambda states: jax.tree.map(lambda x: x[:, -1], states)  # noqa: E731
        ends = jnp.concatenate([rows(last(x.states), x.own) for x in made])
        starts = jnp.concatenate([rows(x.first, x.own) for x in made])
        before, after = self.joints.T
        return jax.vmap(jnp.matmul)(self.gaps, ends[before] - starts[after])

    @property
    def gap_count(self) -> int:
        """Number of the last residuals, which are gaps, and of the unknowns they determine."""
        return self.gaps.shape[0] * self.gaps.shape[1]

    @property
    def node_entries(self) -> Bool[np.ndarray, " p"]:
        """Which unknowns belong to the start of a later interval."""
        trained, starts = self.like
        parts = [np.zeros(x.size, bool) for x in jax.tree.leaves(trained)]
        for batch, z in zip(self.batches, starts, strict=True):
            parts.append(np.repeat([number > 0 for _, number in batch.members], z.shape[1]))
        return np.concatenate(parts)

    def units(self, x: np.ndarray) -> Float[np.ndarray, "*fits p"]:
        """What a change of each unknown is small against: its value, where it has a unit.

        Logarithms and other parametrizations, starts in their scales, and zeros have one.
        """
        plain = self._entries(lambda leaf: not is_parametrization(leaf))
        return np.where(plain & (x != 0), np.abs(x), 1.0)

    def outward(self, x: Float[np.ndarray, "*fits p"]) -> Float[np.ndarray, "*fits p"]:
        """Signs of the changes that bring unknowns nearer to a bound they are near; else zero."""
        near = self._entries(lambda leaf: isinstance(leaf, Interval)) & (np.abs(x) > _NEAR_BOUND)
        return np.where(near, np.sign(x), 0.0)

    def _entries(self, of_kind: Callable[[Any], bool]) -> Bool[np.ndarray, " p"]:
        """Which unknowns belong to leaves of the parameters of a kind."""
        trained, starts = self.like
        leaves = jax.tree.leaves(trained, is_leaf=is_parametrization)
        marks = [np.full(y.size, of_kind(x)) for x in leaves for y in jax.tree.leaves(x)]
        return np.concatenate([*marks, *(np.zeros(z.size, bool) for z in starts)])
