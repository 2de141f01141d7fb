"""The half-explicit method: order of each variable, constraints, derivatives, what it is given."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import MassOnCircle, UnitMass
from jaxdae.models import AppellHamel, KnifeEdge
from jaxdae.solvers import half_explicit as coefficients, HalfExplicit, Projected

END = diffrax.SaveAt(t1=True)
START = MassOnCircle().start()
SPEED = np.exp(-0.5)  # of the pendulum after 1 s
TURNED = 2 * (1 - SPEED)
THERE = np.array([np.cos(TURNED), np.sin(TURNED)])


def run(system: Any, state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": HalfExplicit(), "saveat": END} | options
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def reference(system, state, t1=1.0, **options):
    tight = diffrax.PIDController(rtol=1e-13, atol=1e-13)
    return run(
        system,
        state,
        t1=t1,
        solver=Projected(diffrax.Dopri8()),
        stepsize_controller=tight,
        **options,
    )


def test_coefficients_are_those_of_radau_at_the_end_and_see_no_parabola_in_the_error():
    rows, times, estimate = coefficients._ROWS, coefficients._TIMES, coefficients._ESTIMATE
    np.testing.assert_allclose(rows.sum(axis=1), times[1:], rtol=1e-14)
    for k in range(1, 6):  # quadrature of order 5
        np.testing.assert_allclose(rows[-1] @ times[:-1] ** (k - 1), 1 / k, rtol=1e-14)
    for k in range(3):
        consistent = float(k > 0)  # rate at the end, less that at the beginning
        np.testing.assert_allclose(estimate @ [*times[:-1] ** k, consistent], 0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("model", [KnifeEdge, AppellHamel], ids=["linear", "nonlinear"])
def test_velocity_constraints(model):
    system = model()
    state = jaxdae.State(*system.start())
    found = run(system, state, t1=0.5)
    np.testing.assert_allclose(found.q[-1], reference(system, state, t1=0.5).q[-1], atol=1e-7)
    assert np.abs(found.violation.phi_dot).max() < 1e-14


class Motor(UnitMass):
    """A mass on a circle, pushed along by a force that builds up: `w' = u - w`."""

    def force(self, t, q, v, w, u):
        return w[0] * jnp.stack([-q[1], q[0]])

    def actuator_rate(self, t, q, v, w, u):
        return u - w

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - 1.0])


def test_actuators_and_controllers():
    state = jaxdae.State(START.q, jnp.zeros(2), jnp.zeros(1))
    found = run(Motor(), state, dt=0.02, controller=lambda t, q, v, w: jnp.ones(1))
    angle = 0.5 - 1 + 1 - np.exp(-1.0)  # t^2 / 2 - t + 1 - exp(-t)
    np.testing.assert_allclose(found.w[-1], 1 - np.exp(-1.0), atol=1e-8)
    np.testing.assert_allclose(found.q[-1], [np.cos(angle), np.sin(angle)], atol=1e-8)


def test_it_runs_by_itself_in_diffrax():
    term = jaxdae.solvers.ConstrainedTerm(lambda controller, t, state: None)
    made = diffrax.diffeqsolve(
        term, HalfExplicit(), 0.0, 1.0, 0.02, (START, None), args=(MassOnCircle(), None, None)
    )
    assert made.ys is not None
    np.testing.assert_allclose(made.ys[0].q[-1], THERE, atol=2e-8)
