"""What the tests of the models share."""

import jax
import numpy as np
import pytest

from jaxdae.systems import evaluate

_evaluate = jax.jit(evaluate)


def solve_dynamics(system, t, q, v, w=None, u=None):
    """Acceleration and multipliers from the saddle-point system, by numpy's dense solver."""
    d = jax.tree.map(np.asarray, _evaluate(system, t, q, v, w, u))
    n, c = d.mass.shape[0], d.jac.shape[0]
    matrix = np.block([[d.mass, d.jac.T], [d.jac, np.zeros((c, c))]])
    solution = np.linalg.solve(matrix, np.concatenate([d.force, -d.gamma]))
    return solution[:n], solution[n:]


@pytest.fixture(scope="session")
def dynamics():
    """Compiled `evaluate(system, t, q, v)`."""
    return _evaluate


@pytest.fixture(scope="session")
def saddle_point():
    """Compiled acceleration and multipliers, `(system, t, q, v, w, u) -> (a, lam)`."""
    return solve_dynamics
