"""Regressions that NIST certifies to eleven digits, from starts far from their solutions.

The Statistical Reference Datasets give two starts for each problem; these are the farther ones.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.tuning import LeastSquares, tune


class Regression(NamedTuple):
    model: Callable
    x: np.ndarray
    y: np.ndarray
    start: list[float]
    certified: list[float]
    squares: float


def thurber(b, x):
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (
        1 + b[4] * x + b[5] * x**2 + b[6] * x**3
    )


def mgh09(b, x):
    return b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3])


def boxbod(b, x):
    return b[0] * (1 - jnp.exp(-b[1] * x))


REGRESSIONS = {
    "Thurber": Regression(
        thurber,
        np.array([
            -3.067, -2.981, -2.921, -2.912, -2.840, -2.797, -2.702, -2.699, -2.633, -2.481, -2.363,
            -2.322, -1.501, -1.460, -1.274, -1.212, -1.100, -1.046, -0.915, -0.714, -0.566, -0.545,
            -0.400, -0.309, -0.109, -0.103, 0.010, 0.119, 0.377, 0.790, 0.963, 1.006, 1.115, 1.572,
            1.841, 2.047, 2.200,
        ]),
        np.array([
            80.574, 84.248, 87.264, 87.195, 89.076, 89.608, 89.868, 90.101, 92.405, 95.854, 100.696,
            101.060, 401.672, 390.724, 567.534, 635.316, 733.054, 759.087, 894.206, 990.785,
            1090.109, 1080.914, 1122.643, 1178.351, 1260.531, 1273.514, 1288.339, 1327.543,
            1353.863, 1414.509, 1425.208, 1421.384, 1442.962, 1464.350, 1468.705, 1447.894,
            1457.628,
        ]),
        [1000.0, 1000.0, 400.0, 40.0, 0.7, 0.3, 0.03],
        [
            1288.1396800, 1491.0792535, 583.23836877, 75.416644291, 0.96629502864, 0.39797285797,
            0.049727297349,
        ],
        5642.7082397,
    ),
    "MGH09": Regression(
        mgh09,
        np.array([4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625]),
        np.array([
            .1957, .1947, .1735, .1600, .0844, .0627, .0456, .0342, .0323, .0235, .0246
        ]),
        [25.0, 39.0, 41.5, 39.0],
        [0.19280693458, 0.19128232873, 0.12305650693, 0.13606233068],
        3.0750560385e-4,
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REGRESSIONS)
def test_far_starts_lead_to_the_certified_minimum(name):
    case = REGRESSIONS[name]
    objective = LeastSquares(lambda b: case.model(b, case.x) - case.y)
    result = tune(objective, jnp.array(case.start), steps=200)
    assert result.stop_reason == "converged"
    # Ten digits of the sum of squares, of eleven that are certified; half as many of the
    # parameters, of which it is a quadratic function near its minimum.
    np.testing.assert_allclose(result.loss, case.squares, rtol=1e-9)
    np.testing.assert_allclose(result.params, case.certified, rtol=1e-5)


def test_a_minimum_at_infinity_is_no_convergence():
    """BoxBOD: from (1, 1) there is a way down to `b2 = inf`, where no derivative is left.

    MINPACK goes there, too. The sum of squares is then that of a constant.
    """
    x, y = np.array([1.0, 2, 3, 5, 7, 10]), np.array([109.0, 149, 149, 191, 213, 224])
    objective = LeastSquares(lambda b: boxbod(b, x) - y)
    with pytest.warns(UserWarning, match="Jacobian loses rank|no step lowers the loss"):
        result = tune(objective, jnp.ones(2), steps=200)
    np.testing.assert_allclose(result.loss, np.sum((y - y.mean()) ** 2), rtol=1e-6)
    assert result.stop_reason == "stalled"
    near = tune(objective, jnp.array([100.0, 0.75]), steps=200)
    np.testing.assert_allclose(near.loss, 1168.0088766, rtol=1e-10)
    np.testing.assert_allclose(near.params, [213.80940889, 0.54723748542], rtol=1e-8)
