"""Simulated repetitions: what the estimate would have been, had the noise been another."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdae.identification.estimate import estimate, linearized, Measurements
from jaxdae.identification.naming import values_of
from jaxdae.identification.residuals import Fit, Measured, Samples
from jaxdae.identification.result import Identification
from jaxdae.identification.uncertainty import condensed, propagated, sensitivity


class Repetitions(NamedTuple):
    """Estimates from simulated data, all of the same model.

    Args:
        names: of the estimated numbers.
        reference: those the data were simulated with, shape `(p,)`.
        values: estimates, shape `(count, p)`.
        standard_errors: that each estimate states itself, shape `(count, p)`; infinite for what the
            data do not determine.
        converged: which fits converged, shape `(count,)`.
    """

    names: tuple[str, ...]
    reference: Float[np.ndarray, " p"]
    values: Float[np.ndarray, "count p"]
    standard_errors: Float[np.ndarray, "count p"]
    converged: Bool[np.ndarray, " count"]

    def within(self, errors: float = 2.0) -> Float[np.ndarray, " p"]:
        """Part of the repetitions that are so many of their standard errors near the reference.

        A fit that has not converged counts as far off. NaN where a standard error is infinite.

        Args:
            errors: number of standard errors; of normal estimates 95.4 % are within two.
        """
        near = np.abs(self.values - self.reference) <= errors * self.standard_errors
        stated = ~np.isinf(self.standard_errors)
        return np.mean(np.where(stated, near & self.converged[:, None], np.nan), axis=0)


def repetitions(
    identification: Identification, count: int, *, key: Array | None = None, steps: int = 100
) -> Repetitions:
    """Repeat a fit on simulated data, all repetitions in one batch (parametric bootstrap).

    The data are those of the fitted model with new noise of the same levels, as are the means of
    priors, which count as measurements; noise levels that were
    estimated are estimated again. Fits begin at the fitted parameters.

    Args:
        identification: what `identify` returned.
        count: number of repetitions.
        key: random key of the noise; by default `jax.random.key(0)`.
        steps: largest number of steps of each fit.

    Returns:
        `Repetitions`.

    Raises:
        ValueError: for a count below one.
    """
    if count < 1:
        raise ValueError(f"repetitions: count is {count}, must be at least 1.")
    task, x, noise = identification.problem
    fit = task.fit
    keys = jax.random.split(jax.random.key(0) if key is None else key, count)
    values = _simulated(fit, x, noise, keys)
    ended = estimate(fit, jnp.tile(x, (count, 1)), values, task.counts, steps=steps)
    found = jnp.asarray(ended.x)
    data = Measurements(values, jnp.asarray(ended.noise), jnp.ones(count))
    _, jac = linearized(fit, found, data)
    estimates, slopes = _values(fit, found)
    pairs = zip(np.asarray(jac), np.asarray(slopes), strict=True)
    units = fit.units(np.asarray(x))
    errors = [_errors(fit, units, *each) for each in pairs]
    return Repetitions(
        identification.names,
        identification.values,
        np.asarray(estimates),
        np.stack(errors),
        ended.converged,
    )


@eqx.filter_jit
def _simulated(fit: Fit, x, noise, keys) -> Samples:
    """What the fitted model gives with new noise, for each key."""
    made = fit.readings(x)
    starts = fit.split(x)[1]

    def one(key):
        out = []
        for i, (batch, found, z) in enumerate(zip(fit.batches, made, starts, strict=True)):
            first, second = jax.random.split(jax.random.fold_in(key, i))
            level = jnp.where(batch.weights > 0, 1.0 / jnp.maximum(batch.weights, 1e-300), 0.0)
            level = level * noise[jnp.asarray(batch.channels)][:, None]
            samples = found.values + level * jax.random.normal(first, level.shape)
            prior = batch.starts.tangent.prior
            known = jnp.any(prior != 0, axis=2)
            shift = jnp.where(known, jax.random.normal(second, known.shape), 0.0)
            out.append(Measured(samples, jax.vmap(jnp.matmul)(prior, z) + shift))
        means = values_of(eqx.combine(fit.split(x)[0], fit.frozen))[fit.priors.entries]
        shift = jax.random.normal(jax.random.fold_in(key, len(out)), means.shape)
        return Samples(out, means + fit.priors.sigmas * shift)

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _values(fit: Fit, x):
    """Estimated numbers of each fit, and their derivatives by the unknowns."""
    of = lambda x: values_of(eqx.combine(fit.split(x)[0], fit.frozen))  # noqa: E731
    return jax.vmap(of)(x), jax.vmap(jax.jacfwd(of))(x)


def _errors(fit: Fit, units: np.ndarray, jac: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    if not np.isfinite(jac).all():
        return np.full(slopes.shape[0], np.nan)
    nodes = fit.node_entries
    found = sensitivity(condensed(jac, nodes, fit.gap_count), units[~nodes])
    return propagated(found, slopes[:, ~nodes]).errors
