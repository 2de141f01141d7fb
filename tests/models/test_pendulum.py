"""Cartesian pendulum against its closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipk

from jaxdae.models import CartesianPendulum

SYSTEM = CartesianPendulum(mass=0.7, length=1.3, gravity=9.81)


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
