"""Posterior distributions of parameters by Hamiltonian Monte Carlo without U-turns (NUTS)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.identification.estimate import samples_of
from jaxdae.identification.least_squares import value_and_jacobian
from jaxdae.identification.naming import values_of
from jaxdae.identification.residuals import Fit
from jaxdae.identification.result import Identification
from jaxdae.identification.uncertainty import sensitivity

# Potential scale reductions above this say that the chains have not mixed.
_MIXED = 1.05


class Posterior(NamedTuple):
    """Samples from a posterior.

    Args:
        samples: by name, shape `(chains, samples)`.
        r_hat: potential scale reduction by name [GelmanRubin1992]; near one where chains agree.
        effective: effective number of samples by name.
        divergent: number of divergent trajectories of the sampler.
    """

    samples: Mapping[str, Float[np.ndarray, "chains samples"]]
    r_hat: Mapping[str, float]
    effective: Mapping[str, float]
    divergent: int

    def summary(self) -> str:
        """Means, deviations and diagnostics, one line for each parameter."""
        lines = [
            f"{name}: {x.mean():.6g} ± {x.std():.2g}, R-hat {self.r_hat[name]:.3f}, "
            f"effective samples {self.effective[name]:.0f}"
            for name, x in self.samples.items()
        ]
        return "\n".join([*lines, f"divergent trajectories: {self.divergent}"])


def posterior(
    identification: Identification,
    *,
    samples: int = 1000,
    warmup: int = 500,
    chains: int = 4,
    key: Array | None = None,
) -> Posterior:
    r"""Sample the posterior of the parameters by NUTS [HoffmanGelman2014].

    The density is `exp(-chi^2 / 2)` with the noise levels of the fit and its priors, and besides
    flat in the unconstrained numbers: of a `Positive` that is a density `1/x`. It is explored in
    coordinates in which the least-squares estimate has unit covariance, so that nearly normal
    posteriors are spheres.

    Args:
        identification: what `identify` returned.
        samples: kept, of each chain.
        warmup: first samples of each chain, in which the sampler adapts; not kept.
        chains: number of chains.
        key: random key; by default `jax.random.key(0)`.

    Returns:
        `Posterior`.

    Warns:
        RuntimeWarning: where chains have not mixed, or trajectories diverge.

    Raises:
        ImportError: without blackjax, which the extra `bayes` installs.
        ValueError: where a direction is not identifiable, or the record was divided.
    """
    blackjax = _blackjax()
    _check(identification, samples, warmup, chains)
    task, x, noise = identification.problem
    run = _sampler(blackjax, task.fit, x, noise, samples, warmup)
    keys = jax.random.split(jax.random.key(0) if key is None else key, chains)
    drawn, divergent = jax.jit(jax.vmap(run))(keys)
    by_name = dict(zip(identification.names, np.moveaxis(np.asarray(drawn), 2, 0), strict=True))
    r_hat = {n: _diagnosed(blackjax, "potential_scale_reduction", v) for n, v in by_name.items()}
    size = {n: _diagnosed(blackjax, "effective_sample_size", v) for n, v in by_name.items()}
    result = Posterior(by_name, r_hat, size, int(np.sum(np.asarray(divergent))))
    _warn(result)
    return result


def _blackjax() -> Any:
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            "posterior: blackjax is not installed; install the extra, pip install 'jaxdae[bayes]'."
        ) from error
    return blackjax


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
    if identification.problem[0].fit.gap_count:
        raise ValueError(
            "posterior: records are divided; fit them with intervals=1 from `result.raw` first."
        )


def _sampler(blackjax: Any, fit: Fit, x, noise, samples: int, warmup: int):
    """From a random key to samples of one chain."""
    values = samples_of(fit)
    residuals = lambda x: fit.residuals(x, values, noise)  # noqa: E731
    jac = np.asarray(eqx.filter_jit(lambda x: value_and_jacobian(residuals, x))(x)[1])
    root = jnp.asarray(
        np.linalg.cholesky(sensitivity(jac, fit.units(np.asarray(x))).covariance), x.dtype
    )
    density = _density(lambda z: residuals(x + root @ z))
    of = lambda z: values_of(eqx.combine(fit.split(x + root @ z)[0], fit.frozen))  # noqa: E731

    def chain(key):
        first, second, third = jax.random.split(key, 3)
        begin = jax.random.normal(first, x.shape, x.dtype)
        adaptation = blackjax.window_adaptation(blackjax.nuts, density)
        (state, settings), _ = adaptation.run(second, begin, num_steps=warmup)
        kernel = blackjax.nuts(density, **settings)

        def step(state, key):
            state, info = kernel.step(key, state)
            return state, (of(state.position), info.is_divergent)

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


def _warn(result: Posterior) -> None:
    import warnings

    bad = {name: x for name, x in result.r_hat.items() if x > _MIXED}
    if bad:
        worst = max(bad, key=lambda name: bad[name])
        warnings.warn(
            f"posterior: the chains have not mixed, R-hat of {worst} is {bad[worst]:.3f}; take "
            "more samples, or a longer warmup.",
            RuntimeWarning,
            stacklevel=3,
        )
    if result.divergent:
        warnings.warn(
            f"posterior: {result.divergent} trajectories of the sampler diverge; the samples may "
            "leave out a part of the posterior.",
            RuntimeWarning,
            stacklevel=3,
        )
