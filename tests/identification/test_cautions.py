"""What a user of a fit must not overlook: noise with a memory, channels that drown others."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import (
    build,
    CHANNELS,
    FORMULATION,
    motion,
    Oscillator,
    place,
    START,
)
from jaxdae.identification import Channel, Experiment, identify, Measurement
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


class Levered(Oscillator):
    lever: float = 1.0


def drowned(rng, force):
    """Noise levels of 1e-13 and 1e-2: by round-off of the one the other counts for nothing."""

    def levered(p):
        return Levered(stiffness=p["stiffness"], lever=p["lever"]), FORMULATION

    channels = {"place": Channel(place, unit="m"), "force": Channel(force, unit="N")}
    y = motion(TS, 4.0, 0.2)
    measured = {
        "place": Measurement(y, 1e-13),
        "force": Measurement(1.3 * y + 0.01 * rng.normal(size=y.size), 0.01),
    }
    guess = {"stiffness": jaxdae.tuning.Positive(3.9), "lever": jnp.array(1.0)}
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return identify(levered, guess, Experiment(TS, measured, START), channels=channels, dt=0.1)


def test_a_channel_that_drowns_another_is_named(rng):
    (text,) = drowned(rng, lambda run: run.system.lever * run.q[:, 0]).unidentifiable
    assert text.startswith("lever is seen, but drowned by the weight of channel 'place'")
    assert "1e+11 times" in text


def test_what_no_channel_sees_is_not_drowned(rng):
    with pytest.raises(ValueError, match="no channel sees lever"):
        drowned(rng, lambda run: 1.3 * run.q[:, 0])


def test_names_at_bounds_are_plain_texts(rng):
    guess = {
        "stiffness": jaxdae.tuning.Positive(3.0),
        "damping": jaxdae.tuning.Interval(0.35, 0.3, 0.4),
    }
    values = motion(TS, 4.0, 0.2) + 0.02 * rng.normal(size=TS.size)
    experiment = Experiment(TS, {"place": Measurement(values, 0.02)}, START)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        result = identify(build, guess, experiment, channels=CHANNELS, dt=0.1)
    assert [type(x) for x in result.at_bounds] == [str]
