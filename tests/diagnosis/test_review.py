"""By which tolerance a run is judged: that of its step control."""

import diffrax
import jax
import jax.numpy as jnp
import pytest

from jaxdae import Multipliers, simulate
from jaxdae.diagnosis import review
from jaxdae.models import CartesianPendulum
from jaxdae.systems import State

START = State(jnp.array([0.6, -0.8]), jnp.zeros(2))
PID = diffrax.PIDController(rtol=1e-4, atol=1e-6)
EVEN = diffrax.ConstantStepSize()


@pytest.fixture
def judged_by(monkeypatch):
    """Tolerances by which runs are judged."""
    found, rows_of = [], review.rows_of

    def noted(run, tolerance):
        found.append(tolerance)
        return rows_of(run, tolerance)

    monkeypatch.setattr(review, "rows_of", noted)
    return found


@pytest.mark.parametrize(
    ("how", "dtype", "tolerance"),
    [
        ({}, jnp.float64, 2e-8),
        ({}, jnp.float32, 2e-5),
        ({"stepsize_controller": PID}, jnp.float64, 1.01e-4),
        ({"dt": 0.05}, jnp.float64, None),
        ({"dt": 0.05, "stepsize_controller": EVEN}, jnp.float64, None),
    ],
    ids=["default", "single", "given", "fixed", "constant"],
)
def test_a_run_is_judged_by_the_tolerance_of_its_steps(judged_by, how, dtype, tolerance):
    start = jax.tree.map(lambda x: x.astype(dtype), START)
    simulate(CartesianPendulum(), Multipliers(), start, t1=0.1, **how)
    expected = tolerance if tolerance is None else pytest.approx(tolerance, rel=1e-6)
    assert judged_by == [expected]


def test_a_run_that_may_fail_quietly_is_not_judged(judged_by):
    simulate(CartesianPendulum(), Multipliers(), START, t1=0.1, dt=0.05, throw=False)
    assert judged_by == []
