"""What a user of a fit must not overlook: noise with a memory."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, motion, START
from jaxdae.identification import Experiment, identify, Measurement
from jaxdae.identification.findings import autocorrelation

TS = np.linspace(0.05, 10.0, 200)
GUESS = {"stiffness": jaxdae.tuning.Positive(3.0), "damping": jnp.array(0.4)}


def autoregressive(rng, rho: float) -> np.ndarray:
    """Of unit variance, `e_(k+1) = rho e_k + sqrt(1 - rho^2) n_k`."""
    e = rng.normal(size=TS.size)
    for k in range(1, e.size):
        e[k] = rho * e[k - 1] + np.sqrt(1 - rho**2) * e[k]
    return e


def fitted(noise, sigma: float | None = 0.02, missing=()):
    values = motion(TS, 4.0, 0.2) + 0.02 * noise
    values[list(missing)] = np.nan
    experiment = Experiment(TS, {"place": Measurement(values, sigma)}, START)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = identify(build, GUESS, experiment, channels=CHANNELS, dt=0.1)
    return result, " ".join(str(x.message) for x in caught)


@pytest.mark.parametrize("rho", [0.95, 0.6])
def test_noise_with_a_memory_is_said_with_its_number_and_no_error_is_shrunk(rng, rho):
    for sigma, missing in ((0.02, ()), (None, ()), (0.1, ()), (0.02, range(50, 90, 3))):
        result, text = fitted(autoregressive(rng, rho), sigma, missing)
        r, off = autocorrelation(result)["place"]
        # A record of 200 samples knows it to 1 / sqrt(200), and the fit takes a little of it.
        assert abs(r - rho) < 0.25
        assert off > 4
        assert f"'place' ({r:.2f})" in text
        assert f"by a factor of about {np.sqrt((1 + r) / (1 - r)):.2g}" in text
        assert "too large" not in text


def test_independent_and_alternating_noise_is_not_said_to_have_a_memory(rng):
    for rho in (0.0, 0.0, 0.0, -0.5, -0.9):
        _, text = fitted(autoregressive(rng, rho))
        assert "neighbouring samples" not in text
    _, text = fitted(rng.normal(size=TS.size), sigma=0.1)
    assert "the standard errors are too large" in text
