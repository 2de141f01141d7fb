"""Both codes of a benchmark fit the same residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.slow
def test_our_residuals_at_the_start_and_their_derivatives_are_those_of_the_simulator(benchmark):
    """Steps of both are the same; sums of so many rows differ by round-off alone."""
    windows = benchmark("measured_windows")
    found = windows.windows(2)
    start = windows.guess(found)
    sim = windows.simulated(found, start)
    result = windows.fitted(found, start, steps=1)
    task = result.problem[0]
    fit, order = task.fit, np.argsort(windows.NAMES)
    values = fit.samples()
    rows = 2 * 2 * windows.SAMPLES  # those of starts, of which nothing is known, come after
    residuals = jax.jit(lambda x: fit.residuals(x, values, jnp.ones(2))[:rows])
    x = jnp.asarray(task.x)
    # By channel and time here, by time and channel there.
    own = np.asarray(residuals(x)).reshape(2, 2, windows.SAMPLES).swapaxes(1, 2)
    np.testing.assert_allclose(own.ravel(), sim.residuals(sim.first), rtol=1e-8, atol=1e-8)
    n, jac = len(windows.NAMES), sim.jacobian(sim.first)
    slopes = np.asarray(jax.jacfwd(residuals)(x)).reshape(2, 2, windows.SAMPLES, -1)
    slopes = slopes.swapaxes(1, 2).reshape(len(jac), -1)
    np.testing.assert_allclose(slopes[:, :n], jac[:, order], rtol=1e-6, atol=1e-6)
    by_differences = (sim.residuals(sim.first + 1e-6) - sim.residuals(sim.first - 1e-6)) / 2e-6
    np.testing.assert_allclose(jac.sum(axis=1), by_differences, rtol=1e-4, atol=1e-3)
