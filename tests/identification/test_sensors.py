"""Offsets and scales of sensors: what is estimated of them, and how well it is known."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit

import jaxdae
from helpers.measured_oscillator import build, motion, place, speed, TIMES
from jaxdae.identification import Calibration, Channel, Experiment, identify, Measurement

START = jaxdae.State(jnp.array([1.0]), jnp.array([0.0]))
GUESS = {"stiffness": jnp.array(3.5), "damping": 0.2}
ZEROS = (0.3, -0.2)  # of the sensor, by record
SCALE = 1.1


def records(sigma=0.02, seed=0):
    """Two records of one motion by a sensor that is scaled, and whose zero differs."""
    rng = np.random.default_rng(seed)
    rows = [SCALE * motion(TIMES, 4.0, 0.2) + zero for zero in ZEROS]
    noisy = [Measurement(x + sigma * rng.normal(size=x.size), sigma) for x in rows]
    return [Experiment(TIMES, {"place": x}, START) for x in noisy]


def fitted(experiments, offset, scale, **options):
    channels = {"place": Channel(place, "m", offset, scale)}
    return identify(build, GUESS, experiments, channels=channels, dt=0.1, **options)


def by_scipy(experiments, zeros, prior=None):
    """Stiffness, scale and zeros by SciPy on the motion in closed form; their covariance."""
    y = np.concatenate([x.measurements["place"].values for x in experiments])
    sigma = np.full(y.size, 0.02)
    if prior is not None:
        y, sigma = np.r_[y, np.zeros(2)], np.r_[sigma, np.full(2, prior)]

    def model(_, stiffness, scale, *offsets):
        rows = [scale * motion(TIMES, stiffness, 0.2) + offsets[i] for i in zeros]
        return np.concatenate(rows if prior is None else [*rows, offsets])

    guess = (3.5, 1.0, *(0.0 for _ in set(zeros)))
    return curve_fit(model, None, y, p0=guess, sigma=sigma, absolute_sigma=True)


@pytest.mark.parametrize("prior", [None, 0.1])
def test_a_zero_of_every_record_and_a_scale_of_all_are_those_of_scipy(prior):
    """Both are in the covariance; a guess with a standard deviation counts as a measurement."""
    experiments = records()
    zero = Calibration(0.0, np.inf if prior is None else prior, per_record=True)
    result = fitted(experiments, zero, Calibration(1.0))
    values, covariance = by_scipy(experiments, (0, 1), prior)
    assert result.names == ("stiffness", "scale of place")
    found = [x["place"] for x in result.sensors]
    # Steps of a tenth of a second have errors of 1e-5 of the motion; the rest is of the same data.
    estimates = [*result.values, *(x.offset for x in found)]
    np.testing.assert_allclose(estimates, values, atol=2e-4)
    assert {x.scale for x in found} == {result["scale of place"]}
    errors = [*result.standard_errors, *result.start_errors.values()]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=2e-3)
    np.testing.assert_allclose(result.covariance, covariance[:2, :2], rtol=5e-3)
    assert list(result.start_errors) == [f"offset of place in experiment {i}" for i in (1, 2)]
    assert result.degrees_of_freedom == 100 - 4 + (0 if prior is None else 2)


def test_a_zero_that_all_records_share_is_one_number_more():
    one = records()[0]
    result = fitted([one, one], Calibration(0.1), 1.1)
    alone = by_scipy([one, one], (0, 0))[0]
    assert result.names == ("stiffness", "offset of place")
    assert abs(result["offset of place"] - alone[2]) < 0.02  # whose scale is estimated, too
    assert {x["place"].offset for x in result.sensors} == {result["offset of place"]}
    assert {x["place"].scale for x in result.sensors} == {1.1}


def test_known_offsets_and_scales_are_the_samples_shifted_and_scaled():
    one = records()[0]
    values = (one.measurements["place"].values - 0.3) / 1.1
    true = dataclasses.replace(one, measurements={"place": Measurement(values, 0.02 / 1.1)})
    found, same = fitted(one, 0.3, 1.1), fitted(true, 0.0, 1.0)
    np.testing.assert_allclose(found.values, same.values, rtol=1e-10)
    np.testing.assert_allclose(found.covariance, same.covariance, rtol=1e-8)


@pytest.mark.slow
def test_a_zero_holds_through_all_intervals_of_a_divided_record():
    zero, scale = Calibration(0.0, per_record=True), Calibration(1.0)
    one, many = (fitted(records(), zero, scale, intervals=n) for n in (1, 3))
    np.testing.assert_allclose(many.values, one.values, atol=1e-4)
    np.testing.assert_allclose(many.covariance, one.covariance, rtol=1e-3)
    for a, b in zip(many.sensors, one.sensors, strict=True):
        np.testing.assert_allclose(a["place"], b["place"], atol=1e-4)


def test_a_scale_that_an_amplitude_hides_is_not_identifiable():
    """Of a linear motion whose start is unknown only the product is seen."""
    start = jaxdae.identification.UnknownStart(START, v=0.0)
    one = dataclasses.replace(records()[0], start=start)
    with pytest.warns(RuntimeWarning, match="scale of place and q1 at the start of experiment 1"):
        fitted(one, 0.3, Calibration(1.0))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Calibration(np.nan), "the guess is nan, must be one finite number"),
        (lambda: Calibration(0.0, 0.0), "sigma is 0.0, must be > 0, infinite where nothing"),
        (lambda: Channel(speed, "m/s", np.inf), "offset is inf, must be one finite number, or a C"),
        (lambda: Channel(speed, "m/s", 0.0, np.nan), "scale is nan, must be one finite number"),
    ],
)
def test_what_is_no_offset_or_scale_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()
