"""Equilibrium, linearization and spectrum of a mechanism of dependent constraints."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxdae


def test_the_platform_hangs_and_swings_as_a_pendulum(mechanisms, on_curve):
    """Three equal cranks: `m s'' = -V'(s)`, so the roots are `+- i sqrt(V'' / m)`."""
    system = mechanisms["platform"]()
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
