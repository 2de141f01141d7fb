"""Predictions of records that a model was not fitted to, against motions in closed form."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import build, motion, place
from jaxdae.identification import (
    Calibration,
    Channel,
    Experiment,
    Measurement,
    UnknownStart,
    validate,
    Validation,
)
from jaxdae.identification.validation import PredictedChannel
from jaxdae.plotting import plot_predictions

TIMES = np.linspace(0.0, 8.0, 161)
CHANNELS = {"place": Channel(place, "m")}
START = UnknownStart(jaxdae.State([0.8], [0.1]))
TRUE = {"stiffness": 4.0, "damping": 0.2}


def record(x0=1.0, zero=0.0, name="", ts=TIMES):
    return Experiment(ts, {"place": Measurement(motion(ts, 4.0, 0.2, x0) + zero)}, START, name=name)


def validated(params, experiments, channels=CHANNELS, **options):
    settings: dict[str, Any] = {"horizon": 1.0, "past": 0.25, "dt": 0.05} | options
    return validate(build, params, experiments, channels=channels, **settings)


@pytest.fixture(scope="module")
def found():
    """Of the true stiffness, and of one that is too large; two records of other lengths."""
    records = [record(name="a"), record(2.0, name="b", ts=TIMES[:100])]
    return [validated(TRUE | {"stiffness": x}, records) for x in (4.0, 4.4)]


def test_the_true_model_predicts_to_round_off_of_its_steps(found):
    """Every window of both records, those that come when the shorter one has ended too."""
    right = found[0]
    assert right.records == ("a", "b")
    assert [x["place"].ts.shape for x in right.data] == [(7, 26), (4, 26)]
    # RK4-like steps of a twentieth of a second are exact to some 1e-6 of the motion in a second.
    assert (right.rms("place") < 1e-5).all()
    first = right.data[0]["place"]
    np.testing.assert_allclose(first.ts[1, 0] - first.ts[0, 0], 1.0)
    np.testing.assert_allclose(first.since[:, 5], 0.0)
    np.testing.assert_allclose(first.measured, motion(first.ts, 4.0, 0.2), rtol=1e-12)


def test_errors_of_a_wrong_model_are_those_of_its_motion(found):
    """By hand: the start by linear least squares of the model's two motions, then ahead."""
    wrong = found[1].data[0]["place"]
    for k in range(3):
        ts = wrong.ts[k] - wrong.ts[k, 0]
        basis = np.stack([motion(ts, 4.4, 0.2, *x) for x in ((1.0, 0.0), (0.0, 1.0))], 1)
        start = np.linalg.lstsq(basis[:6], wrong.measured[k, :6])[0]
        np.testing.assert_allclose(wrong.predicted[k], basis @ start, atol=1e-4)
    errors = wrong.errors
    assert np.isnan(errors[:, :6]).all()
    assert np.isfinite(errors[:, 6:]).all()
    np.testing.assert_allclose(
        found[1].rms("place")[0], np.sqrt(np.mean(errors[:, 6:] ** 2)), rtol=1e-12
    )
    middles, sizes = found[1].by_horizon("place", 4)
    np.testing.assert_allclose(middles, [0.125, 0.375, 0.625, 0.875])
    assert np.all(np.diff(sizes) > 0)  # the phase runs away


def test_models_that_differ_by_numbers_alone_share_their_programs(found):
    """A number of a weak type too: the model is traced no more."""
    asked, ones = [], [record(name="a"), record(2.0, name="b", ts=TIMES[:100])]

    def counted(params):
        asked.append(0)
        return build(params)

    settings: dict[str, Any] = {"channels": CHANNELS, "horizon": 1.0, "past": 0.25, "dt": 0.05}
    calls = []
    for x in (np.array(4.0), jnp.array(4.0), jnp.array(4.4), np.array(4.4)):
        found = validate(counted, TRUE | {"stiffness": x}, ones, **settings)
        calls.append(len(asked) - sum(calls))
    assert calls[1] == calls[2] == calls[3] < calls[0]
    assert (found.rms("place") > 1e-2).all()


def test_a_summary_and_a_picture_compare_models(found):
    assert "predictions of 1 s, starts from the 0.25 s before" in str(found[1])
    assert "in record b" in str(found[1])
    figure = plot_predictions({"right": found[0], "wrong": found[1]})
    ahead, each = figure.axes
    assert ahead.get_xlabel() == "time ahead [s]"
    assert ahead.get_ylabel() == "place [m]"
    assert [x.get_label() for x in ahead.get_lines()] == ["right", "wrong"]
    shown = np.asarray(each.get_lines()[1].get_ydata())
    np.testing.assert_allclose(shown, found[1].rms("place"))
    assert len(plot_predictions(found[0]).axes) == 2
    other = dataclasses.replace(found[0], records=("a",))
    with pytest.raises(ValueError, match="'wrong' has 1 records, 'right' 2; compare models on"):
        plot_predictions({"right": found[0], "wrong": other})


@pytest.mark.slow
def test_the_zero_of_each_record_is_found_from_all_its_windows():
    channels = {"place": Channel(place, "m", Calibration(0.0, per_record=True))}
    found = validated(TRUE, [record(zero=0.3), record(2.0, zero=-0.2)], channels)
    zeros = [x["offset of place"] for x in found.sensors]
    np.testing.assert_allclose(zeros, [0.3, -0.2], atol=1e-5)
    assert (found.rms("place") < 1e-5).all()
    known = validated(TRUE, record(zero=0.3), {"place": Channel(place, "m", 0.3)})
    assert known.rms("place")[0] < 1e-5


@pytest.mark.slow
def test_a_run_that_fails_is_an_infinite_error_and_hides_no_other():
    """A spring that pushes apart exponentially overflows; the record beside it stays."""

    def either(params, conditions):
        return build({"stiffness": conditions, "damping": 0.2})

    good = dataclasses.replace(record(), conditions=jnp.array(4.0))
    bad = dataclasses.replace(record(), conditions=jnp.array(-1e7))
    found = validate(either, {}, [good, bad], channels=CHANNELS, horizon=1.0, past=0.25, dt=0.05)
    assert found.rms("place")[0] < 1e-5
    assert found.rms("place")[1] > 1e3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0.0}, "horizon is 0.0, must be a positive number of seconds"),
        ({"past": 0.01}, "past is 0.01 s, less than the 0.05 s between samples of experiment 1"),
        ({"horizon": 9.0}, "experiment 1 has 161 samples, a window of 0.25 and 9 s takes 186"),
        ({"every": np.inf}, "every is inf, must be a positive number"),
        ({"noise": {"plaice": 0.1}}, "noise of 'plaice' is given, but there are place"),
        ({"noise": {"place": 0.0}}, "the noise of 'place' is 0.0, must be > 0 and finite"),
        (
            {"channels": {"place": Channel(place, "m", Calibration(0.0))}},
            "the offset of place is a Calibration that all records share; give its number",
        ),
    ],
)
def test_windows_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        validated(TRUE, record(), **options)


def test_samples_behind_a_gap_are_beyond_the_horizon():
    """The last of three comes 5 s later; before it errors are 1 and 2."""
    ts = np.array([[0.0, 1.0, 2.0, 7.0]])
    one = PredictedChannel(ts, ts - 0.0, np.zeros((1, 4)), np.array([[9.0, 1.0, 2.0, 9.0]]), "m")
    found = Validation(3.0, 0.5, ("1",), ({"place": one},), ({},))
    np.testing.assert_allclose(found.rms("place"), [np.sqrt(2.5)])
    np.testing.assert_allclose(found.by_horizon("place", 3)[1], [1.0, 2.0, np.nan])


def test_channels_without_a_sample_ahead_say_so():
    ts = np.array([[0.0, 1.0]])
    one = PredictedChannel(ts, ts, np.array([[1.0, np.nan]]), np.ones((1, 2)), "m")
    found = Validation(1.0, 0.5, ("1",), ({"place": one},), ({},))
    assert "place: no sample is predicted" in found.summary()


def test_a_validation_is_plain_data():
    found = Validation(1.0, 0.1, ("1",), ({},), ({},))
    assert found.channels == ()
