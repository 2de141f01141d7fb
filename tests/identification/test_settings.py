"""Settings of a fit that make no sense, and fits that are given few steps."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, record
from jaxdae.identification import identify

BAD = {
    "backwards": ({"dt": -0.1}, ValueError, "dt is -0.1 s, must be positive and finite"),
    "no step": ({"dt": 0.0}, ValueError, "dt is 0.0 s, must be positive"),
    "step of NaN": ({"dt": np.nan}, ValueError, "dt is nan s, must be positive"),
    "text": ({"dt": "0.1"}, TypeError, "dt is '0.1', must be one number, the step in seconds"),
    "several": ({"dt": jnp.ones(2)}, TypeError, "must be one number"),
    "longer": ({"dt": 5.1}, ValueError, "dt is 5.1 s, longer than experiment 1, which lasts 5 s"),
    "no steps": ({"steps": 0}, ValueError, "identify: steps is 0, must be at least 1"),
    "less than none": ({"steps": -1}, ValueError, "steps is -1, must be at least 1"),
    "half a step": ({"steps": 1.5}, ValueError, "steps is 1.5, must be an integer"),
    "no starts": ({"starts": 0}, ValueError, "starts is 0, must be at least 1"),
    "no intervals": ({"intervals": 0}, ValueError, "intervals is 0, must be at least 1"),
    "negative": ({"spread": -1.0}, ValueError, "spread is -1.0, must be at least 0"),
    "infinite": ({"spread": np.inf}, ValueError, "spread is inf, must be finite"),
    "spread of text": ({"spread": "a"}, ValueError, "spread is 'a', must be a number"),
    "a number as key": ({"key": 0}, TypeError, r"key is 0; give jax.random.key\(0\)"),
}


def fitted(guess=None, rng=None, **options):
    guess = {"stiffness": jaxdae.tuning.Positive(3.0)} if guess is None else guess
    experiment = record(np.random.default_rng(2) if rng is None else rng)
    return identify(build, guess, experiment, channels=CHANNELS, **{"dt": 0.1, **options})


@pytest.mark.parametrize("case", BAD)
def test_settings_that_make_no_sense_are_refused_in_words(case):
    options, error, words = BAD[case]
    with pytest.raises(error, match=words):
        fitted(**options)


@pytest.mark.slow
def test_a_fit_of_few_steps_says_so_and_goes_on_with_more(tmp_path):
    """Its numbers are then those of a fit that was never interrupted."""
    path = tmp_path / "fit.ckpt"
    with pytest.warns(RuntimeWarning, match=r"stopped after all its steps \(1\)"):
        assert fitted(steps=1, checkpoint=path).stop_reason == "steps"
    resumed, straight = fitted(steps=50, checkpoint=path, resume=True), fitted(steps=50)
    assert resumed.stop_reason == "converged"
    np.testing.assert_array_equal(resumed.values, straight.values)
    assert resumed.steps == straight.steps


@pytest.mark.slow
def test_an_estimate_at_a_bound_of_its_interval_is_named():
    """The data would have stiffness 4; chi-square cannot be explained by what is allowed."""
    guess = {"stiffness": jaxdae.tuning.Interval(3.0, 2.0, 3.5)}
    with pytest.warns(RuntimeWarning) as caught:
        result = fitted(guess)
    texts = " ".join(str(x.message) for x in caught)
    assert "is at its bound: the data would have it outside" in texts
    assert "or this is a local minimum: try starts=" in texts
    assert result.at_bounds == ("stiffness",)
    assert "at its bound: stiffness" in result.summary()
