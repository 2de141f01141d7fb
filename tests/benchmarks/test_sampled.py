"""A recurrent network as a sampled policy: both backends compute the same."""

import jax
import numpy as np


def test_both_backends_make_the_same_runs(benchmark, monkeypatch):
    sampled = benchmark("sampled")
    monkeypatch.setattr(sampled, "END", 4 * sampled.PERIOD)
    policy, angles = sampled.Recurrent(jax.random.key(0)), np.array([0.1, -0.2, 0.3])
    native, plain = (sampled.ends(policy, angles, x, 2) for x in sampled.BACKENDS)
    # Eight steps of numbers of size one.
    np.testing.assert_allclose(native, plain, rtol=1e-12)
