"""Where linear theory ends, and the bound that holds within it."""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.fixed_steps import FixedSteps
from jaxdae.models.registry import get_model
from jaxdae.solvers import AdamsBashforth, RK4
from jaxdae.stability import (
    constraint_mobility,
    linear_range,
    step_gains,
    step_matrix,
)

PENDULUM = jaxdae.models.CartesianPendulum()


@pytest.mark.parametrize("solver", [diffrax.Euler(), RK4(), diffrax.Bosh3(), diffrax.Kvaerno3()])
@pytest.mark.parametrize("margin", [1.0, 1.5, 4.0])
def test_the_bound_holds_for_steps_of_the_range_in_any_order(solver, margin):
    gains = step_gains(solver, 0.1, margin=margin)
    H = np.array([[0.0, 1.0], [-gains.K_P, -gains.K_D]])
    unit = np.array([np.sqrt(gains.K_P), 1.0])
    rng = np.random.default_rng(3)
    sharpness = []
    for _ in range(12):
        product = np.eye(2)
        for n in range(1, 7):
            product = step_matrix(H, 0.1 * rng.uniform(1 / margin, 1.0), solver) @ product
            norm = np.linalg.norm(unit[:, None] * product / unit, 2)
            assert norm <= gains.bound(n) + 1e-12
            sharpness.append(norm / max(gains.bound(n), 1e-12))
    # Of no use if it were far above what happens.
    assert margin == 1.0 or max(sharpness) > 0.5
    assert gains.bound(0) == 1.0


def test_a_multistep_method_has_no_bound_of_this_kind():
    assert np.isnan(step_gains(AdamsBashforth(2), 0.1).bound(3))


def test_the_range_of_a_circle_is_known():
    """`|q|^2 - l^2`: `N = q / (2 l^2)`, so that `phi_qq[N, N] = 1 / (2 l^2)`."""
    state = jaxdae.State(jnp.array([2.0, 0.0]), jnp.array([0.0, 3.0]))
    found = linear_range(jaxdae.models.CartesianPendulum(length=2.0), 0.0, state, tolerance=0.1)
    np.testing.assert_allclose(found.violation, 4 * 4.0 * 0.1, rtol=1e-12)
    # The normal does not change its length on a circle, only its direction.
    np.testing.assert_allclose(found.rate, 0.0, atol=1e-15)


def test_beyond_the_range_curvature_leaves_more_than_the_tolerance_and_within_it_less():
    q, v = PENDULUM.start()
    tolerance = 0.05
    limit = linear_range(PENDULUM, 0.0, jaxdae.State(q, v), tolerance=tolerance).violation
    h = 1e-4
    gains = step_gains(RK4(), h)
    sizes = limit * np.array([0.05, 0.1, 20.0])
    starts = np.sqrt(1 + sizes)[:, None] * np.asarray(q)
    rows = np.broadcast_to([gains.K_D, gains.K_P, 1.0], (3, 3))
    found = FixedSteps(PENDULUM).run(RK4(), h, 1, rows, starts, v)
    left = np.abs(found.phi[0, :, 0]) / sizes
    # Proportional to the violation; the stages of RK4 leave several times what one move would.
    np.testing.assert_allclose(left[1] / left[0], 2.0, rtol=0.05)
    assert left[0] < tolerance < left[2]


def test_the_range_shrinks_to_nothing_at_a_singular_position():
    system: Any = get_model("slider-crank").system()
    limits = []
    for off in (0.02, 0.002):
        q, v = system.at_crank(0.5 * np.pi - off, 1.0)
        limits.append(linear_range(system, 0.0, jaxdae.State(q, v)).violation)
    # With the square of the least singular value, which is proportional to the angle.
    np.testing.assert_allclose(limits[0] / limits[1], 100.0, rtol=0.1)
    dependent = linear_range(PENDULUM, 0.0, jaxdae.State(jnp.zeros(2), jnp.ones(2)))
    assert dependent == (0.0, np.inf)


class Line(jaxdae.System):
    """A point in the plane, on a line."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q[0] - q[1]])


def test_constraints_that_are_linear_have_no_end_of_linear_theory():
    found = linear_range(Line(), 0.0, jaxdae.State(jnp.zeros(2), jnp.ones(2)))
    assert found == (np.inf, 0.0)


def test_what_has_no_range_is_refused():
    disk = get_model("disk").system()
    state = jaxdae.State(*disk.start())
    with pytest.raises(ValueError, match="the system has none"):
        linear_range(disk, 0.0, state)
    with pytest.raises(ValueError, match=r"tolerance is -1\.0"):
        linear_range(PENDULUM, 0.0, jaxdae.State(*PENDULUM.start()), tolerance=-1.0)


def test_the_mobility_of_a_point_on_a_rod():
    heavy = jaxdae.models.CartesianPendulum(mass=2.0, length=3.0)
    # J = 2 q: 4 l^2 / m.
    found = constraint_mobility(heavy, 0.0, jaxdae.State(*heavy.start()))
    np.testing.assert_allclose(found, [[18.0]], rtol=1e-12)
