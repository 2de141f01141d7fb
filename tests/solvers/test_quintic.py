"""Hermite's quintic polynomial: exact for what it can be, and in runs of any kind."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.solvers.quintic import QuinticHermite, two_derivatives

COEFFICIENTS = np.array([0.3, -1.2, 0.7, 2.0, -0.4, 1.1])


def polynomial(t):
    return jnp.stack([jnp.polyval(jnp.asarray(COEFFICIENTS), t), t**2])


@pytest.mark.parametrize(("t0", "t1"), [(0.5, 1.3), (1.3, 0.5)])
def test_polynomials_of_degree_five_are_met_everywhere(t0, t1):
    slope = jax.jacfwd(polynomial)
    ends: dict[str, Any] = {}
    for name, t in (("0", t0), ("1", t1)):
        # Not of the state: along the motion the time alone moves.
        k, c = two_derivatives(
            lambda t, y: slope(t) + 0 * y, t, polynomial(t), jnp.asarray(t1 - t0)
        )
        ends |= {"y" + name: polynomial(t), "k" + name: k, "c" + name: c}
    found = QuinticHermite(t0=jnp.asarray(t0), t1=jnp.asarray(t1), **ends)
    for t in (0.5, 0.7, 1.0, 1.3):
        np.testing.assert_allclose(found.evaluate(t), polynomial(t), rtol=1e-13)
    change = polynomial(1.1) - polynomial(0.6)
    np.testing.assert_allclose(found.evaluate(0.6, 1.1), change, rtol=1e-12)


def test_a_step_of_no_length_has_its_end_everywhere():
    y, none = jnp.array([1.0, 2.0]), jnp.zeros(2)
    found = QuinticHermite(
        t0=jnp.ones(()), t1=jnp.ones(()), y0=y, y1=y, k0=none, k1=none, c0=none, c1=none
    )
    np.testing.assert_array_equal(found.evaluate(1.0), y)
    slope = jax.grad(lambda t: jnp.sum(found.evaluate(t)))(1.0)
    assert slope == 0


def test_derivatives_along_the_motion_are_those_of_a_state_that_moves():
    """`y' = t y`, so that `y'' = y + t^2 y`."""
    k, c = two_derivatives(lambda t, y: t * y, 0.7, jnp.array([1.0, -2.0]), jnp.asarray(0.1))
    np.testing.assert_allclose(k, 0.1 * 0.7 * np.array([1.0, -2.0]), rtol=1e-15)
    np.testing.assert_allclose(c, 0.01 * 1.49 * np.array([1.0, -2.0]), rtol=1e-14)
