"""Slider-crank against an independent kinetic energy and the closed form for equal links."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.equal_links import branch, branch_energy
from jaxdae import simulate
from jaxdae.models import get_model, SliderCrank
from jaxdae.systems import State

GENERAL = SliderCrank(0.4, 1.1, 0.7, 1.9, 0.5)
EQUAL = SliderCrank(crank_mass=0.7, rod_mass=1.9, slider_mass=0.5)


def constraint_jacobian(system, q):
    return np.asarray(jax.jacfwd(system.position_constraints, 1)(0.0, q))


def test_kinetic_energy_is_that_of_the_material_of_the_bars():
    """Gauss quadrature of rho |velocity|^2 along each bar, exact for squares."""
    q, v = np.random.default_rng(0).normal(size=(2, 3))
    nodes, weights = np.polynomial.legendre.leggauss(2)
    s, w = 0.5 * (nodes + 1), 0.5 * weights
    r, rod = GENERAL.crank_length, GENERAL.rod_length
    across = [np.array([-np.sin(a), np.cos(a)]) * rate for a, rate in zip(q, v, strict=True)]
    crank = s[:, None] * r * across[0]
    bar = r * across[0] + s[:, None] * rod * across[1]
    energy = 0.5 * (
        GENERAL.crank_mass * w @ np.sum(crank**2, axis=1)
        + GENERAL.rod_mass * w @ np.sum(bar**2, axis=1)
        + GENERAL.slider_mass * v[2] ** 2
    )
    assert float(GENERAL.kinetic_energy(0.0, q, v)) == pytest.approx(energy, rel=1e-14)


def test_equal_links_lose_rank_in_line():
    for sign in (-1.0, 1.0):
        q, _ = branch(EQUAL, jnp.asarray(sign * np.pi / 2), jnp.asarray(1.0))
        np.testing.assert_allclose(EQUAL.position_constraints(0.0, q), 0.0, atol=1e-15)
        values = np.linalg.svd(constraint_jacobian(EQUAL, q), compute_uv=False)
        assert values[0] > 1.0
        assert values[1] < 1e-15


def test_longer_rod_is_regular_all_round(dynamics):
    for angle in np.linspace(0.0, 2 * np.pi, 24):
        q, v = GENERAL.at_crank(angle, 3.0)
        d = dynamics(GENERAL, 0.0, q, v)
        np.testing.assert_allclose(d.phi, 0.0, atol=1e-15)
        np.testing.assert_allclose(d.phi_dot, 0.0, atol=1e-14)
        # |l cos psi| >= sqrt(l^2 - r^2) = 1.02 with the slider's own column 1
        assert np.linalg.svd(np.asarray(d.jac), compute_uv=False)[1] > 0.6


def test_start_of_a_short_rod_out_of_reach_is_marked():
    q, _ = SliderCrank(crank_length=1.0, rod_length=0.5).at_crank(np.pi / 2)
    assert np.isnan(q[1])


@pytest.mark.parametrize("theta", [-2.5, -0.4, 0.0, 1.0, 2.0])
def test_equal_links_move_as_their_one_equation(theta, saddle_point):
    theta, rate = jnp.asarray(theta), jnp.asarray(1.7)
    q, v = branch(EQUAL, theta, rate)
    np.testing.assert_allclose(EQUAL.position_constraints(0.0, q), 0.0, atol=1e-15)
    energy = EQUAL.kinetic_energy(0.0, q, v) + EQUAL.potential_energy(0.0, q)
    assert float(branch_energy(EQUAL, theta, rate)) == pytest.approx(float(energy), rel=1e-14)
    # dE/dt = 0 along the motion gives the acceleration of the crank
    by_theta, by_rate = jax.grad(branch_energy, (1, 2))(EQUAL, theta, rate)
    a, _ = saddle_point(EQUAL, 0.0, q, v)
    assert float(a[0]) == pytest.approx(float(-rate * by_theta / by_rate), rel=1e-12)


@pytest.mark.slow
def test_penalty_passes_the_in_line_position_and_keeps_the_energy():
    entry = get_model("slider-crank")
    system = entry.system()
    assert isinstance(system, SliderCrank)
    state = State(*entry.start())
    with pytest.warns(
        RuntimeWarning, match=r"passed 6 near-singular position\(s\), at t = 0\.2498"
    ):
        sol = simulate(system, entry.formulation(), state, t1=entry.t1)
    assert sol.success
    theta, rate = sol.q[:, 0], sol.v[:, 0]
    # once round: both in-line positions were passed
    assert float(theta[-1]) > 2 * np.pi
    energy = branch_energy(system, theta, rate)
    # The violation of the penalty is as large as the multiplier, which grows without bound
    # towards the in-line positions; what remains of it afterwards is the error made there.
    away = np.abs(np.cos(theta)) > 0.3
    assert 0.6 * theta.size < np.count_nonzero(away) < theta.size
    np.testing.assert_allclose(energy, energy[0], rtol=1e-2)
    np.testing.assert_allclose(energy[away], energy[0], rtol=5e-4)
    np.testing.assert_allclose(sol.q[away, 1], -theta[away], atol=1e-4)
