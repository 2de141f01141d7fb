"""Posteriors against one that is known: of a model linear in its parameters it is normal."""

import builtins
import dataclasses
import warnings
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import CHANNELS, FORMULATION, START
from jaxdae.identification import Experiment, identify, Measurement, posterior, Prior
from jaxdae.identification.correlated import Autocorrelation
from jaxdae.identification.posterior import _coordinates

TIMES = np.linspace(0.05, 2.0, 40)


class Pushed(jaxdae.System):
    """A unit mass under a constant and a linear push: x = 1 + a t^2/2 + b t^3/6."""

    constant: float
    slope: float

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return jnp.stack([self.constant + self.slope * t])


def build(p):
    return Pushed(**p), FORMULATION


@pytest.fixture(scope="module")
def fit():
    """Of noise whose neighbours are correlated by 0.7."""
    noise = np.random.default_rng(11).normal(size=40)
    for k in range(1, 40):
        noise[k] += 0.7 * noise[k - 1]
    values = 1 + 0.5 * TIMES**2 - 0.1 * TIMES**3 / 6 + 0.07 * noise
    experiment = Experiment(TIMES, {"place": Measurement(values, 0.1)}, START)
    guess = {"constant": jnp.array(0.5), "slope": jnp.array(0.0)}
    known = {"slope": Prior(0.1, 0.05)}
    with pytest.warns(RuntimeWarning, match="neighbouring samples"):
        return identify(build, guess, experiment, channels=CHANNELS, dt=0.5, priors=known)


def test_a_posterior_of_correlated_differences_is_said_to_be_too_narrow(fit, monkeypatch):
    """By the largest factor of all parameters, before anything is sampled."""
    pytest.importorskip("blackjax")

    def sampler(*_):
        raise InterruptedError

    monkeypatch.setattr(import_module("jaxdae.identification.posterior"), "_sampler", sampler)
    wider = dataclasses.replace(
        fit,
        autocorrelation={"place": Autocorrelation(0.87, 5.0)},
        robust_errors=fit.classical_errors * np.array([2.0, 3.5]),
    )
    words = rf"correlated \(place \+0\.87\), .* of {fit.names[1]} by a factor of 3\.5"
    with pytest.warns(RuntimeWarning, match=words), pytest.raises(InterruptedError):
        posterior(wider, robust=False)


def test_the_spread_of_samples_is_that_of_robust_errors(fit):
    """By a symmetric stretch in units of the density; without it they are the density's own."""
    assert fit.correlated == ("place",)
    root, spread = _coordinates(fit, robust=True)
    np.testing.assert_allclose(root @ root.T, fit.classical_covariance, rtol=1e-7)
    np.testing.assert_allclose(spread @ spread.T, fit.robust_covariance, rtol=1e-7)
    stretch = np.linalg.solve(root, spread)
    np.testing.assert_allclose(stretch, stretch.T, atol=1e-9)
    np.testing.assert_array_equal(_coordinates(fit, robust=False)[1], root)


def test_fewer_clusters_than_parameters_leave_the_classical_correlations(fit, monkeypatch):
    module = import_module("jaxdae.identification.posterior")
    usual = module.robust_errors

    def of_one_cluster(*given):
        found = usual(*given)
        return found._replace(covariance=np.outer(found.errors, found.errors))

    monkeypatch.setattr(module, "robust_errors", of_one_cluster)
    _, spread = _coordinates(fit, robust=True)
    found = spread @ spread.T
    np.testing.assert_allclose(np.sqrt(np.diagonal(found)), fit.robust_errors, rtol=1e-7)
    classical = fit.classical_covariance / np.outer(fit.classical_errors, fit.classical_errors)
    np.testing.assert_allclose(found[0, 1] / np.prod(fit.robust_errors), classical[0, 1], rtol=1e-7)


def test_robust_errors_of_few_clusters_or_of_none(fit, monkeypatch):
    pytest.importorskip("blackjax")

    def sampler(*_):
        raise InterruptedError

    monkeypatch.setattr(import_module("jaxdae.identification.posterior"), "_sampler", sampler)
    few = dataclasses.replace(fit, error_freedom=np.array([12.0, 3.0]))
    # Student's distribution of three degrees of freedom within 1.96: 85.5 %.
    words = r"slope has 3 degrees of freedom: 95 % of the samples cover 8[56] %"
    with pytest.warns(RuntimeWarning, match=words), pytest.raises(InterruptedError):
        posterior(few)
    unknown = dataclasses.replace(fit, robust_errors=np.array([np.nan, np.nan]))
    with pytest.raises(ValueError, match="robust=True, but robust errors are not known"):
        posterior(unknown, robust=True)


@pytest.mark.slow
def test_the_posterior_of_a_linear_model_is_normal(fit):
    basis = np.stack([TIMES**2 / 2, TIMES**3 / 6], axis=1)
    covariance = np.linalg.inv(basis.T @ basis / 0.1**2 + np.diag([0.0, 0.05**-2]))
    np.testing.assert_allclose(fit.classical_covariance, covariance, rtol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of few degrees of freedom
        drawn = posterior(fit, samples=400, warmup=100, chains=4)
    samples = np.stack([drawn.samples[x].ravel() for x in ("constant", "slope")])
    assert min(drawn.effective.values()) > 400
    assert max(drawn.r_hat.values()) < 1.02
    # Means to four standard errors of so many effective samples, covariances to a tenth.
    deviation = np.sqrt(np.diag(fit.robust_covariance))
    effective = np.array([drawn.effective[x] for x in fit.names])
    off = np.abs(samples.mean(axis=1) - fit.values) / deviation
    assert (off < 4 / np.sqrt(effective)).all()
    np.testing.assert_allclose(np.cov(samples), fit.robust_covariance, rtol=0.15)
    # Before the stretch.
    root, spread = _coordinates(fit, robust=True)
    own = root @ np.linalg.solve(spread, samples - fit.values[:, None])
    np.testing.assert_allclose(np.cov(own), covariance, rtol=0.15)
    assert "R-hat" in drawn.summary()
    assert "spread by robust errors" in drawn.summary()


@pytest.mark.slow
def test_without_blackjax_the_error_names_the_extra(fit, monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **named):
        if name == "blackjax":
            raise ImportError("no blackjax here")
        return original(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'jaxdae\[bayes\]'"):
        posterior(fit)


@pytest.mark.slow
def test_an_improper_posterior_is_refused(fit):
    open_one = dataclasses.replace(fit, unidentifiable=("no channel sees mass",))
    with pytest.raises(ValueError, match="it is not proper, no channel sees mass"):
        posterior(open_one)
    with pytest.raises(ValueError, match="are 0, 500 and 4, must be at least 1"):
        posterior(fit, samples=0)
