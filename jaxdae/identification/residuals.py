"""The weighted residuals of a fit, as a function of one vector of unknowns."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jaxdae.identification.runs import Batch, Model, Readings
from jaxdae.tuning.parametrizations import resolve


class Fit(eqx.Module):
    """What is fitted to what.

    Args:
        model: from parameters to what channels show.
        frozen: what of the parameters is not estimated.
        like: what is, at first: trained arrays, and independent coordinates of starts by batch.
        batches: the runs.
        joints: pairs of runs of which one goes on where the other ends, numbered through all.
        gaps: independent part of a difference of states at each joint.
    """

    model: Model
    frozen: PyTree
    like: PyTree
    batches: tuple[Batch, ...]
    joints: Any
    gaps: Any

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
        self, x: Float[Array, " p"], values: list, noise: Float[Array, " channels"], weight=1.0
    ) -> Float[Array, " residuals"]:
        """Differences of model and samples in units of the noise, then those of the starts.

        Args:
            x: unknowns.
            values: samples, for each batch.
            noise: standard deviation of channels whose noise is not known, one for the others.
            weight: of the gaps between intervals, in units of the motion's size.
        """
        starts, made = self.split(x)[1], self.readings(x)
        parts = []
        for batch, z, found, measured in zip(self.batches, starts, made, values, strict=True):
            scale = noise[jnp.asarray(batch.channels)][:, None]
            parts.append((found.values - measured) * batch.weights / scale)
            parts.append(jax.vmap(jnp.matmul)(jnp.asarray(batch.starts.tangent.prior), z))
        parts.append(weight * self.gaps_between(made))
        return jnp.concatenate([p.ravel() for p in parts])

    def gaps_between(self, made: list[Readings]) -> Float[Array, "joints d"]:
        """Gaps between the end of an interval and the start of the next."""
        if not len(self.joints):
            return jnp.zeros((0, 0))
        every = lambda which: jnp.concatenate(  # noqa: E731
            [jnp.concatenate([s.q, s.v, s.w], axis=1) for s in which]
        )
        ends, starts = every([x.last for x in made]), every([x.first for x in made])
        before, after = jnp.asarray(self.joints).T
        return jax.vmap(jnp.matmul)(jnp.asarray(self.gaps), ends[before] - starts[after])
