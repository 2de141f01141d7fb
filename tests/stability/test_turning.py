"""Gains for a step where constraints bend."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, State
from jaxdae.solvers import RK4
from jaxdae.stability import largest_turn, step_gains


class Particle(jaxdae.System):
    """A particle on the unit circle, free or falling."""

    gravity: float = 0.0

    def potential_energy(self, t, q):
        del t
        return self.gravity * q[1]

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        del t
        return jnp.array([q @ q - 1])


@pytest.mark.parametrize(
    ("solver", "margin"), [(RK4(), 8.0), (diffrax.Tsit5(), 3.0), (diffrax.Euler(), 1.0)]
)
def test_a_particle_stays_on_its_circle_up_to_the_turn(solver, margin):
    gains = step_gains(solver, 0.02, margin=margin)
    turn = largest_turn(solver, gains)
    found = {}
    # The next speed that is tried is 9 % lower.
    for factor in (0.9, 1.02):
        start = State(jnp.array([1.0, 0.0]), jnp.array([0.0, factor * turn / 0.02]))
        run = jaxdae.simulate(
            Particle(), jaxdae.Multipliers(Baumgarte(gains.K_D, gains.K_P)), start,
            t1=8.0, dt=0.02, solver=solver, throw=False, backend="plain",
        )  # fmt: skip
        speed = np.hypot(*np.asarray(run.v).T) * 0.02 / (factor * turn)
        left = np.abs(run.violation.phi[:, 0]) >= 0.5
        found[factor] = not run.success or (left | (np.abs(np.log2(speed)) >= 1)).any()
    assert found == {0.9: False, 1.02: True}


@pytest.mark.parametrize(
    ("solver", "margin", "remedy"),
    [
        (diffrax.Tsit5(), 3.0, "a smaller margin"),
        (RK4(), 8.0, "a smaller margin"),
        (diffrax.Euler(), 1.0, "another method"),
    ],
)
def test_margins_that_a_turning_motion_does_not_bear_are_warned_of(solver, margin, remedy):
    """Those with which a pendulum that falls, by 0.09 rad in a step, fails."""
    with pytest.warns(RuntimeWarning, match=rf"more than 0\.0\d+ rad in the longest.*{remedy}"):
        Baumgarte.for_step(solver, 0.02, margin=margin)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [RK4(), diffrax.Tsit5(), diffrax.Dopri5(), diffrax.Dopri8()])
def test_margins_without_a_warning_hold_on_a_falling_pendulum(solver):
    """Its largest turn is 0.089 rad in a step; warnings are errors here."""
    start = State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    for margin in (1.0, 1.5, 2.0):
        gains = Baumgarte.for_step(solver, 0.02, margin=margin)
        run = jaxdae.simulate(
            Particle(9.81), jaxdae.Multipliers(gains), start, t1=8.0, dt=0.02, solver=solver,
            backend="plain", throw=False,
        )  # fmt: skip
        assert run.success
        assert np.abs(run.violation.phi).max() < 0.01
