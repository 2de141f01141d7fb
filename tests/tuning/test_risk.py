"""Mean, worst and conditional value at risk of the costs of a batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from jaxdae.tuning import CVaR
from jaxdae.tuning.risk import at_risk, is_mean

COSTS = jnp.array([3.0, 0.5, 8.0, 1.0, 2.0, 0.1, 4.0])


@pytest.mark.parametrize("fraction", [0.01, 1 / 7, 0.3, 1.0])
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev(fraction):
    def auxiliary(a):
        return a + np.mean(np.maximum(np.asarray(COSTS) - a, 0.0)) / fraction

    # Piecewise linear: the minimum is at one of the costs.
    least: Any = min(auxiliary(a) for a in np.asarray(COSTS))
    searched: Any = minimize_scalar(auxiliary, bounds=(0.0, 8.0), method="bounded")
    np.testing.assert_allclose(at_risk(COSTS, CVaR(fraction)), least, rtol=1e-14)
    # The search ends within 1e-5 of a corner with slopes up to 1 / fraction.
    assert least <= searched.fun + 1e-3


def test_a_fraction_of_one_is_the_mean_and_the_least_is_the_worst():
    assert at_risk(COSTS, CVaR(1)) == at_risk(COSTS, "mean") == np.mean(COSTS)
    assert at_risk(COSTS, CVaR(1e-9)) == at_risk(COSTS, "worst") == 8.0
    assert is_mean(CVaR(1.0))
    assert not is_mean(CVaR(0.9))


def test_one_bad_cost_makes_all_of_it_bad():
    for risk in ("mean", "worst", CVaR(0.3)):
        assert not np.isfinite(at_risk(COSTS.at[3].set(np.nan), risk))


@pytest.mark.parametrize("risk", ["worst", CVaR(0.35)])
def test_gradients_agree_in_both_modes_and_with_differences(risk):
    forward, reverse = (d(lambda c: at_risk(c, risk))(COSTS) for d in (jax.jacfwd, jax.grad))
    np.testing.assert_array_equal(forward, reverse)
    # Piecewise linear: differences are exact to round-off of the costs over the step.
    steps = 1e-3 * jnp.eye(COSTS.size)
    differences = [(at_risk(COSTS + s, risk) - at_risk(COSTS - s, risk)) / 2e-3 for s in steps]
    np.testing.assert_allclose(differences, forward, atol=1e-11)
    np.testing.assert_allclose(np.sum(forward), 1.0, rtol=1e-14)


def test_what_is_no_risk_is_refused():
    for fraction in (0, 1.5, np.nan):
        with pytest.raises(
            ValueError, match=r"fraction is .*, must be above 0 and at most 1; take"
        ):
            CVaR(fraction)
    for fraction in ("tail", True, 0.5j):
        with pytest.raises(TypeError, match=f"fraction is {fraction!r}, must be a number"):
            CVaR(fraction)
