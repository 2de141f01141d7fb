"""Settings of a fit, estimates at bounds of their intervals, and how many steps a fit takes."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, record
from jaxdae.identification import identify

BAD = {
    "backwards": ({"dt": -0.1}, ValueError, "dt is -0.1 s, must be positive and finite"),
    "text": ({"dt": "0.1"}, TypeError, "dt is '0.1', must be one number, the step in seconds"),
    "longer": ({"dt": 5.1}, ValueError, "dt is 5.1 s, longer than experiment 1, which lasts 5 s"),
    "no steps": ({"steps": 0}, ValueError, "identify: steps is 0, must be at least 1"),
    "half a step": ({"steps": 1.5}, ValueError, "steps is 1.5, must be an integer"),
    "infinite": ({"spread": np.inf}, ValueError, "spread is inf, must be finite"),
    "spread of text": ({"spread": "a"}, ValueError, "spread is 'a', must be a number"),
    "a number as key": ({"key": 0}, TypeError, r"key is 0; give jax.random.key\(0\)"),
}


def fitted(guess, given=True, **options):
    experiment = record(np.random.default_rng(2), given=given)
    return identify(build, guess, experiment, channels=CHANNELS, **{"dt": 0.1, **options})


@pytest.mark.parametrize("case", BAD)
def test_settings_that_make_no_sense_are_refused_in_words(case):
    options, error, words = BAD[case]
    with pytest.raises(error, match=words):
        fitted({"stiffness": jaxdae.tuning.Positive(3.0)}, **options)


@pytest.mark.slow
def test_a_fit_that_a_bound_holds_back_converges_there():
    """The data say 4. The other parameter is the best one with the stiffness at its bound."""
    bound, guess = 3.5, {"stiffness": jaxdae.tuning.Interval(2.75, 2.0, 3.5)}
    with pytest.warns(RuntimeWarning) as caught:
        result = fitted({**guess, "damping": jnp.array(0.4)})
    texts = " ".join(str(x.message) for x in caught)
    assert "stiffness = " in texts
    assert "is at its bound: the data would have it outside" in texts
    assert "or this is a local minimum: try starts=" in texts
    assert "without meeting its tolerance" not in texts
    assert result.stop_reason == "bound"
    assert "stopped by bound" in result.summary()
    assert result.at_bounds == ("stiffness",)
    assert "at its bound: stiffness" in result.summary()
    assert result.steps < 40
    # The way that is left lowers chi-square by less than a hundredth.
    np.testing.assert_allclose(result["stiffness"], bound, rtol=1e-4)
    with pytest.warns(RuntimeWarning, match="do not explain the data"):
        held = fitted({"stiffness": bound, "damping": jnp.array(0.4)})
    assert 0 <= result.chi_square - held.chi_square < 0.01
    assert abs(result["damping"] - held["damping"]) < 0.01 * held.standard_error("damping")
    # What is left of the data is no noise, but the estimate is where it can be.
    with pytest.warns(RuntimeWarning) as caught:
        result = fitted(guess, given=False)
    assert all(str(x.message).startswith("identify: ") for x in caught)
    assert (result.stop_reason, result.at_bounds) == ("bound", ("stiffness",))


@pytest.mark.slow
def test_steps_are_counted_in_all_rounds_together():
    """In the first round, and in the last of those that estimate the noise."""
    guess = {"stiffness": jaxdae.tuning.Positive(3.0), "damping": jnp.array(0.4)}
    complete = fitted(guess, given=False)
    assert complete.stop_reason == "converged"
    for steps in (2, complete.steps - 1):
        with pytest.warns(RuntimeWarning, match=rf"stopped after all its steps \({steps}\)"):
            result = fitted(guess, given=False, steps=steps)
        assert (result.steps, result.stop_reason) == (steps, "steps")
    same = fitted(guess, given=False, steps=complete.steps)
    assert same.stop_reason == "converged"
    np.testing.assert_array_equal(same.values, complete.values)
