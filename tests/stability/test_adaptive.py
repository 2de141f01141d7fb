"""Gains for runs that choose their steps."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.stability import adaptive_gains, error_constant, expected_step, step_gains, tableau

SOLVER = diffrax.Tsit5()
CONTROLLER = diffrax.PIDController(rtol=1e-8, atol=1e-8)


def test_the_expected_step_has_the_tolerance_as_its_error():
    order, constant = error_constant(*tableau(SOLVER)[:2])
    step = expected_step(SOLVER, 1e-8, 3.0)
    np.testing.assert_allclose(constant * (3.0 * step) ** (order + 1), 1e-8, rtol=1e-12)


def test_gains_are_those_of_the_largest_step_of_the_range():
    gains = adaptive_gains(SOLVER, CONTROLLER, 0.01, spread=9.0, regime="violation")
    expected = step_gains(SOLVER, 0.03, margin=9.0)
    np.testing.assert_allclose([gains.K_D, gains.K_P], [expected.K_D, expected.K_P], rtol=1e-12)
    limited = diffrax.PIDController(rtol=1e-8, atol=1e-8, dtmax=0.02)
    gains = adaptive_gains(SOLVER, limited, 0.01, spread=9.0, regime="violation")
    np.testing.assert_allclose(gains.margin, 6.0, rtol=1e-12)


@pytest.mark.slow
def test_gains_for_the_steps_own_errors_cost_few_steps_and_hold_the_violation():
    system = jaxdae.models.CartesianPendulum()
    q, v = system.start()

    def run(law):
        return jaxdae.simulate(
            system,
            jaxdae.Multipliers(law),
            jaxdae.State(q, v),
            t1=4.0,
            solver=SOLVER,
            stepsize_controller=CONTROLLER,
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 4.0, 41)),
        )

    def steps(found):
        return int(found.stats["num_accepted_steps"])

    free = run(jaxdae.Baumgarte(1e-3, 1e-6))
    expected = 4.0 / steps(free)
    found = {}
    for regime in ("steps", "violation"):
        gains = adaptive_gains(SOLVER, CONTROLLER, expected, regime=regime)
        found[regime] = run(jaxdae.Baumgarte(gains.K_D, gains.K_P))
    # A run found 166, 228 and 1246 steps; what is stated is few more, and several times as many.
    assert steps(found["steps"]) < 1.6 * steps(free)
    assert steps(found["violation"]) > 3.0 * steps(free)
    residuals = np.abs(np.asarray(found["steps"].violation.phi)).max()
    assert residuals < 1e-8
    assert residuals < 0.2 * np.abs(np.asarray(free.violation.phi)).max()


BAD: list[tuple[dict[str, Any], type, str]] = [
    ({"stepsize_controller": diffrax.ConstantStepSize()}, TypeError, "no relative tolerance rtol"),
    ({"step": -0.1}, ValueError, r"step is -0\.1; it must be a positive"),
    ({"step": 1e-8, "stepsize_controller": 1e-3}, TypeError, "float has no relative tolerance"),
    ({"spread": 0.5}, ValueError, r"spread is 0\.5; it is the largest step over the smallest"),
    ({"time_scale": -3.0}, ValueError, r"time_scale is -3\.0; it must be a positive"),
    ({"time_scale": -3.0, "regime": "violation"}, ValueError, "time_scale is -3.0, but the regime"),
    ({"regime": "all"}, ValueError, "regime must be one of"),
    ({"solver": 3.0}, TypeError, "give a diffrax solver"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), BAD)
def test_what_is_no_controller_or_no_step_is_refused(wrong, error, words):
    arguments = {"solver": SOLVER, "stepsize_controller": CONTROLLER, "step": 0.01, **wrong}
    with pytest.raises(error, match=words):
        adaptive_gains(**arguments)


def test_a_tolerance_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"rtol is 0\.0"):
        adaptive_gains(SOLVER, diffrax.PIDController(rtol=0.0, atol=1e-6), 0.01)
    with pytest.raises(ValueError, match=r"frequency is 0\.0"):
        expected_step(SOLVER, 1e-6, 0.0)
