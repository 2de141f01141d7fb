"""The weighted residuals of a fit, as a function of one vector of unknowns."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.identification.priors import Priors, values_of
from jaxdae.identification.runs import Batch, Model, Readings
from jaxdae.reprs import Module
from jaxdae.tuning.parametrizations import Interval, is_parametrization, resolve

# Logits beyond this are of numbers in the first or last hundredth of their interval.
_NEAR_BOUND = float(np.log(99.0))


class Samples(NamedTuple):
    """All that was measured.

    Args:
        channels: samples of each batch, shape `(runs, channels, times)`.
        starts: of each batch what guesses say of `prior @ z`: zero, but in simulated data.
        priors: of the parameters that have one.
    """

    channels: list[Any]
    starts: list[Any]
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

    def raw(self, x: Float[Array, " p"]) -> PyTree:
        """Parameters with their parametrizations."""
        return eqx.combine(self.split(x)[0], self.frozen)

    def params(self, x: Float[Array, " p"]) -> PyTree:
        """Resolved parameters."""
        return resolve(self.raw(x))

    def values(self, x: Float[Array, " p"]) -> Float[Array, " k"]:
        """The estimated numbers."""
        return values_of(self.raw(x))

    def samples(self) -> Samples:
        """What was measured."""
        starts = [jnp.zeros(b.runs.prior.shape[:2]) for b in self.batches]
        return Samples([b.values for b in self.batches], starts, self.priors.means)

    def readings(self, x: Float[Array, " p"]) -> list[Readings]:
        """What the model says of every batch."""
        params, made = self.params(x), zip(self.batches, self.split(x)[1], strict=True)
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
        starts, made, parts = self.split(x)[1], self.readings(x), []
        for i, (batch, z, found) in enumerate(zip(self.batches, starts, made, strict=True)):
            scale = noise[jnp.asarray(batch.channels)][:, None]
            parts.append((found.values - values.channels[i]) * batch.weights / scale)
            parts.append(jax.vmap(jnp.matmul)(batch.runs.prior, z) - values.starts[i])
        expected = self.values(x)[self.priors.entries]
        parts.append((expected - values.priors) / self.priors.sigmas)
        parts.append(weight * self._gaps(made))  # last, so that they can be left out
        return jnp.concatenate([p.ravel() for p in parts])

    def _gaps(self, made: list[Readings]) -> Float[Array, "joints d"]:
        """Gaps between the end of an interval and the start of the next."""
        if not self.joints.shape[0]:
            return jnp.zeros((0, 0))
        rows = lambda s: jnp.concatenate([s.q, s.v, s.w], axis=-1)  # noqa: E731
        ends = jnp.concatenate([rows(x.states)[:, -1] for x in made])
        starts = jnp.concatenate([rows(x.first) for x in made])
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
