"""Rates of coordinates are made of velocities in one place, which everything asks.

The place is the identity today. Here it is another map, with a motion known in closed form.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.formulations import RealizingForces, SparseSolve
from jaxdae.solvers import Projected, RK4
from jaxdae.systems.dynamics import constraint_bias, constraint_residuals, position_rate
from jaxdae.systems.kinematics import coordinate_rate

SHEAR = ((1.0, 0.4), (-0.3, 2.0))
RATE = 1.3  # of the rotation [rad/s]


@pytest.fixture
def replaced(monkeypatch):
    """Puts another map in the place, wherever it was imported.

    Traces are kept by the classes of systems, and those of this file know no other map.
    """
    return lambda other: monkeypatch.setattr(coordinate_rate, "__code__", other.__code__)


def sheared(system, t, q, v):
    return system.shear(t, q) @ v


def turning(system, t, q, v):  # noqa: ARG001
    return v[0] * system.turn @ q


class OnCircle(jaxdae.System):
    """`q` on the unit circle, turned at the one angular velocity `v`; a constraint of both."""

    turn: jax.Array

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return jnp.stack([q[0] * q[1] + t * q[0]])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([q[0] * v[0] + t])


class Sheared(jaxdae.System):
    """A point on a circle `x x = 1`, pulled to its centre: coordinates `q = A x`, velocities `x'`.

    The pull takes no part in the motion, unless its force on the velocities is a wrong one.
    """

    def shear(self, t, q):
        del t
        return jnp.asarray(SHEAR, q.dtype)

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        x = jnp.linalg.solve(self.shear(t, q), q)
        return 1.5 * x @ x

    def position_constraints(self, t, q):
        x = jnp.linalg.solve(self.shear(t, q), q)
        return jnp.stack([x @ x - 1.0])


def test_fewer_velocities_than_coordinates(replaced):
    """With `q = (cos a, sin a)` and `a' = v` the constraints are functions of the angle."""
    replaced(turning)
    system = OnCircle(jnp.array([[0.0, -1.0], [1.0, 0.0]]))
    t, a, v = 0.7, 0.4, jnp.array([RATE])
    q = jnp.array([np.cos(a), np.sin(a)])

    def levels(s):
        """Both constraints at constant velocity, at a time `t + s`."""
        angle, now = a + RATE * s, t + s
        position = jnp.sin(2 * angle) / 2 + now * jnp.cos(angle)
        return position, jnp.cos(angle) * RATE + now

    rates = jax.jacfwd(levels)
    gamma, phi, phi_dot = constraint_bias(system, jnp.asarray(t), q, v)
    exact = levels(0.0), rates(0.0), jax.jacfwd(rates)(0.0)
    wanted = [exact[2][0], exact[1][1]]
    # Round-off of a handful of operations on numbers of order one.
    np.testing.assert_allclose(phi, [exact[0][0]], atol=1e-14)
    np.testing.assert_allclose(phi_dot, [exact[1][0], exact[0][1]], atol=1e-14)
    np.testing.assert_allclose(gamma, wanted, atol=1e-14)
    found = constraint_residuals(system, t, q, v)
    np.testing.assert_allclose(found.phi_dot, phi_dot, atol=1e-14)
    column = position_rate(system, jnp.asarray(t), q, jnp.ones(1))
    np.testing.assert_allclose(column, [np.cos(2 * a) - t * np.sin(a)], atol=1e-14)


GAINS = jaxdae.Baumgarte(K_D=2.0, K_P=1.0)
FORMULATIONS = [
    jaxdae.Multipliers(GAINS),
    pytest.param(jaxdae.Multipliers(GAINS, SparseSolve()), marks=pytest.mark.slow),
    jaxdae.NullSpace(),
    jaxdae.Hamiltonian(),
    pytest.param(jaxdae.VelocityElimination(independent=(1,)), marks=pytest.mark.slow),
    pytest.param(jaxdae.QuasiVelocities(), marks=pytest.mark.slow),
]


def rotation(formulation, backend: Any = "auto", **options):
    """The sheared point after 0.5 s, and where it is exactly."""
    x, turn = np.array([0.8, 0.6]), np.array([-0.6, 0.8])
    A = np.array(SHEAR)
    state = jaxdae.State(jnp.asarray(A @ x), jnp.asarray(RATE * turn))
    options = {"dt": 0.01, "solver": RK4()} | options
    run = jaxdae.simulate(Sheared(), formulation, state, t1=0.5, backend=backend, **options)
    angle = 0.5 * RATE
    return run.q[-1], A @ (np.cos(angle) * x + np.sin(angle) * turn)


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda x: type(x).__name__)
def test_every_formulation_moves_along_the_same_rates(formulation, replaced):
    replaced(sheared)
    found, exact = rotation(formulation)
    # Fourth order: (0.013)^4 in each of 50 steps, and some.
    np.testing.assert_allclose(found, exact, atol=1e-8)


@pytest.mark.slow
def test_so_do_both_backends_and_projected_steps(replaced):
    replaced(sheared)
    solver = Projected(RK4())
    for backend in ("plain", "native"):
        found, exact = rotation(jaxdae.Multipliers(), backend, solver=solver)
        np.testing.assert_allclose(found, exact, atol=1e-8)


@pytest.mark.slow
def test_so_do_realizing_forces(replaced):
    """They act on a violation, and leave the circle by the inverse of their stiffness."""
    replaced(sheared)
    law = jaxdae.formulations.LinearLaw(1e3)
    found, exact = rotation(RealizingForces(law), dt=2e-4, solver=RK4())
    np.testing.assert_allclose(found, exact, atol=2e-3)
