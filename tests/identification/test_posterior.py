"""Posteriors against one that is known: of a model linear in its parameters it is normal."""

import builtins
import dataclasses
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import CHANNELS, FORMULATION, START
from jaxdae.identification import Experiment, identify, Measurement, posterior, Prior
from jaxdae.identification.correlated import Autocorrelation

TIMES = np.linspace(0.1, 2.0, 20)


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
    rng = np.random.default_rng(11)
    values = 1 + 0.5 * TIMES**2 - 0.1 * TIMES**3 / 6 + 0.1 * rng.normal(size=20)
    experiment = Experiment(TIMES, {"place": Measurement(values, 0.1)}, START)
    guess = {"constant": jnp.array(0.5), "slope": jnp.array(0.0)}
    known = {"slope": Prior(0.1, 0.05)}
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
        posterior(wider)


@pytest.mark.slow
def test_the_posterior_of_a_linear_model_is_normal(fit):
    basis = np.stack([TIMES**2 / 2, TIMES**3 / 6], axis=1)
    covariance = np.linalg.inv(basis.T @ basis / 0.1**2 + np.diag([0.0, 0.05**-2]))
    np.testing.assert_allclose(fit.covariance, covariance, rtol=1e-8)
    drawn = posterior(fit, samples=400, warmup=100, chains=4)
    samples = np.stack([drawn.samples[x].ravel() for x in ("constant", "slope")])
    assert min(drawn.effective.values()) > 400
    assert max(drawn.r_hat.values()) < 1.02
    # Means to four standard errors of so many effective samples, covariances to a tenth.
    deviation = np.sqrt(np.diag(covariance))
    effective = np.array([drawn.effective[x] for x in fit.names])
    off = np.abs(samples.mean(axis=1) - fit.values) / deviation
    assert (off < 4 / np.sqrt(effective)).all()
    np.testing.assert_allclose(np.cov(samples), covariance, rtol=0.15)
    assert "R-hat" in drawn.summary()


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
