"""Cartesian pendulum against its closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipj, ellipk

from jaxdae import Baumgarte, Multipliers, simulate
from jaxdae.models import CartesianPendulum
from jaxdae.systems import State

SYSTEM = CartesianPendulum(mass=0.7, length=1.3, gravity=9.81)


def swing(t, amplitude):
    """Angle and rate at time t after release, by Jacobi's elliptic functions."""
    k, frequency = np.sin(0.5 * amplitude), np.sqrt(SYSTEM.gravity / SYSTEM.length)
    sn, cn, dn, _ = ellipj(ellipk(k**2) - frequency * np.asarray(t), k**2)
    angle = 2 * np.arcsin(k * sn)
    return angle, -2 * k * frequency * cn * dn / np.cos(0.5 * angle)


@pytest.mark.parametrize("seed", range(3))
def test_multiplier_is_the_closed_form(seed, saddle_point):
    angle, rate = np.random.default_rng(seed).normal(size=2) * (2.0, 5.0)
    q = SYSTEM.length * jnp.array([np.sin(angle), -np.cos(angle)])
    v = SYSTEM.length * rate * jnp.array([np.cos(angle), np.sin(angle)])
    _, lam = saddle_point(SYSTEM, 0.0, q, v)
    # a 3 x 3 solve of moderate condition: round-off
    np.testing.assert_allclose(SYSTEM.multiplier(q, v), lam, rtol=1e-12, atol=1e-12)


def test_tension_at_the_bottom_after_horizontal_release_is_three_weights():
    speed = np.sqrt(2 * SYSTEM.gravity * SYSTEM.length)
    lam = SYSTEM.multiplier(jnp.array([0.0, -SYSTEM.length]), jnp.array([speed, 0.0]))
    tension = 2 * SYSTEM.length * float(lam[0])
    assert tension == pytest.approx(3 * SYSTEM.mass * SYSTEM.gravity, rel=1e-14)


@pytest.mark.parametrize("amplitude", [1e-4, 0.5, np.pi / 2, 3.0, 3.14159])
def test_period_is_the_complete_elliptic_integral(amplitude):
    exact = 4 * np.sqrt(SYSTEM.length / SYSTEM.gravity) * ellipk(np.sin(0.5 * amplitude) ** 2)
    # near pi, 1 - k^2 loses digits in ellipk's argument: eps / (1 - k^2) / K, below 1e-5
    rtol = 1e-14 if amplitude < 3.1 else 1e-5
    assert float(SYSTEM.period(amplitude)) == pytest.approx(exact, rel=rtol)


def test_period_scales_with_length_and_gravity_and_not_with_mass():
    period, slope = jax.value_and_grad(lambda system: system.period(1.0))(SYSTEM)
    assert float(slope.length) == pytest.approx(float(period) / (2 * SYSTEM.length), rel=1e-14)
    assert float(slope.gravity) == pytest.approx(-float(period) / (2 * SYSTEM.gravity), rel=1e-14)
    assert float(slope.mass) == 0.0


@pytest.mark.slow
def test_motion_is_the_elliptic_function():
    amplitude = 2.0
    state = State(*SYSTEM.released_from(amplitude))
    formulation = Multipliers(Baumgarte.critical(10.0))
    t1 = float(SYSTEM.period(amplitude))
    sol = simulate(SYSTEM, formulation, state, t1=t1)
    angle, rate = swing(sol.ts, amplitude)
    exact = SYSTEM.length * np.stack([np.sin(angle), -np.cos(angle)], axis=1)
    velocity = SYSTEM.length * rate[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    assert sol.success
    # tolerance 1e-8 per step over some 50 steps, and dense output of lower order between them
    np.testing.assert_allclose(sol.q, exact, atol=5e-7)
    np.testing.assert_allclose(sol.v, velocity, atol=5e-6)
    np.testing.assert_allclose(sol.q[-1], state.q, atol=1e-7)
