"""Smooth friction that is too steep for the steps is said, with the rate and the remedy."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import FORMULATION, motion, Oscillator, place
from jaxdae.identification import Channel, Experiment, identify, Measurement

TIMES = np.linspace(0.1, 2.0, 20)


class Rubbing(Oscillator):
    slip: float = 0.1

    def force(self, t, q, v, w, u):
        return -0.2 * jnp.tanh(v / self.slip)


def fitted(slip, dt=0.05):
    values = motion(TIMES, 4.0, 0.2) + 0.05 * np.random.default_rng(0).normal(size=20)
    one = Experiment(TIMES, {"place": Measurement(values)}, jaxdae.State([1.0], [0.0]))
    return identify(
        lambda p: (Rubbing(stiffness=p["stiffness"], slip=slip), FORMULATION),
        {"stiffness": jnp.array(3.5)}, one, channels={"place": Channel(place, "m")}, dt=dt,
    )  # fmt: skip


def test_the_rate_at_rest_is_that_of_the_slope_by_the_mass():
    """`c / v_s + d` of a unit mass: 0.2 / 0.004 + 0.2 = 50.2 1/s, 2.51 in a step of 1/20 s."""
    with pytest.warns(RuntimeWarning, match="at a rate of 50.2 1/s, 2.5 times within a step"):
        found = fitted(0.004)
    assert found.steep_friction is not None
    np.testing.assert_allclose(found.steep_friction.rate, 50.2, rtol=1e-6)
    assert any("Take dt below 0.02 s" in x.message for x in found.findings)


def test_just_short_of_it_nothing_is_said():
    """38.7 1/s within the same step: 1.93; and adaptive steps know by themselves."""
    assert fitted(0.0052).steep_friction is None
