"""Measured decay of small violations against stability functions."""

import diffrax
import numpy as np
import pytest

from helpers.fixed_steps import FixedSteps
from jaxdae.models.registry import get_model
from jaxdae.solvers import RK4
from jaxdae.stability import step_gains, step_matrix

METHODS = [
    diffrax.Euler(),
    diffrax.Heun(),
    diffrax.Bosh3(),
    RK4(),
    diffrax.Dopri5(),
    diffrax.Tsit5(),
    diffrax.Dopri8(),
]
# A step in which the motion turns by a thousandth to a hundredth of a radian: the normal direction
# of the constraints turns with it, which linear theory leaves out.
STEPS = {"pendulum": 1e-3, "disk": 1e-3, "andrews": 2e-6}
CASES = [("pendulum", x) for x in METHODS] + [("disk", RK4()), ("andrews", diffrax.Dopri5())]


@pytest.mark.parametrize(("name", "solver"), CASES)
def test_a_small_violation_decays_as_the_stability_function_says(name, solver):
    system = get_model(name).system()
    runs, (q, v) = FixedSteps(system), system.start()
    h, count = STEPS[name], 4
    gains = step_gains(solver, h, margin=4.0)
    off = 1e-7 * np.cos(1.0 + np.arange(q.size))
    starts = [np.stack([x, x + y]) for x, y in ((q, off), (v, off[::-1] / h))]
    row = [gains.K_D, gains.K_P, gains.Gamma]
    found = runs.run(solver, h, count, [row, row], starts[0], starts[1])
    before = runs.residuals(0.0, starts[0], starts[1])
    m = before.phi.shape[-1]
    # What the violation adds to a run without one.
    first = np.concatenate([before.phi, h * before.phi_dot], axis=-1)
    last = np.concatenate([found.phi[-1], h * found.phi_dot[-1]], axis=-1)
    first, last = first[1] - first[0], last[1] - last[0]
    H = np.array([[0.0, 1.0], [-gains.K_P * h**2, -gains.K_D * h]])
    of_positions = np.linalg.matrix_power(step_matrix(H, 1.0, solver), count)
    of_velocities = step_matrix([[-gains.Gamma * h]], 1.0, solver)[0, 0] ** count
    expected = [
        *(of_positions @ np.stack([first[:m], first[m : 2 * m]])).ravel(),
        *(of_velocities * first[2 * m :]),
    ]
    measured, predicted = (np.linalg.norm(x) ** (1 / count) for x in (last, expected))
    # The bound promised; what is left is the turn of the normal direction.
    np.testing.assert_allclose(measured, predicted, rtol=0.05)
