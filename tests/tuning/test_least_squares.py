"""Least squares: certified problems, SciPy as oracle, places where the residuals are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.tuning import LeastSquares, tune

# Misra1a of NIST's Statistical Reference Datasets (nonlinear regression, lower difficulty):
# y = b1 (1 - exp(-b2 x)), with certified values and standard deviations of 11 digits.
X = np.array(
    [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760]
)
Y = np.array(
    [
        10.07,
        14.73,
        17.94,
        23.93,
        29.61,
        35.18,
        40.02,
        44.82,
        50.76,
        55.05,
        61.01,
        66.4,
        75.47,
        81.78,
    ]
)
CERTIFIED = np.array([2.3894212918e2, 5.5015643181e-4])
DEVIATIONS = np.array([2.7070075241, 7.2668688436e-6])
SUM_OF_SQUARES = 1.2455138894e-1


def misra(b):
    return b[0] * (1 - jnp.exp(-b[1] * X)) - Y


@pytest.mark.parametrize("start", [[500.0, 1e-4], [250.0, 5e-4]])
def test_a_certified_regression_is_solved_to_its_digits(start):
    result = tune(LeastSquares(misra), jnp.array(start), steps=100)
    assert result.stop_reason == "converged"
    assert "Levenberg-Marquardt, because the objective offers 14 residuals of 2" in result.method
    # Ten of eleven certified digits of the sum; the parameters, at whose optimum it is flat, eight.
    np.testing.assert_allclose(result.loss, SUM_OF_SQUARES, rtol=1e-10)
    np.testing.assert_allclose(result.params, CERTIFIED, rtol=1e-8)


def test_the_jacobian_at_the_solution_gives_the_certified_standard_deviations():
    result = tune(LeastSquares(misra), jnp.array([250.0, 5e-4]), steps=100)
    assert result.residuals is not None
    assert result.jacobian is not None
    np.testing.assert_allclose(result.residuals, misra(result.params), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.jacobian, jax.jacfwd(misra)(result.params), rtol=1e-9)
    covariance = np.linalg.inv(result.jacobian.T @ result.jacobian) * result.loss / (X.size - 2)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), DEVIATIONS, rtol=1e-7)
