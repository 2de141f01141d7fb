"""Consistent starts of programs that involve actuator states."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import ConsistencyError, Multipliers
from jaxdae.models import AdaptiveMirror
from jaxdae.models.registry import MODELS
from jaxdae.solvers import RK4


class DrivenPendulum(jaxdae.System):
    """A rod in Cartesian coordinates whose torque is an actuator state with a lag."""

    length: float = 1.2

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.length**2])

    def force(self, t, q, v, w, u):
        return w[0] * jnp.stack([-q[1], q[0]])

    def actuator_rate(self, t, q, v, w, u):
        return -w if u is None else u - w


def held(t, q, v, w):
    """At rest in equilibrium with the weight: `w l^2 = 9.81 x`, and no motion along the circle."""
    return jnp.stack([w[0] * (q @ q) - 9.81 * q[0], q[0] * v[1] - q[1] * v[0]])


PENDULUM = DrivenPendulum()
GUESS: dict[str, Any] = {"q": [0.9, -0.7], "v": [0.3, 0.2], "w": [1.0]}


@pytest.mark.slow
def test_state_meets_constraints_and_program_with_the_least_change():
    state = jaxdae.consistent_state(PENDULUM, **GUESS, program=held)
    q, v, w = (np.asarray(x) for x in (state.q, state.v, state.w))
    assert q @ q == pytest.approx(1.44, rel=1e-12)
    np.testing.assert_allclose(v, 0.0, atol=1e-12)
    assert w[0] == pytest.approx(9.81 * q[0] / 1.44, rel=1e-12)
    # The least change: dw^2 + |dq|^2 over the circle, by a search of the angle.
    angles = np.linspace(-np.pi, np.pi, 200001)
    x, y = 1.2 * np.cos(angles), 1.2 * np.sin(angles)
    cost = (x - 0.9) ** 2 + (y + 0.7) ** 2 + (9.81 * x / 1.44 - 1.0) ** 2
    best = angles[np.argmin(cost)]
    np.testing.assert_allclose(q, 1.2 * np.array([np.cos(best), np.sin(best)]), atol=1e-4)
    run = jaxdae.simulate(
        PENDULUM, Multipliers(), state, t1=0.02, dt=0.01, solver=RK4(),
        controller=lambda t, q, v, w: w,
    )  # fmt: skip
    np.testing.assert_allclose(run.q[-1], q, atol=1e-12)


def test_held_actuators_leave_the_coordinates_to_meet_the_program():
    """A torque of 1 N m: the rod rests where its weight takes as much."""
    state = jaxdae.consistent_state(PENDULUM, **GUESS, program=held, fixed="w1")
    x = 1.0 * 1.44 / 9.81
    np.testing.assert_array_equal(state.w, [1.0])
    # Newton's method ends at residuals of some round-offs.
    np.testing.assert_allclose(np.abs(state.q), [x, np.sqrt(1.44 - x**2)], rtol=1e-12)
    with pytest.raises(ValueError, match="no coordinate is called 'w2'"):
        jaxdae.consistent_state(PENDULUM, **GUESS, program=held, fixed=("w2",))


@pytest.mark.slow
def test_derivatives_follow_the_implicit_function_theorem():
    def torque(length):
        return jaxdae.consistent_state(DrivenPendulum(length), **GUESS, program=held).w[0]

    found = jax.jit(jax.grad(torque))(1.2)
    difference = (torque(1.2 + 1e-5) - torque(1.2 - 1e-5)) / 2e-5
    # Round-off 1e-12 of the projections over 2e-5.
    assert found == pytest.approx(float(difference), rel=1e-6)


@pytest.mark.slow
def test_the_mirror_starts_on_its_program_with_torque_and_rate():
    """Four derivatives: angle, velocity, torque, its rate, by inverse dynamics in the model."""
    mirror = AdaptiveMirror()
    assert MODELS["mirror"].controller is not None
    servo: Any = MODELS["mirror"].controller(mirror)
    exact = mirror.program_state(0.0)
    guess = [np.asarray(x) * 1.02 + 0.01 for x in (exact.q, exact.v, exact.w)]
    state = jaxdae.consistent_state(mirror, guess[0], guess[1], w=guess[2], program=servo.residuals)
    for name in ("q", "v", "w"):
        # As many conditions as unknowns: the least change is the only one.
        np.testing.assert_allclose(getattr(state, name), getattr(exact, name), rtol=1e-9)


@pytest.mark.slow
def test_programs_that_cannot_hold_are_named():
    def impossible(t, q, v, w):
        return jnp.stack([w[0] - 1.0, q @ q - 9.0])

    with pytest.raises(ConsistencyError, match=r"constraint|residual 2 of 2"):
        jaxdae.consistent_state(PENDULUM, **GUESS, program=impossible)
    beyond = lambda t, q, v, w: jnp.stack([w[0] ** 2 + 1.0])  # noqa: E731
    with pytest.raises(ConsistencyError, match=r"residual 1 of 1 is still .* \(allowed"):
        jaxdae.consistent_state(PENDULUM, **GUESS, program=beyond)
    traced = jax.jit(lambda q: jaxdae.consistent_state(PENDULUM, q, GUESS["v"], w=[1.0],
                                                       program=beyond).w)  # fmt: skip
    assert np.isnan(np.asarray(traced(jnp.asarray(GUESS["q"])))).all()
    scalar = lambda t, q, v, w: w[0]  # noqa: E731
    with pytest.raises(ValueError, match=r"returned shape \(\); psi\(t, q, v, w\) must return"):
        jaxdae.consistent_state(PENDULUM, **GUESS, program=scalar)
