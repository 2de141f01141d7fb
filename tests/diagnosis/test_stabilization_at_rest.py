"""A stabilization vanishes with the residuals: `Phi(., 0, 0) = 0`."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import State
from jaxdae.solvers import RK4


class Pendulum(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 9.81 * q[1]

    def position_constraints(self, t, q):
        del t
        return jnp.array([q @ q - 1])


START = State(jnp.array([1.0, 0.0]), jnp.zeros(2))


def run(offset, formulation=jaxdae.Multipliers, **settings):
    def law(t, q, v, phi, phi_dot):
        return -25 * phi - 10 * phi_dot + offset(t, q, v)

    return jaxdae.simulate(
        Pendulum(), formulation(law), START, t1=1.0, dt=0.01, solver=RK4(), **settings
    )


FORMULATIONS = [
    jaxdae.Multipliers,
    lambda law: jaxdae.Penalty(1e3, law),
    lambda law: jaxdae.AugmentedLagrangian(10.0, law, iterations=3),
    jaxdae.Hamiltonian,
    jaxdae.NullSpace,
    lambda law: jaxdae.QuasiVelocities(stabilization=law),
]


@pytest.mark.parametrize("formulation", FORMULATIONS)
@pytest.mark.parametrize("t1", [1.0, -1.0])
def test_a_constant_is_refused(formulation, t1):
    def law(t, q, v, phi, phi_dot):
        del t, q, v
        return 1 - 25 * phi - 10 * phi_dot

    with pytest.raises(ValueError, match=r"is 1 for residuals of zero, and must be zero there"):
        jaxdae.simulate(Pendulum(), formulation(law), START, t1=t1)


def test_what_depends_on_the_state_is_warned_of_at_the_start():
    with pytest.warns(RuntimeWarning, match=r"is 0\.5 for residuals of zero.* at the start"):
        made = run(lambda t, q, v: 0.5 * q[0])  # noqa: ARG005
    # phi'' + 10 phi' + 25 phi = q0 / 2 with q0 of the order of one: up to 0.02.
    assert 1e-3 < np.abs(made.violation.phi).max() < 0.02


def test_what_vanishes_at_the_start_alone_is_warned_of_after_the_run():
    with pytest.warns(RuntimeWarning, match=r"reaches \d.* at t = .* leaves the constraints"):
        run(lambda t, q, v: 0.5 * q[1])  # noqa: ARG005


def test_laws_that_vanish_are_not_warned_of():
    made = run(lambda t, q, v: 0.0 * q[0])  # noqa: ARG005
    assert np.abs(made.violation.phi).max() < 1e-4
