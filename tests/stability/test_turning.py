"""Gains for a step where constraints bend."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, State
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.stability import largest_turn, step_gains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "margin"), [(RK4(), 8.0), (diffrax.Tsit5(), 3.0), (diffrax.Euler(), 1.0)]
)
def test_a_particle_stays_on_its_circle_up_to_the_turn(solver, margin):
    gains = step_gains(solver, 0.02, margin=margin)
    turn, law = largest_turn(solver, gains), Baumgarte(gains.K_D, gains.K_P)
    found = {}
    # The next speed that is tried is 9 % lower.
    for factor in (0.9, 1.02):
        start = State(jnp.array([1.0, 0.0]), jnp.array([0.0, factor * turn / 0.02]))
        run = jaxdae.simulate(
            CartesianPendulum(gravity=0.0), jaxdae.Multipliers(law), start, t1=8.0, dt=0.02,
            solver=solver, throw=False, backend="plain",
        )  # fmt: skip
        speed = np.hypot(*np.asarray(run.v).T) * 0.02 / (factor * turn)
        left = np.abs(run.violation.phi[:, 0]) >= 0.5
        found[factor] = not run.success or (left | (np.abs(np.log2(speed)) >= 1)).any()
    assert found == {0.9: False, 1.02: True}


@pytest.mark.parametrize(
    ("solver", "margin", "remedy"),
    [
        (RK4(), 8.0, "a smaller margin"),
        (diffrax.Euler(), 1.0, "another method"),
    ],
)
def test_margins_that_a_turning_motion_does_not_bear_are_warned_of(solver, margin, remedy):
    """Those with which a pendulum that falls, by 0.09 rad in a step, fails."""
    with pytest.warns(RuntimeWarning, match=rf"more than 0\.0\d+ rad in the longest.*{remedy}"):
        Baumgarte.for_step(solver, 0.02, margin=margin)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [RK4(), diffrax.Tsit5()])
def test_margins_without_a_warning_hold_on_a_falling_pendulum(solver):
    """Its largest turn is 0.089 rad in a step; warnings are errors here."""
    start = State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    law = jaxdae.Multipliers(Baumgarte.for_step(solver, 0.02, margin=2.0))
    run = jaxdae.simulate(CartesianPendulum(), law, start, t1=8.0, dt=0.02, solver=solver)
    assert np.abs(run.violation.phi).max() < 0.01
