"""Unknown starts, divided records, repetitions."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, motion, record, START, TIMES
from jaxdae.identification import (
    Channel,
    Experiment,
    identify,
    Measurement,
    Prior,
    repetitions,
    UnknownStart,
)
from jaxdae.models import CartesianPendulum

GUESS = {"stiffness": jaxdae.tuning.Positive(3.0), "damping": jnp.array(0.4)}
NAMES = ("stiffness", "damping")


def fitted(experiments, guess=GUESS, **options):
    return identify(build, guess, experiments, channels=CHANNELS, dt=0.1, **options)


def begun(state, **sigmas):
    values = record(np.random.default_rng(5)).measurements
    return Experiment(TIMES, values, UnknownStart(state, **sigmas))


@pytest.mark.slow
def test_a_measured_start_counts_as_a_sample_and_a_free_one_as_a_parameter():
    """The guess of the place with its noise is one sample more; of the speed nothing is known."""
    result = fitted(begun(jaxdae.State([0.9], [0.05]), q=0.01))
    y = np.r_[begun(START).measurements["place"].values, 0.9]

    def with_start(_, stiffness, damping, x0, v0):
        return np.r_[motion(TIMES, stiffness, damping, x0, v0), x0]

    sigma = np.r_[np.full(50, 0.02), 0.01]
    values, covariance = curve_fit(
        with_start, None, y, p0=(3.0, 0.4, 0.9, 0.0), sigma=sigma, absolute_sigma=True
    )
    found = [*(result[x] for x in NAMES), result.starts[0].q[0], result.starts[0].v[0]]
    np.testing.assert_allclose(found, values, atol=1e-5)
    errors = [*(result.standard_error(x) for x in NAMES), *result.start_errors.values()]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=1e-4)
    assert [x.split()[0] for x in result.start_errors] == ["q1", "q1'"]
    assert result.degrees_of_freedom == 51 - 4


def test_a_fit_that_converged_to_another_motion_is_said():
    """A minimum with three times as many periods: from there on every step is uphill."""
    far = {"stiffness": jaxdae.tuning.Positive(25.0)}
    data = record(np.random.default_rng(5), given=False)
    with pytest.warns(RuntimeWarning) as said:
        result = fitted(data, far)
    assert result.stop_reason == "converged"
    assert result["stiffness"] > 16.0
    # The motion's power and the model's, which have nothing to do with each other.
    assert re.search(r"as large as 'place' \(1\.\d\) of these samples' own", str(said[0].message))


@pytest.mark.parametrize("sigma", [-1.0, np.nan])
def test_a_standard_deviation_of_a_start_is_not_negative(sigma):
    with pytest.raises(ValueError, match="standard deviations are >= 0, zero where the start is"):
        UnknownStart(START, q=sigma)


@pytest.mark.slow
def test_a_divided_record_gives_the_same_estimate_and_errors():
    one = fitted(record(np.random.default_rng(6)))
    many = fitted(record(np.random.default_rng(6)), intervals=4)
    np.testing.assert_allclose(many.values, one.values, atol=1e-3 * one.standard_errors.min())
    np.testing.assert_allclose(many.covariance, one.covariance, rtol=1e-4)
    np.testing.assert_allclose(many.chi_square, one.chi_square, rtol=1e-6)
    assert many.gap < 1e-6
    assert many.degrees_of_freedom == one.degrees_of_freedom


@pytest.mark.slow
def test_a_long_unstable_record_is_fitted_in_intervals():
    """An inverted pendulum without damping forgets its start: e^(3 t) magnifies every error."""

    def upright(p):
        return build({"mass": 1.0, "stiffness": -p["toppling"], "damping": 0.0})

    ts = np.linspace(0.1, 8.0, 60)
    values = 1e-3 * np.cosh(3.0 * ts)
    rng = np.random.default_rng(7)
    measured = Measurement(values * (1 + 0.01 * rng.normal(size=60)), 0.01 * values)
    guess = jaxdae.State(values[:, None], np.gradient(values, ts)[:, None])
    experiment = Experiment(ts, {"place": measured}, jaxdae.State([1e-3], [0.0]), guess=guess)
    result = identify(
        upright, {"toppling": jnp.array(4.0)}, experiment, channels=CHANNELS, dt=0.05, intervals=8
    )
    assert abs(result["toppling"] - 9.0) < 3 * result.standard_error("toppling") < 0.03
    assert result.gap < 1e-5


def test_intervals_are_as_many_as_samples_at_most():
    with pytest.raises(ValueError, match="51 intervals of experiment 1, which has 50"):
        fitted(record(np.random.default_rng(6)), intervals=51)


@pytest.mark.slow
def test_a_known_start_that_is_far_off_the_estimated_constraints_is_said():
    """A pendulum that is measured from a start at 0.5 m, and its length, which is 1 m."""
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
    lengths = {"length": Channel(lambda run: jnp.linalg.norm(run.q, axis=1), unit="m")}
    experiment = Experiment(
        TIMES[:4],
        {"length": Measurement([1.01, 0.99, 1.01, 0.99], 0.01)},
        jaxdae.State([0.3, -0.4], [0.0, 0.0]),
    )
    with pytest.warns(
        RuntimeWarning, match=r"off the constraints, and were moved .*: 1 \(1e\+02 %"
    ):
        result = identify(
            lambda p: (CartesianPendulum(length=p["length"]), formulation),
            {"length": jaxdae.tuning.Positive(0.6)}, experiment, channels=lengths, dt=0.05,
        )  # fmt: skip
    # From (0.3, -0.4) to (0.6, -0.8): by as much as it was.
    np.testing.assert_allclose(result.moved_starts["1"], 1.0, rtol=1e-4)


def test_a_start_off_the_constraints_is_refused():
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
    experiment = Experiment(
        TIMES, record(np.random.default_rng(1)).measurements, jaxdae.State([0.5, -0.5], [0.0, 0.0])
    )
    with pytest.raises(ValueError, match=r"start of experiment 1 is off the constraints by 0.5; m"):
        identify(
            lambda p: (CartesianPendulum(mass=1.0, gravity=p["g"]), formulation),
            {"g": jnp.array(9.0)}, experiment, channels=CHANNELS,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_estimates_are_within_two_standard_errors_in_95_percent_of_repetitions(given):
    """400 simulated data sets of an oscillator; normal estimates would be so in 95.4 %."""
    # Where the noise is known, so is the stiffness, half as well as from the data.
    priors = {"stiffness": Prior(4.0, 0.02)} if given else {}
    result = fitted(record(np.random.default_rng(9), given=given), priors=priors)
    repeated = repetitions(result, 400)
    assert repeated.converged.all()
    within = repeated.within(2.0)
    # Three per cent are three standard deviations of a count of 400.
    np.testing.assert_allclose(within, 0.95, atol=0.03)
    # The stated errors are those that repetitions have, to the accuracy of 400 of them.
    spread = repeated.values.std(axis=0)
    np.testing.assert_allclose(repeated.standard_errors.mean(axis=0), spread, rtol=0.12)


def test_repetitions_need_a_count():
    with pytest.raises(ValueError, match="count is 0, must be at least 1"):
        repetitions(None, 0)  # pyright: ignore[reportArgumentType]
