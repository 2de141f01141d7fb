"""Equilibrium, linearization and spectrum of a mechanism of dependent constraints."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import jaxdae
from helpers.dependent_mechanisms import on_curve, Platform


@pytest.mark.slow
def test_the_platform_hangs_and_swings_as_a_pendulum():
    """Three equal cranks: `m s'' = -V'(s)`, so the roots are `+- i sqrt(V'' / m)`."""
    system = Platform()
    guess = on_curve(system, -1.4, 0.0, 1e-6)
    rest = jaxdae.equilibrium(system, guess.q)
    hanging = system.curve(jnp.asarray(-np.pi / 2))
    np.testing.assert_allclose(rest.q, hanging, rtol=0, atol=1e-9)
    q, rate = jax.jvp(system.curve, (jnp.asarray(-np.pi / 2),), (1.0,))
    inertia = 2 * system.kinetic_energy(0.0, q, rate)
    # V = -9.81 (2 + 0.4) 0.8 cos(s - s0)
    frequency = np.sqrt(9.81 * 2.4 * 0.8 / inertia)
    linear = jaxdae.linearize(system, rest)
    assert linear.position_constraints == 6
    found = jaxdae.spectrum(linear)
    np.testing.assert_allclose(np.sort(found.others.imag), [-frequency, frequency], rtol=1e-9)
    np.testing.assert_allclose(found.others.real, 0.0, atol=1e-9)
    assert found.verdict == "stable"


@pytest.mark.slow
@pytest.mark.parametrize("off", [1e-8, 0.1])
def test_the_consistent_state_is_the_nearest_of_the_motion(off):
    """In the mass metric, found along the curve of the minimal coordinate."""
    system = Platform()
    # Directions from which Newton's method on all constraints does not converge.
    rng = np.random.default_rng(1)
    given = system.curve(jnp.asarray(-0.3)) + off * rng.normal(size=7)
    wanted = 0.1 * np.arange(7.0)
    state = jaxdae.consistent_state(system, given, wanted)
    weight = np.diag([2.0, 2.0, 0.3, 0.05, 0.05, 0.4, 0.4])

    def on_curve(angle):
        tip = 0.8 * np.array([np.cos(angle), np.sin(angle)])
        return np.array([*tip, 0.0, angle, angle, tip[0] + 1, tip[1]])

    def distance(angle):
        move = on_curve(angle) - np.asarray(given)
        return move @ weight @ move

    least: Any = minimize_scalar(distance, bracket=(-0.31, -0.29), tol=1e-12)
    angle = least.x
    # The minimum is known to the root of the round-off.
    np.testing.assert_allclose(state.q, on_curve(angle), rtol=0, atol=1e-7)
    along = 0.8 * np.array([-np.sin(angle), np.cos(angle)])
    along = np.array([*along, 0.0, 1.0, 1.0, *along])
    rate = along @ weight @ wanted / (along @ weight @ along)
    np.testing.assert_allclose(state.v, rate * along, rtol=0, atol=1e-7)
