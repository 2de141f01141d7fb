"""What few steps leave of a given violation: theory against a search by runs."""

from functools import cache

import diffrax
import numpy as np
import pytest

import jaxdae
from helpers.fixed_steps import FixedSteps
from jaxdae.solvers import RK4
from jaxdae.stability import step_gains, step_matrix
from jaxdae.stability.finite_damping import remainder

PENDULUM = jaxdae.models.CartesianPendulum()
H = 1e-3


@cache
def steps_of_a_pendulum():
    return FixedSteps(PENDULUM)


@pytest.mark.parametrize("z", [-1.5 + 0.7j, -2.0 + 0j])
@pytest.mark.parametrize("horizon", [1, 4])
def test_the_remainder_is_the_norm_of_a_product_of_steps(z, horizon):
    A = np.array([[0.0, 1.0], [-(abs(z) ** 2), 2 * z.real]])
    norms = [
        np.linalg.norm(np.linalg.matrix_power(step_matrix(A, x, RK4()), horizon), 2)
        for x in np.geomspace(0.5, 1.0, 33)
    ]
    found = remainder(RK4(), z, 2.0, horizon)
    # Coinciding roots are moved apart by 1e-5.
    np.testing.assert_allclose(found, max(norms) ** (1 / horizon), rtol=1e-4)


def left_after(solver, gains, count, steps) -> np.ndarray:
    """Worst norm of `(phi, h phi_dot)` over steps and two starts, relative to the first."""
    q, v = (np.asarray(x) for x in PENDULUM.start())
    size = len(gains)
    worst = np.zeros(size)
    for h in steps:
        # A violation of 1e-7 at either level: two of the position residual's are one of the radius.
        for off_q, off_v in ((0.5e-7, 0.0), (0.0, 0.5e-7 / H)):
            batch = np.repeat(gains, 2, axis=0)
            q0, v0 = (
                np.tile([q, q * (1 + off_q)], (size, 1)),
                np.tile([v, v + off_v * q], (size, 1)),
            )
            found = steps_of_a_pendulum().run(solver, h, count, batch, q0, v0)
            phi, rate = (x[-1, 1::2, 0] - x[-1, ::2, 0] for x in found)
            worst = np.maximum(worst, np.hypot(phi, H * rate) / 1e-7)
    return worst


@pytest.mark.parametrize("solver", [RK4(), pytest.param(diffrax.Bosh3(), marks=pytest.mark.slow)])
def test_a_search_by_runs_finds_nothing_that_leaves_a_third(solver):
    rng = np.random.default_rng(1)
    z = np.exp(rng.uniform(-0.5, 1.2, 150) + 1j * rng.uniform(np.pi / 2, np.pi, 150))
    searched = np.stack([-2 * np.real(z) / H, np.abs(z) ** 2 / H**2, np.ones(150)], axis=1)
    gains = step_gains(solver, H, margin=2.0, horizon=4)
    theory = np.array([[gains.K_D, gains.K_P, 1.0]])
    costs = left_after(solver, np.concatenate([theory, searched]), 4, (0.5 * H, 0.75 * H, H))
    assert costs[0] < 3.0 * costs[1:].min()
    # For one step: what the turn of the normal leaves, far below any other.
    gains = step_gains(solver, H)
    theory = np.array([[gains.K_D, gains.K_P, 1.0]])
    costs = left_after(solver, np.concatenate([theory, searched]), 1, (H,))
    assert costs[0] < 0.1 * costs[1:].min()
