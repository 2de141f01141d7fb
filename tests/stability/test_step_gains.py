"""Gains by theory against zeros of stability functions, and against steps of the methods."""

import diffrax
import numpy as np
import pytest

import jaxdae
from jaxdae.solvers import RK4
from jaxdae.stability import AdamsBashforth, amplification, step_gains, step_matrix

# K_D h, K_P h^2 from the zeros of 1 + z + … + z^p / p!, to the digits that are given.
PUBLISHED = [
    (diffrax.Euler(), 2.0, 1.0),
    (diffrax.Heun(), 2.0, 2.0),
    (diffrax.Bosh3(), 1.4039, 3.7592),
    (RK4(), 3.4589, 3.7813),
]


@pytest.mark.parametrize(("solver", "K_D", "K_P"), PUBLISHED)
def test_a_violation_vanishes_in_one_step_or_two(solver, K_D, K_P):
    gains = jaxdae.Baumgarte.for_step(solver, 0.1)
    np.testing.assert_allclose([gains.K_D * 0.1, gains.K_P * 0.01], [K_D, K_P], atol=5e-5)
    H = np.array([[0.0, 1.0], [-gains.K_P, -gains.K_D]])
    # The double root of Euler's method is a simple zero.
    twice = np.linalg.matrix_power(step_matrix(H, 0.1, solver), 2)
    np.testing.assert_allclose(twice, np.zeros((2, 2)), atol=1e-13)


def test_the_gain_of_velocity_constraints_is_at_the_least_factor_of_the_negative_axis():
    gains = step_gains(RK4(), 0.02)
    # R' = 1 + z + z^2/2 + z^3/6 vanishes at -1.5961, where R = z^4 / 24.
    z = np.roots([1 / 6, 1 / 2, 1.0, 1.0])
    z = z[np.abs(z.imag) < 1e-12].real[0]
    np.testing.assert_allclose(gains.Gamma * 0.02, -z, rtol=1e-6)
    np.testing.assert_allclose(gains.velocity_factor, z**4 / 24, rtol=1e-11)


@pytest.mark.parametrize("solver", [RK4(), diffrax.Tsit5(), AdamsBashforth(2)])
@pytest.mark.parametrize("margin", [1.0, 2.0])
def test_the_step_is_within_the_limit_and_the_factor_holds(solver, margin):
    gains = step_gains(solver, 0.05, margin=margin)
    law = jaxdae.Baumgarte(gains.K_D, gains.K_P, gains.Gamma)
    assert jaxdae.step_limit(law, solver).limit >= 0.05
    steps = np.linspace(1 / margin, 1.0, 1001)
    worst = amplification(solver, gains.roots[:, None] * steps).max()
    assert worst <= gains.factor + 1e-9
