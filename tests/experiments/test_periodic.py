"""Interpolation of what repeats itself."""

import jax.numpy as jnp
import numpy as np


def test_interpolation_is_exact_for_harmonics_within_the_samples(experiment):
    periodic = experiment("periodic")

    def wave(t):
        return jnp.stack([1.0 + jnp.sin(3 * t), jnp.cos(2 * t) - 0.5 * jnp.sin(t)])

    result = periodic.interpolated(wave, 2 * np.pi, 16)
    assert float(result.error) < 1e-14
    np.testing.assert_allclose(result.function(0.7), wave(0.7), atol=1e-14)
    rough = periodic.interpolated(lambda t: jnp.stack([jnp.sin(20 * t)]), 2 * np.pi, 16)
    assert float(rough.error) > 0.5
