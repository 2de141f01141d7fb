"""Noise levels that are not known, noise with a memory, and what is said of both."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, motion, speed, START, TIMES
from jaxdae.identification import Channel, Experiment, identify, least_squares, Measurement
from jaxdae.identification.findings import autocorrelation

DAMPING = 0.2
LONG = np.linspace(0.05, 10.0, 200)
BOTH = {"stiffness": jaxdae.tuning.Positive(3.0), "damping": jnp.array(0.4)}


def velocity(ts, stiffness):
    return jax.vmap(jax.grad(lambda t: _displacement(t, stiffness)))(jnp.asarray(ts))


def _displacement(t, stiffness):
    decay = 0.5 * DAMPING
    rate = jnp.sqrt(stiffness - decay**2)
    return jnp.exp(-decay * t) * (jnp.cos(rate * t) + decay / rate * jnp.sin(rate * t))


def fitted(measurements, guess=None, ts=TIMES, **options):
    guess = (
        {"stiffness": jaxdae.tuning.Positive(3.0), "damping": DAMPING} if guess is None else guess
    )
    channels = {**CHANNELS, "speed": Channel(speed)}
    channels = {name: channels[name] for name in measurements}
    return identify(
        build, guess, Experiment(ts, measurements, START), channels=channels, dt=0.1, **options
    )


@pytest.mark.slow
def test_noise_of_uneven_channels_is_that_of_restricted_maximum_likelihood(rng):
    """Three samples of one channel, fifty worse ones of another: each has its own freedom.

    The estimates are stationary points of the restricted likelihood, here by its closed form for
    one parameter `k` with the derivatives of the exact motion.
    """
    few = np.array([9, 24, 39])
    x = np.full(50, np.nan)
    x[few] = motion(TIMES[few], 4.0, DAMPING) + 0.02 * rng.normal(size=3)
    v = np.asarray(velocity(TIMES, 4.0)) + 0.5 * rng.normal(size=50)
    with pytest.warns(RuntimeWarning, match=r"few degrees of freedom .* 'place' \(2.1\); with few"):
        result = fitted({"place": Measurement(x), "speed": Measurement(v)})
    k, levels = result["stiffness"], np.array([result.noise["place"], result.noise["speed"]])

    by_k = jax.jacfwd(lambda k: jnp.stack([_displacement(t, k) for t in TIMES[few]]))(k)
    slopes = [np.asarray(by_k), np.asarray(jax.jacfwd(lambda k: velocity(TIMES, k))(k))]
    left = [x[few] - motion(TIMES[few], k, DAMPING), v - np.asarray(velocity(TIMES, k))]
    information = np.array([np.sum((s / n) ** 2) for s, n in zip(slopes, levels, strict=True)])
    freedom = np.array([3, 50]) - information / information.sum()
    squares = np.array([np.sum(r**2) for r in left])
    np.testing.assert_allclose(levels, np.sqrt(squares / freedom), rtol=3e-3)  # rounds end at 1e-3
    np.testing.assert_allclose(list(result.noise_freedom.values()), freedom, rtol=1e-3)
    np.testing.assert_allclose(result.standard_errors, information.sum() ** -0.5, rtol=5e-3)
    assert result.stop_reason == "converged"


def test_noise_without_degrees_of_freedom_is_refused():
    words = "noise of 'place' cannot be estimated from 1 sample and 1 unknown: the model can meet"
    with pytest.raises(ValueError, match=words):
        fitted({"place": Measurement([0.3])}, ts=np.array([1.0]))


@pytest.mark.slow
def test_data_without_noise_are_said_to_have_none():
    """The samples are those of the model itself."""
    parts = build({"mass": 1.0, "stiffness": 4.0, "damping": DAMPING})
    run = jaxdae.simulate(*parts, START, t1=2.0, dt=0.1)
    samples = {"place": Measurement(np.asarray(run.q[1:, 0]))}
    with pytest.warns(RuntimeWarning, match="'place' .* to round-off: they have no noise to estim"):
        result = fitted(samples, ts=np.asarray(run.ts[1:]))
    assert result.stop_reason == "converged"
    np.testing.assert_allclose(result["stiffness"], 4.0, rtol=1e-10)


@pytest.mark.slow
def test_noise_levels_that_still_change_are_an_ending_of_their_own(rng, monkeypatch):
    monkeypatch.setattr(least_squares, "_MOST_ROUNDS", 1)
    values = motion(TIMES, 4.0, DAMPING) + 0.02 * rng.normal(size=50)
    with pytest.warns(RuntimeWarning, match=r"noise levels do not converge, they still change by"):
        result = fitted({"place": Measurement(values)})
    assert result.stop_reason == "noise"
    assert result.noise_change > 0.9  # from the spread of the motion to that of the noise


@pytest.mark.parametrize("steps", [3, 5, 100])
def test_noise_is_that_of_the_residuals_also_where_steps_run_out(steps):
    """However far the fit has come; to begin with the level is the spread of the motion."""
    values = motion(LONG, 4.0, DAMPING) + 0.02 * np.random.default_rng(4).normal(size=200)
    experiment = Experiment(LONG, {"place": Measurement(values)}, START)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = identify(build, BOTH, experiment, channels=CHANNELS, dt=0.1, steps=steps)
    level = np.sqrt(np.sum(result.data[0]["place"].residuals ** 2) / 198)
    np.testing.assert_allclose(result.noise["place"], level, rtol=2e-3)  # rounds end at 1e-3
    np.testing.assert_allclose(result.reduced_chi_square, 1.0, rtol=4e-3)
    assert result.stop_reason == ("converged" if steps == 100 else "steps")
    assert any("stopped after all its steps" in str(x.message) for x in caught) == (steps < 100)


def test_a_level_that_is_overstated_is_estimated_before_the_minimum(monkeypatch):
    """Where a fit is at a minimum is never said here: it goes on."""
    monkeypatch.setattr(least_squares, "_OPEN", 0.0)
    seen, original = [], least_squares.estimated_noise

    def noted(*args):
        seen.append(original(*args))
        return seen[-1]

    monkeypatch.setattr(least_squares, "estimated_noise", noted)
    values = motion(LONG, 4.0, DAMPING) + 0.02 * np.random.default_rng(4).normal(size=200)
    experiment = Experiment(LONG, {"place": Measurement(values)}, START)
    with pytest.warns(RuntimeWarning, match="without meeting its tolerance"):
        identify(build, BOTH, experiment, channels=CHANNELS, dt=0.1, steps=8)
    first = seen[0][0][0]
    assert 0.015 < first < 0.03  # the spread of the motion is 0.4
    assert len(seen) < 5


@pytest.mark.slow
def test_of_several_fits_that_with_the_least_noise_is_kept(rng):
    """In units of its own noise every minimum has the same chi-square; the guess is near one."""
    values = motion(TIMES, 4.0, DAMPING) + 0.02 * rng.normal(size=50)
    guess = {"stiffness": jaxdae.tuning.Positive(12.0), "damping": DAMPING}
    result = fitted({"place": Measurement(values)}, guess, starts=4, spread=1.0)
    assert abs(result["stiffness"] - 4.0) < 4 * result.standard_error("stiffness") < 0.1


def autoregressive(rng, rho: float) -> np.ndarray:
    """Of unit variance, `e_(k+1) = rho e_k + sqrt(1 - rho^2) n_k`."""
    e = rng.normal(size=LONG.size)
    for k in range(1, e.size):
        e[k] = rho * e[k - 1] + np.sqrt(1 - rho**2) * e[k]
    return e


def fitted_with(noise, sigma: float | None = 0.02, missing=()):
    values = motion(LONG, 4.0, 0.2) + 0.02 * noise
    values[list(missing)] = np.nan
    experiment = Experiment(LONG, {"place": Measurement(values, sigma)}, START)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = identify(build, BOTH, experiment, channels=CHANNELS, dt=0.1)
    return result, " ".join(str(x.message) for x in caught)


@pytest.mark.slow
def test_noise_with_a_memory_is_said_with_its_number_and_no_error_is_shrunk(rng):
    rho = 0.6
    for sigma, missing in ((None, ()), (0.1, ()), (0.02, range(50, 90, 3))):
        result, text = fitted_with(autoregressive(rng, rho), sigma, missing)
        r, off = autocorrelation(result)["place"]
        # A record of 200 samples knows it to 1 / sqrt(200), and the fit takes a little of it.
        assert abs(r - rho) < 0.25
        assert off > 4
        assert f"'place' ({r:.2f})" in text
        assert f"by a factor of about {np.sqrt((1 + r) / (1 - r)):.2g}" in text
        assert "too large" not in text


def test_independent_and_alternating_noise_is_not_said_to_have_a_memory(rng):
    for rho in (0.0, 0.0, -0.9):
        _, text = fitted_with(autoregressive(rng, rho))
        assert "neighbouring samples" not in text
    _, text = fitted_with(rng.normal(size=LONG.size), sigma=0.1)
    assert "the standard errors are too large" in text
