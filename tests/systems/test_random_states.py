"""Random starts on the constraints, inside of compiled programs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import State
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.systems import constraint_residuals
from jaxdae.tuning import perturbed_states, random_starts

KEY = jax.random.key(7)


def test_random_starts_are_on_the_constraints_and_normal_along_them():
    system, rest = CartesianPendulum(), State([0.0, -1.0], [0.0, 0.0])

    @jax.jit
    def draw(key):
        return random_starts(system, rest, key, 500, position=1e-2, velocity=jnp.array([0.1, 0.0]))

    states = draw(KEY)
    for q, v in zip(states.q[:5], states.v[:5], strict=True):
        residuals = constraint_residuals(system, 0.0, q, v)
        np.testing.assert_allclose(jnp.append(residuals.phi, residuals.phi_dot), 0.0, atol=1e-10)
    # Along the constraint, to within four standard errors of 500.
    assert np.std(states.q[:, 0]) == pytest.approx(1e-2, rel=4 / np.sqrt(1000))
    assert np.std(states.v[:, 0]) == pytest.approx(0.1, rel=4 / np.sqrt(1000))
    same = perturbed_states(rest, KEY, 500, 1e-2, jnp.array([0.1, 0.0]), system=system)
    np.testing.assert_allclose(states.q, same.q, atol=1e-12)
    half: Any = 2.5
    with pytest.raises(TypeError, match=r"random_starts: count is 2\.5, must be an integer"):
        random_starts(system, rest, KEY, half, position=0.1, velocity=0.1)
    none: Any = rest
    with pytest.raises(TypeError, match=r"(?s)system is State.*; give the system that moves"):
        random_starts(none, rest, KEY, 2, position=0.1, velocity=0.1)
