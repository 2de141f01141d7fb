"""Priors count as measurements of the parameters themselves, against SciPy with one sample more."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import curve_fit

from helpers.measured_oscillator import build, CHANNELS, motion, record, TIMES
from jaxdae.identification import identify, Prior
from jaxdae.tuning import Positive


def fitted(guess, **options):
    experiment = record(np.random.default_rng(2))
    return identify(build, guess, experiment, channels=CHANNELS, dt=0.1, **options)


@pytest.mark.slow
@pytest.mark.newest
def test_a_prior_is_one_sample_more_of_the_value_itself():
    """Mass, stiffness and damping have a common factor, which the prior of the mass gives."""
    guess = {
        "mass": Positive(1.5), "stiffness": Positive(5.0), "damping": jnp.array(0.4)
    }  # fmt: skip
    known = {"mass": Prior(1.1, 0.05), "damping": Prior(0.3, 0.02)}
    result = fitted(guess, priors=known)

    def everything(_, mass, stiffness, damping):
        return np.r_[motion(TIMES, stiffness / mass, damping / mass), mass, damping]

    y = record(np.random.default_rng(2)).measurements["place"].values
    values, covariance = curve_fit(
        everything, None, np.r_[y, 1.1, 0.3], p0=(1.5, 5.0, 0.4), ftol=1e-13,
        sigma=np.r_[np.full(50, 0.02), 0.05, 0.02], absolute_sigma=True,
    )  # fmt: skip
    names = ("mass", "stiffness", "damping")
    errors = np.array([result.standard_error(x) for x in names])
    np.testing.assert_allclose([result[x] for x in names], values, atol=1e-3 * errors.min())
    # SciPy's derivatives are differences.
    np.testing.assert_allclose(errors, np.sqrt(np.diag(covariance)), rtol=1e-4)
    assert result.degrees_of_freedom == 52 - 3
    assert "prior: mass 1.1 ± 0.05" in result.summary()
    assert result.unidentifiable == ()
    assert result.stop_reason == "converged"


@pytest.mark.slow
def test_a_prior_of_one_entry_of_a_vector():
    """Only the sum of both springs matters: the prior of one gives the other."""
    two = lambda p: build({"mass": 1.0, "stiffness": p["springs"].sum(), "damping": 0.2})  # noqa: E731
    experiment = record(np.random.default_rng(2))
    result = identify(
        two, {"springs": Positive([1.0, 2.0])}, experiment, channels=CHANNELS, dt=0.1,
        priors={"springs[1]": Prior(2.5, 0.1)},
    )  # fmt: skip
    np.testing.assert_allclose(result["springs[1]"], 2.5, rtol=1e-5)
    np.testing.assert_allclose(result.standard_error("springs[1]"), 0.1, rtol=1e-5)
    assert abs(result["springs[0]"] - 1.5) < 0.1
    assert result.correlation[0, 1] < -0.9


def as_any(x: Any) -> Any:
    """For type checkers, which refuse what these tests do."""
    return x


BAD = {
    "no spread": (lambda: Prior(1.0, 0.0), ValueError, "Prior: sigma is 0, must be > 0; to hold"),
    "NaN": (lambda: Prior(np.nan, 0.1), ValueError, "Prior: mean is nan, must be one finite"),
    "vector": (lambda: Prior(as_any([1.0, 2.0]), 0.1), ValueError, "must be one finite number"),
    "of nothing": (
        lambda: fitted({"stiffness": Positive(3.0)}, priors={"mass": Prior(1.0, 0.1)}),
        ValueError, "a prior of 'mass', but nothing of that name is estimated; there are: stiff",
    ),
    "pair": (
        lambda: fitted({"stiffness": Positive(3.0)}, priors={"stiffness": (1.0, 0.1)}),
        TypeError, "the prior of 'stiffness' is a tuple, must be Prior",
    ),
    "unnamed": (
        lambda: fitted({"stiffness": Positive(3.0)}, priors=Prior(1.0, 0.1)),
        TypeError, "priors is a Prior, must be by name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_priors_that_are_none_are_refused_in_words(case):
    call, error, words = BAD[case]
    with pytest.raises(error, match=words):
        call()
