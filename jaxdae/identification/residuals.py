"""The weighted residuals of a fit, as a function of one vector of unknowns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.identification.naming import values_of
from jaxdae.identification.priors import Priors
from jaxdae.identification.runs import Batch, Model, Readings
from jaxdae.reprs import Module
from jaxdae.tuning.parametrizations import Interval, is_parametrization, resolve

# Logits beyond this are of numbers in the first or last hundredth of their interval.
_NEAR_BOUND = float(np.log(99.0))


class Measured(NamedTuple):
    """What was measured in the runs of a batch.

    Args:
        channels: samples, shape `(runs, channels, times)`.
        starts: what the guesses of the starts say of `prior @ z`: zero, but in simulated data.
    """

    channels: Any
    starts: Any


class Samples(NamedTuple):
    """All that was measured.

    Args:
        runs: for each batch.
        priors: of the parameters that have one.
    """

    runs: list[Measured]
    priors: Any


class Fit(Module):
    """What is fitted to what.

    Args:
        model: from parameters to what channels show.
        frozen: what of the parameters is not estimated.
        like: what is, at first: trained arrays, and independent coordinates of starts by batch.
        batches: the runs.
        joints: pairs of runs of which one goes on where the other ends, numbered through all.
        gaps: independent part of a difference of states at each joint.
        priors: what is known of parameters beforehand.
    """

    model: Model
    frozen: PyTree
    like: PyTree
    batches: tuple[Batch, ...]
    joints: Any
    gaps: Any
    priors: Priors

    def split(self, x: Float[Array, " p"]) -> tuple[PyTree, tuple]:
        """Trained arrays, and coordinates of the starts for each batch."""
        return ravel_pytree(self.like)[1](x)

    def params(self, trained: PyTree) -> PyTree:
        """Resolved parameters."""
        return resolve(eqx.combine(trained, self.frozen))

    def readings(self, x: Float[Array, " p"]) -> list[Readings]:
        """What the model says of every batch."""
        trained, starts = self.split(x)
        params = self.params(trained)
        made = zip(self.batches, starts, strict=True)
        return [self.model.readings(params, batch, z) for batch, z in made]

    def residuals(
        self, x: Float[Array, " p"], values: Samples, noise: Float[Array, " channels"], weight=1.0
    ) -> Float[Array, " residuals"]:
        """Differences of model and samples in units of the noise, those of starts, of priors, gaps.

        Args:
            x: unknowns.
            values: what was measured.
            noise: standard deviation of channels whose noise is not known, one for the others.
            weight: of the gaps between intervals, in units of the motion's size.
        """
        (trained, starts), made = self.split(x), self.readings(x)
        parts = []
        for batch, z, found, measured in zip(self.batches, starts, made, values.runs, strict=True):
            scale = noise[jnp.asarray(batch.channels)][:, None]
            parts.append((found.values - measured.channels) * batch.weights / scale)
            parts.append(jax.vmap(jnp.matmul)(batch.starts.tangent.prior, z) - measured.starts)
        expected = values_of(eqx.combine(trained, self.frozen))[self.priors.entries]
        parts.append((expected - values.priors) / self.priors.sigmas)
        parts.append(weight * self.gaps_between(made))  # last, so that they can be left out
        return jnp.concatenate([p.ravel() for p in parts])

    @property
    def gap_count(self) -> int:
        """Number of the last residuals, which are gaps."""
        return self.gaps.shape[0] * self.gaps.shape[1]

    @property
    def node_entries(self) -> Bool[np.ndarray, " p"]:
        """Which unknowns belong to the start of a later interval."""
        trained, starts = self.like
        parts = [np.zeros(x.size, bool) for x in jax.tree.leaves(trained)]
        for batch, z in zip(self.batches, starts, strict=True):
            later = np.array([interval > 0 for _, interval in batch.members])
            parts.append(np.repeat(later, z.shape[1]))
        return np.concatenate(parts)

    def units(self, x: np.ndarray) -> Float[np.ndarray, " p"]:
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

    def gaps_between(self, made: list[Readings]) -> Float[Array, "joints d"]:
        """Gaps between the end of an interval and the start of the next."""
        if not self.joints.shape[0]:
            return jnp.zeros((0, 0))
        every = lambda which: jnp.concatenate(  # noqa: E731
            [jnp.concatenate([s.q, s.v, s.w], axis=1) for s in which]
        )
        ends, starts = every([x.last for x in made]), every([x.first for x in made])
        before, after = self.joints.T
        return jax.vmap(jnp.matmul)(self.gaps, ends[before] - starts[after])
