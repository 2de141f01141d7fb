"""Saturation, rates and steps: values, and the derivatives that are documented."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.control import Quantizer, RateLimit, Saturation


def test_a_saturated_signal_does_not_change_with_what_is_behind_it():
    limit = Saturation(jnp.array([-1.0, -jnp.inf]), 0.5)
    signal = jnp.array([-2.0, -7.0])
    np.testing.assert_array_equal(limit(signal), [-1.0, -7.0])
    np.testing.assert_array_equal(jax.jacrev(limit)(signal), np.diag([0.0, 1.0]))
    np.testing.assert_array_equal(Saturation(upper=2.0)(jnp.array([-9.0, 3.0])), [-9.0, 2.0])
    by_bound = jax.jacfwd(lambda x: Saturation(upper=x)(jnp.array([-9.0, 3.0])))(2.0)
    np.testing.assert_array_equal(by_bound, [0.0, 1.0])


def test_a_rate_limit_is_reached_and_left():
    limit = RateLimit(2.0, 0.1)
    memory, given = limit.memory, []
    for u in (1.0, 1.0, 0.3, 0.0, -1.0):
        y, memory = limit(jnp.array([u]), memory)
        given.append(y[0])
    np.testing.assert_allclose(given, [0.2, 0.4, 0.3, 0.1, -0.1], rtol=0, atol=1e-15)


def test_steps_are_rounded_to_and_passed_straight_through_by_derivatives():
    """Half steps to even ones; in both modes."""
    quantizer = Quantizer(0.25)
    x = jnp.array([0.12, 0.13, -0.6, 0.125, 0.375])
    np.testing.assert_array_equal(quantizer(x), [0.0, 0.25, -0.5, 0.0, 0.5])
    for differentiate in (jax.jacfwd, jax.jacrev):
        np.testing.assert_array_equal(differentiate(quantizer)(x), np.eye(5))
        by_step = differentiate(lambda s: Quantizer(s)(x))(0.25)
        np.testing.assert_array_equal(by_step, np.zeros(5))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_what_is_no_limit_is_refused(bad):
    with pytest.raises(ValueError, match="rate must be positive and finite"):
        RateLimit(bad, 0.1)
    with pytest.raises(ValueError, match="period must be positive and finite"):
        RateLimit(1.0, bad)
    with pytest.raises(ValueError, match="step must be positive and finite"):
        Quantizer(bad)


def test_bounds_that_cross_are_refused():
    crossing: Any = ((1.0, 0.5), (np.array([0.0, 2.0]), 1.0), (np.nan, 1.0))
    for lower, upper in crossing:
        with pytest.raises(ValueError, match=r"bounds cross: lower = .* must be below upper"):
            Saturation(lower, upper)
