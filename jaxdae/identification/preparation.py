"""From data and first guesses to the problem that is solved."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.identification.data import Channel, Experiment, label
from jaxdae.identification.layout import batch_of, gaps_between, groups_of, Piece
from jaxdae.identification.least_squares import Data, linearized, repeated
from jaxdae.identification.noise import channel_freedom, Counts, first_noise, require_freedom
from jaxdae.identification.priors import names_of, Prior, priors_of, values_of
from jaxdae.identification.residuals import Fit
from jaxdae.identification.runs import Model, Readings
from jaxdae.identification.uncertainty import ROUND_OFF
from jaxdae.tuning.parametrizations import is_parametrization, resolve, trainable


class Task(NamedTuple):
    """A fit and what belongs to it.

    Args:
        fit: the residuals.
        groups: the intervals that its batches are made of.
        counts: what there is to go by.
        channels: by name.
        x: first guess of all unknowns.
    """

    fit: Fit
    groups: list[list[Piece]]
    counts: Counts
    channels: Mapping[str, Channel]
    x: Any

    @property
    def unknowns(self) -> int:
        """Number of what is estimated from the data."""
        return self.x.size - self.fit.gap_count

    @property
    def intervals(self) -> list[tuple[int, int, Piece]]:
        """All intervals with the numbers of their batch and of their run in it."""
        groups = enumerate(self.groups)
        return [(b, run, one) for b, group in groups for run, one in enumerate(group)]

    def made(self, x) -> list[Readings]:
        """What the model says with some unknowns."""
        return _readings(self.fit, x)


@eqx.filter_jit
def _readings(fit: Fit, x) -> list[Readings]:
    return fit.readings(x)


def prepared(
    model: Model,
    params: PyTree,
    experiments: Sequence[Experiment],
    channels: Mapping[str, Channel],
    intervals: int,
    priors: Mapping[str, Prior] | None = None,
) -> Task:
    """The problem of a fit.

    Raises:
        ValueError: where nothing is to be estimated, a first guess is not finite, a start does not
            fit, or there is a prior of something else.
    """
    trained, frozen = eqx.partition(params, trainable(params))
    if not jax.tree.leaves(trained):
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
    known, like = priors_of(priors, names), (trained, zeros)
    fit = Fit(model, frozen, like, batches, jnp.asarray(joints), jnp.asarray(gaps, dtype), known)
    samples, unknown = np.zeros(len(channels), int), np.zeros(len(channels), bool)
    for experiment in experiments:
        for c, name in enumerate(channels):
            if name in experiment.measurements:
                found = experiment.measurements[name]
                samples[c] += int(np.sum(~np.isnan(found.values)))
                unknown[c] = found.sigma is None
    others = sum(x.freedom.priors for group in groups for x in group) + known.entries.size
    counts = Counts(samples, unknown, others)
    return Task(fit, groups, counts, channels, ravel_pytree(like)[0])


def guesses(task: Task, params: PyTree, starts: int, spread: float, key) -> Float[Array, "k p"]:
    """First guesses: the given one and normal perturbations of its parameters."""
    units = jax.tree.map(
        lambda x: (
            jax.tree.map(jnp.ones_like, eqx.filter(x, trainable(x)))
            if is_parametrization(x)
            else jnp.where(x == 0, 1.0, jnp.abs(x))
        ),
        eqx.filter(params, eqx.is_inexact_array),
        is_leaf=is_parametrization,
    )
    units = ravel_pytree(units)[0]
    noise = jax.random.normal(key, (starts, units.size), task.x.dtype).at[0].set(0.0)
    return jnp.tile(task.x, (starts, 1)).at[:, : units.size].add(spread * noise * units)


def usable(task: Task, x, names, experiments) -> Bool[np.ndarray, " fits"]:
    """Which first guesses have finite residuals and derivatives.

    Raises:
        ValueError: if none has, a noise level cannot be estimated, or a parameter changes no
            channel at any of them.
    """
    fit, many = task.fit, x.shape[0]
    noise = jnp.asarray(np.tile(first_noise(fit, task.counts), (many, 1)), x.dtype)
    data = Data(repeated(fit.samples(), many), noise, jnp.ones(many, x.dtype))
    residuals, jac = (np.asarray(a) for a in linearized(fit, x, data))
    good = np.asarray(np.isfinite(residuals).all(axis=1) & np.isfinite(jac).all(axis=(1, 2)))
    if not good.any():
        raise ValueError(_failure(task, x, experiments))
    if task.counts.unknown_noise.any():
        freedom = channel_freedom(fit, x[good], task.counts, jac[good]).max(axis=0)
        require_freedom(task.counts, freedom, task.unknowns, task.channels)
    units = np.stack([fit.units(np.asarray(at)) for at in x[good]])
    effects = (np.abs(jac[good]).max(axis=1) * units).max(axis=0)[: len(names)]
    # Where others are seen, the result says what is not.
    least = ROUND_OFF[jac.dtype.itemsize]
    seen = effects > (0.0 if (effects > least).any() else least)
    unseen = [x for x, is_so in zip(names, seen, strict=True) if not is_so]
    if unseen:
        raise ValueError(
            f"identify: no channel sees {', '.join(x.removeprefix('log ') for x in unseen)}: every "
            "derivative is zero, to round-off; hold it, by a Python number in place of the array, "
            "or measure a channel that it changes."
        )
    return good


def _failure(task: Task, x, experiments) -> str:
    """Which runs fail at the first guess, in words."""
    failed = {
        batch.members[run]
        for batch, found in zip(task.fit.batches, task.made(x[0]), strict=True)
        for run in np.flatnonzero(~np.isfinite(np.asarray(found.values)).all(axis=(1, 2)))
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
