"""Estimates, their errors and what data leave open, against SciPy on motions in closed form."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, motion, record, speed, START, TIMES
from jaxdae.identification import Channel, Experiment, identify, Measurement, repetitions
from jaxdae.tuning import Positive

GUESS = {"stiffness": Positive(3.0), "damping": jnp.array(0.4)}
# Fixed steps of Dopri8 err by less than 1e-9 here, the least squares of both by their tolerances.
DT = 0.1


def fitted(experiments, guess=GUESS, channels=CHANNELS, **options):
    return identify(build, guess, experiments, channels=channels, dt=DT, **options)


@pytest.mark.slow
def test_estimate_and_covariance_are_those_of_scipy_on_the_exact_motion(rng):
    experiment = record(rng)
    result = fitted(experiment)
    y = experiment.measurements["place"].values
    values, covariance = curve_fit(
        motion, TIMES, y, p0=(3.0, 0.4), sigma=np.full(50, 0.02), absolute_sigma=True, ftol=1e-13
    )
    order = [result.names.index(x) for x in ("stiffness", "damping")]
    errors = result.standard_errors[order]
    # To a thousandth of a standard error, where both methods end.
    np.testing.assert_allclose(result.values[order], values, atol=1e-3 * errors.min())
    # SciPy's derivatives are differences.
    np.testing.assert_allclose(result.covariance[np.ix_(order, order)], covariance, rtol=1e-4)
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=1e-4)
    left = y - motion(TIMES, *values)
    np.testing.assert_allclose(result.chi_square, np.sum((left / 0.02) ** 2), rtol=1e-6)
    np.testing.assert_allclose(result.data[0]["place"].residuals, left, atol=1e-5)
    assert result.degrees_of_freedom == 48
    assert result.stop_reason == "converged"


def test_a_noise_level_that_is_not_given_is_estimated_and_changes_no_estimate():
    known, unknown = (fitted(record(np.random.default_rng(1), given=x)) for x in (True, False))
    np.testing.assert_allclose(unknown.values, known.values, rtol=1e-5)
    level = 0.02 * np.sqrt(known.reduced_chi_square)
    np.testing.assert_allclose(unknown.noise["place"], level, rtol=2e-3)  # rounds end at 1e-3
    ratio = unknown.standard_errors / known.standard_errors
    np.testing.assert_allclose(ratio, level / 0.02, rtol=2e-3)
    assert np.isnan(unknown.probability)
    assert "(estimated)" in unknown.summary()
    # Of an even number of degrees of freedom, 48, the probability is a finite sum.
    half = known.chi_square / 2
    above = math.exp(-half) * sum(half**k / math.factorial(k) for k in range(24))
    np.testing.assert_allclose(known.probability, above, rtol=1e-12)
    np.testing.assert_allclose(known.probability_below, 1 - above, rtol=1e-12)


@pytest.mark.slow
def test_samples_that_are_missing_count_as_not_taken(rng):
    ts, gone = TIMES, np.arange(50) % 3 == 0
    values = motion(ts, 4.0, 0.2) + 0.02 * rng.normal(size=50)
    holes = Experiment(ts, {"place": Measurement(np.where(gone, np.nan, values), 0.02)}, START)
    fewer = Experiment(ts[~gone], {"place": Measurement(values[~gone], 0.02)}, START)
    with_holes, without = fitted(holes), fitted(fewer)
    np.testing.assert_allclose(with_holes.values, without.values, rtol=1e-6)
    np.testing.assert_allclose(with_holes.covariance, without.covariance, rtol=1e-5)
    assert with_holes.degrees_of_freedom == without.degrees_of_freedom == 31


@pytest.mark.slow
def test_what_enters_only_as_a_ratio_is_named_and_has_no_standard_error(rng):
    guess = {"mass": Positive(1.5), "stiffness": Positive(5.0), "damping": 0.0}
    values = motion(TIMES, 4.0, 0.0) + 0.02 * rng.normal(size=50)
    experiment = Experiment(TIMES, {"place": Measurement(values, 0.02)}, START)
    text = r"mass and stiffness enter only as their ratio: the direction \+0.71 log mass \+0.71 log"
    with pytest.warns(RuntimeWarning, match=text):
        result = fitted(experiment, guess)
    assert np.isinf(result.standard_errors).all()
    # The ratio is found; it is the guess's other direction that stays.
    np.testing.assert_allclose(result["stiffness"] / result["mass"], 4.0, atol=0.1)
    assert "not identifiable" in result.summary()
    again = repetitions(result, 2)
    assert np.isinf(again.standard_errors).all()
    assert np.isnan(again.within()).all()


@pytest.mark.slow
def test_records_of_several_kinds_are_fitted_together(rng):
    """Other inputs, other times, other channels: the sum of the informations of each."""
    one = record(rng)
    ts, h = np.array([0.3, 1.1, 7.0]), 1e-6
    speeds = (motion(ts + h, 4.0, 0.2) - motion(ts - h, 4.0, 0.2)) / (2 * h)
    measured = {"speed": Measurement(speeds + 0.1 * rng.normal(size=3), 0.1)}
    two = Experiment(ts, measured, START, name="later")
    channels = {**CHANNELS, "speed": Channel(speed, unit="m/s")}
    both = fitted([one, two], channels=channels)
    assert both.degrees_of_freedom == 51
    assert both.data[1]["speed"].model.shape == (3,)

    def everything(_, stiffness, damping):
        ahead, behind = (motion(ts + x, stiffness, damping) for x in (h, -h))
        return np.r_[motion(TIMES, stiffness, damping), (ahead - behind) / (2 * h)]

    samples = [x.values for record in (one, two) for x in record.measurements.values()]
    sigma = np.r_[np.full(50, 0.02), np.full(3, 0.1)]
    values, covariance = curve_fit(
        everything, None, np.concatenate(samples), p0=(3.0, 0.4), sigma=sigma, absolute_sigma=True
    )
    names = ("stiffness", "damping")
    np.testing.assert_allclose([both[x] for x in names], values, atol=1e-5)
    # SciPy's derivatives are differences, here of differences.
    errors = [both.standard_error(x) for x in names]
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=1e-3)


def mass(run):
    return jnp.broadcast_to(run.system.mass, run.ts.shape)


@jax.custom_jvp
def wrong(x):
    """A reading whose derivative has the wrong sign: every step goes up."""
    return x


wrong.defjvp(lambda x, dx: (wrong(*x), -dx[0]))


def shown_by(reading, guess=GUESS, **options):
    """A fit of good data to another reading."""
    experiment = Experiment(TIMES, {"place": GOOD}, START)
    return fitted(experiment, guess, {"place": Channel(reading)}, **options)


NAN = np.full(50, np.nan)
GOOD = Measurement(motion(TIMES, 4.0, 0.2), 0.02)
BAD = {
    "shape of values": (lambda: Measurement(np.zeros((3, 2))), r"shape \(3, 2\), must be a vector"),
    "text": (lambda: Measurement("abc"), "must be a vector of real numbers"),
    "infinite": (lambda: Measurement([1.0, np.inf]), "value 1 is infinite; write NaN"),
    "no noise": (lambda: Measurement([1.0], 0.0), "sigma is 0, must be > 0"),
    "shape of noise": (lambda: Measurement([1.0, 2.0], [1.0] * 3), r"sigma has shape \(3,\) for 2"),
    "fewer samples": (
        lambda: Experiment(TIMES[:9], {"place": GOOD}, START), "50 samples at 9 times",
    ),
    "order": (
        lambda: Experiment([0.1, 0.3, 0.2], {"place": Measurement(np.zeros(3))}, START),
        r"out of order, ts\[2\] = 0.2 s comes after ts\[1\] = 0.3 s",
    ),
    "before the start": (
        lambda: Experiment(TIMES, {"place": GOOD}, START, t0=1.0), "after its first sample at 0.1 s"
    ),
    "all missing": (
        lambda: Experiment(TIMES, {"place": Measurement(NAN)}, START, name="A"),
        "Experiment 'A': all samples are missing",
    ),
    "no times": (lambda: Experiment([], {"place": GOOD}, START), "at least one time"),
    "nobody measures": (
        lambda: fitted(
            Experiment(TIMES, {"place": GOOD}, START),
            channels={**CHANNELS, "speed": Channel(speed)},
        ),
        "nobody measures the channel 'speed'",
    ),
    "no such channel": (
        lambda: fitted(Experiment(TIMES, {"angle": GOOD}, START)),
        "'angle' is measured, but no channel has that name",
    ),
    "nothing to estimate": (
        lambda: fitted(Experiment(TIMES, {"place": GOOD}, START), {"damping": 0.2}),
        "nothing to estimate",
    ),
    "start that is no number": (
        lambda: fitted(Experiment(TIMES, {"place": GOOD}, jaxdae.State([np.nan], [0.0]))),
        "the start of experiment 1 is not finite; give numbers",
    ),
    "guess that is no number": (
        lambda: fitted(Experiment(TIMES, {"place": GOOD}, START), {"stiffness": jnp.array(np.nan)}),
        "the first guess of 'stiffness' is nan, must be a finite number",
    ),
    "no reading": (
        lambda: shown_by(lambda _: None), "a channel's reading is None, must have one number at"
    ),
    "matrix": (lambda: shown_by(lambda _: jnp.zeros((50, 2))), r"reading has shape \(50, 2\), m"),
    "unseen": (
        lambda: shown_by(mass, {"mass": Positive(1.0), "damping": jnp.array(0.1)}),
        "no channel sees damping: every derivative is zero",
    ),
    "seen by round-off": (
        lambda: shown_by(lambda run: 1e-14 * mass(run), {"mass": Positive(1.0)}),
        "no channel sees mass: every derivative is zero, to round",
    ),
    "failing starts": (
        lambda: shown_by(lambda run: run.q[:, 0], {"stiffness": jnp.array(1e300)}, starts=2),
        "fails at all 2 first guesses; at the first, the run of",
    ),
    "wrong derivatives": (
        lambda: shown_by(lambda run: wrong(run.q[:, 0])),
        "no step from the first guess decreases the sum of squar",
    ),
    "ends at the start": (
        lambda: fitted(Experiment([0.0], {"place": Measurement([1.0])}, START)),
        "ends where it starts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_refused_in_words(case):
    call, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        call()


def test_a_build_of_something_else_is_refused_in_words():
    experiment = Experiment(TIMES, {"place": GOOD}, START)
    guess = {"damping": jnp.array(0.1)}
    call = lambda made: identify(  # noqa: E731
        lambda _: made, guess, experiment, channels=CHANNELS, dt=DT
    )
    system, formulation = build({"damping": 0.1})
    with pytest.raises(TypeError, match=r"a system that is .*; give a System first"):
        call((formulation, system))
    with pytest.raises(TypeError, match="a formulation that is 2; give a formulation, such as"):
        call((system, 2))


@pytest.mark.slow
def test_records_of_integer_conditions_have_each_its_own(rng):
    """Of two masses; the first must not stand for both."""

    def loaded(p, load):
        return build({**p, "mass": 1.0 + load})

    def under(load):
        values = motion(TIMES, 4.0 / (1 + load), 0.2 / (1 + load)) + 0.02 * rng.normal(size=50)
        measured = {"place": Measurement(values, 0.02)}
        return Experiment(TIMES, measured, START, conditions=load)

    result = identify(loaded, GUESS, [under(0), under(1)], channels=CHANNELS, dt=DT)
    errors = np.abs([result["stiffness"] - 4.0, result["damping"] - 0.2])
    assert (errors < 3 * result.standard_errors[::-1]).all()


@pytest.mark.slow
def test_noise_that_is_far_below_its_level_is_said(rng):
    y = record(rng).measurements["place"].values
    experiment = Experiment(TIMES, {"place": Measurement(y, 2.0)}, START)
    with pytest.warns(RuntimeWarning, match="the noise is smaller than the levels that are given"):
        result = fitted(experiment)
    assert result.probability_below < 1e-30
    assert result.probability > 0.999


@pytest.mark.slow
def test_a_failed_start_beside_good_ones_changes_nothing():
    """Perturbed by e^(3 z), some first guesses are far too stiff for the step."""
    experiment = record(np.random.default_rng(3))
    guess = {"stiffness": Positive(3.0)}
    one = fitted(experiment, guess)
    many = fitted(experiment, guess, starts=6, spread=5.0)
    np.testing.assert_allclose(many.values, one.values, rtol=1e-6)
