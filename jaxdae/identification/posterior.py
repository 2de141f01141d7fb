"""How far parameters may be off: posteriors by Monte Carlo, and fits of simulated data."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
import scipy.special
from jaxtyping import Array, Bool, Float

from jaxdae.identification.correlated import robust_errors
from jaxdae.identification.fit import Fit, Samples
from jaxdae.identification.least_squares import estimate, repeated
from jaxdae.identification.linearization import evaluate, linearizations, value_and_jacobian
from jaxdae.identification.report import Identification
from jaxdae.identification.uncertainty import propagated, sensitivity

# Potential scale reductions above this say that the chains have not mixed.
_MIXED = 1.05
# Below this part of the largest, variances in units of the classical ones are those of fewer
# clusters than parameters.
_FEW_CLUSTERS = 1e-6
# Degrees of freedom of errors below which a normal spread is too narrow to go without a word.
_FEW_FREEDOM = 10.0


class Posterior(NamedTuple):
    """Samples from a posterior.

    Args:
        samples: by name, shape `(chains, samples)`.
        r_hat: potential scale reduction by name [GelmanRubin1992]; near one where chains agree.
        effective: effective number of samples by name.
        divergent: number of divergent trajectories of the sampler.
        robust: whether the spread is that of the robust errors.
    """

    samples: Mapping[str, Float[np.ndarray, "chains samples"]]
    r_hat: Mapping[str, float]
    effective: Mapping[str, float]
    divergent: int
    robust: bool = False

    def summary(self) -> str:
        """Means, deviations and diagnostics, one line for each parameter."""
        lines = [
            f"{name}: {x.mean():.6g} ± {x.std():.2g}, R-hat {self.r_hat[name]:.3f}, "
            f"effective samples {self.effective[name]:.0f}"
            for name, x in self.samples.items()
        ]
        spread = ["spread by robust errors"] if self.robust else []
        return "\n".join([*lines, f"divergent trajectories: {self.divergent}", *spread])


def posterior(
    identification: Identification,
    *,
    samples: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    key: Array | None = None,
    robust: bool | None = None,
) -> Posterior:
    r"""Sample the posterior of the parameters by NUTS [HoffmanGelman2014].

    The density is `exp(-chi^2 / 2)` with the noise levels of the fit and its priors, and besides
    flat in the unconstrained numbers: of a `Positive` that is a density `1/x`. It is explored in
    coordinates in which the least-squares estimate has unit covariance, so that nearly normal
    posteriors are spheres.

    That is the density of independent noise. Where the noise of neighbouring samples is correlated,
    samples `x` of it become

        x* = x_hat + L S L^{-1} (x - x_hat),    L L^T = C,    L S S L^T = R,

    `C` being the classical and `R` the robust covariance of what all records share, in
    unconstrained numbers, and `S` symmetric: the open-faced sandwich [Shaby2014], here the same as
    an adjustment of the curvature of the density [RibatetCooleyDavison2012]. Nearly normal
    posteriors then cover what intervals by robust errors do [Muller2013]. Where clusters of samples
    are fewer than parameters, `R` has the classical correlations.

    Args:
        identification: what `identify` returned.
        samples: kept, of each chain.
        warmup: first samples of each chain, in which the sampler adapts; not kept.
        chains: number of chains.
        key: random key; by default `jax.random.key(0)`.
        robust: whether the spread is that of the robust errors; by default where
            `Identification.standard_errors` are the robust ones.

    Returns:
        `Posterior`.

    Warns:
        RuntimeWarning: where chains have not mixed, or trajectories diverge; with `robust=False`
            where differences from the model are correlated, with the factor by which the density is
            too narrow; and where robust errors have few degrees of freedom, with the part that
            95 % of the samples cover.

    Raises:
        ImportError: without blackjax, which the extra `bayes` installs.
        ValueError: where a direction is not identifiable, the record was divided, the fit has
            another loss than squares, or robust errors that are asked for are not known.
    """
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            "posterior: blackjax is not installed; install the extra, pip install 'jaxdae[bayes]'."
        ) from error
    _check(identification, samples, warmup, chains)
    robust = bool(identification.correlated) if robust is None else robust
    if robust:
        _check_robust_errors(identification)
    else:
        _warn_of_correlation(identification)
    fit, x, noise = identification.problem[0].fit, *identification.problem[1:]
    root, spread = _coordinates(identification, robust=robust)
    run = _sampler(blackjax, fit, x, noise, root, spread, samples, warmup)
    keys = jax.random.split(jax.random.key(0) if key is None else key, chains)
    drawn, divergent = jax.jit(jax.vmap(run))(keys)
    by_name = dict(zip(identification.names, np.moveaxis(np.asarray(drawn), 2, 0), strict=True))
    r_hat = {n: _diagnosed(blackjax, "potential_scale_reduction", v) for n, v in by_name.items()}
    size = {n: _diagnosed(blackjax, "effective_sample_size", v) for n, v in by_name.items()}
    result = Posterior(by_name, r_hat, size, int(np.sum(np.asarray(divergent))), robust)
    worst = max(r_hat, key=lambda name: np.nan_to_num(r_hat[name]))
    if r_hat[worst] > _MIXED:
        warnings.warn(
            f"posterior: the chains have not mixed, R-hat of {worst} is {r_hat[worst]:.3f}; take "
            "more samples, or a longer warmup.",
            RuntimeWarning,
            stacklevel=2,
        )
    if result.divergent:
        warnings.warn(
            f"posterior: {result.divergent} trajectories of the sampler diverge; the samples may "
            "leave out a part of the posterior.",
            RuntimeWarning,
            stacklevel=2,
        )
    return result


def _check(identification: Identification, samples: int, warmup: int, chains: int) -> None:
    if min(samples, warmup, chains) < 1:
        raise ValueError(
            f"posterior: samples, warmup and chains are {samples}, {warmup} and {chains}, must be "
            "at least 1."
        )
    if identification.unidentifiable:
        raise ValueError(
            "posterior: it is not proper, " + "; ".join(identification.unidentifiable) + ". Hold "
            "one of them, or measure another channel."
        )
    if identification.problem[0].loss.robust:
        raise ValueError(
            f"posterior: the fit has loss={identification.loss!r}, which is no density of the "
            'noise; fit with loss="linear" from `result.raw` first.'
        )
    if identification.problem[0].fit.gap_count:
        raise ValueError(
            "posterior: records are divided; fit them with intervals=1 from `result.raw` first."
        )


def _warn_of_correlation(identification: Identification) -> None:
    """A density of independent noise is too narrow where samples say the same twice."""
    found = [
        f"{x} {identification.autocorrelation[x].correlation:+.2f}"
        for x in identification.correlated
    ]
    if not found:
        return
    factors = identification.robust_errors / identification.classical_errors
    most = int(np.nanargmax(factors))
    warnings.warn(
        f"posterior: neighbouring differences from the model are correlated ({', '.join(found)}), "
        "and the density is that of independent noise: it is too narrow, of "
        f"{identification.names[most]} by a factor of {factors[most]:.2g}, robust by classical "
        "standard error. Take `robust=True`, or samples further apart.",
        RuntimeWarning,
        stacklevel=3,
    )


def _check_robust_errors(identification: Identification) -> None:
    """Errors that are known, and a word where they are those of few degrees of freedom."""
    if not np.isfinite(identification.robust_errors).all():
        raise ValueError(
            "posterior: robust=True, but robust errors are not known: no channel has 20 pairs of "
            "neighbouring samples. Leave it out, or give more samples."
        )
    if not identification.correlated:
        return
    k = int(np.argmin(identification.error_freedom))
    freedom = float(identification.error_freedom[k])
    if freedom < _FEW_FREEDOM:
        covered = 1 - 2 * scipy.special.stdtr(freedom, scipy.special.ndtri(0.025))
        warnings.warn(
            f"posterior: the robust error of {identification.names[k]} has {freedom:.2g} degrees "
            f"of freedom: 95 % of the samples cover {100 * covered:.0f} %. More records have more; "
            "`identification.intervals()` are as wide as they have to be.",
            RuntimeWarning,
            stacklevel=3,
        )


def _coordinates(identification: Identification, *, robust: bool) -> tuple[np.ndarray, np.ndarray]:
    """From coordinates of unit covariance to changes of the unknowns, in the density and after."""
    task, x, noise = identification.problem
    fit, units = task.fit, task.fit.units(np.asarray(x))
    found = linearizations(fit, evaluate(fit, x[None], repeated(fit.samples(), 1)))[0]
    weighted = found.weighted(np.asarray(noise), 1.0)
    covariance = sensitivity(weighted, units).covariance
    root = np.linalg.cholesky(covariance)
    if not robust:
        return root, root
    k = fit.shared_count
    worst = max(one.correlation for one in identification.autocorrelation.values())
    of_shared = robust_errors(weighted, units, np.eye(k), covariance[:k, :k], worst)
    # The first rows of a triangular root are those of what records share.
    top, inner = root[:k, :k], of_shared.covariance
    sizes, axes = _whitened(top, inner)
    if sizes[0] <= _FEW_CLUSTERS * sizes[-1]:
        wider = of_shared.errors / np.sqrt(np.diagonal(covariance)[:k])
        sizes, axes = _whitened(top, covariance[:k, :k] * np.outer(wider, wider))
    stretched = root[:, :k] @ (axes * np.sqrt(np.maximum(sizes, 0.0))) @ axes.T
    return root, np.concatenate([stretched, root[:, k:]], axis=1)


def _whitened(top: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of a covariance in units of that with a triangular root."""
    half = scipy.linalg.solve_triangular(top, covariance, lower=True)
    inner = scipy.linalg.solve_triangular(top, half.T, lower=True)
    return np.linalg.eigh((inner + inner.T) / 2)


def _sampler(
    blackjax: Any, fit: Fit, x, noise, root: Any, spread: Any, samples: int, warmup: int
):  # fmt: skip
    """From a random key to samples of one chain."""
    values = fit.samples()
    residuals = lambda x: fit.residuals(x, values, noise)  # noqa: E731
    root, spread = jnp.asarray(root, x.dtype), jnp.asarray(spread, x.dtype)
    density = _density(lambda z: residuals(x + root @ z))

    def chain(key):
        first, second, third = jax.random.split(key, 3)
        begin = jax.random.normal(first, x.shape, x.dtype)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, settings), _ = adaptation.run(second, begin, num_steps=warmup)
        kernel = blackjax.nuts(density, **settings)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (fit.values(x + spread @ state.position), info.is_divergent)

        return jax.lax.scan(step, state, jax.random.split(third, samples))[1]

    return chain


def _density(residuals):
    """Logarithm of the density; its gradient by the forward Jacobian, `-J^T r`.

    Where a run fails the density is zero.
    """

    @jax.custom_jvp
    def density(z):
        total = -0.5 * jnp.sum(residuals(z) ** 2)
        return jnp.where(jnp.isfinite(total), total, -jnp.inf)

    @density.defjvp
    def _(primals, tangents):
        value, jac = value_and_jacobian(residuals, *primals)
        total = -0.5 * jnp.sum(value**2)
        slope = -(value @ jac)
        good = jnp.isfinite(total) & jnp.isfinite(slope).all()
        slope = jnp.where(good, slope, 0.0)
        return jnp.where(good, total, -jnp.inf), slope @ tangents[0]

    return density


def _diagnosed(blackjax: Any, name: str, values: np.ndarray) -> float:
    if values.shape[0] < 2:
        return float("nan")  # which compare chains
    return float(getattr(blackjax.diagnostics, name)(jnp.asarray(values)))


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
    begin = jnp.tile(x, (count, 1))
    ended = estimate(fit, begin, values, task.counts, steps=steps, loss=task.loss)
    found = jnp.asarray(ended.x)
    estimates, slopes = _values(fit, found)
    kept, units, errors = ~fit.node_entries, fit.units(np.asarray(x)), []
    for one, level, slope in zip(ended.found, ended.noise, np.asarray(slopes), strict=True):
        if one.finite:
            samples = int(task.counts.samples.sum())
            seen = task.loss.sensitivity(one.weighted(level, 1.0), units, samples)
            errors.append(propagated(seen, slope[:, kept])[1])
        else:
            errors.append(np.full(slope.shape[0], np.nan))
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
    made, starts, expected = fit.predictions(x), fit.split(x)[1], fit.values(x)[fit.priors.entries]

    def one(key):
        channels, guesses = [], []
        for i, (batch, found, z) in enumerate(zip(fit.batches, made, starts, strict=True)):
            first, second = jax.random.split(jax.random.fold_in(key, i))
            level = jnp.where(batch.weights > 0, 1.0 / jnp.maximum(batch.weights, 1e-300), 0.0)
            level = level * noise[jnp.asarray(batch.channels)][:, None]
            channels.append(found.values + level * jax.random.normal(first, level.shape))
            prior = batch.runs.prior
            known = jnp.any(prior != 0, axis=2)
            shift = jnp.where(known, jax.random.normal(second, known.shape), 0.0)
            guesses.append(jax.vmap(jnp.matmul)(prior, z) + shift)
        shift = jax.random.normal(jax.random.fold_in(key, len(made)), expected.shape)
        return Samples(channels, guesses, expected + fit.priors.sigmas * shift)

    return jax.vmap(one)(keys)


@eqx.filter_jit
def _values(fit: Fit, x):
    """Estimated numbers of each fit, and their derivatives by the unknowns."""
    return jax.vmap(lambda x: fit.values(x))(x), jax.vmap(jax.jacfwd(lambda x: fit.values(x)))(x)
