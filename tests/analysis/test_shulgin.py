"""Theorems about Shulgin's characteristic matrix."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.analysis import (
    characteristic_matrix,
    equilibrium,
    linearize,
    linearized_constraint,
    spectrum,
)


@pytest.fixture(scope="module")
def general(make_random_forces, take_lane):
    """A random system with every kind of force, and its equilibrium."""
    system = take_lane(make_random_forces("general", 2, seed=3), 0)
    return system, equilibrium(system, jnp.zeros(4))


@pytest.mark.slow
def test_its_roots_are_those_of_the_linearized_motion(general):
    system, eq = general
    parts = characteristic_matrix(system, eq, independent=(1, 2, 3))
    found = spectrum(linearize(system, eq, independent=(1, 2, 3)))
    # Two derivations, eigenvalues of order one.
    np.testing.assert_allclose(parts.roots(), found.others, atol=1e-10)


def test_damping_is_symmetric_and_gyroscopic_forces_skew(general):
    system, eq = general
    parts = characteristic_matrix(system, eq, independent=(1, 2, 3))
    B = -system.normal[1:] / system.normal[0]
    N = jnp.concatenate([B[None], jnp.eye(3)])
    np.testing.assert_allclose(parts.B, B[None], atol=1e-14)
    np.testing.assert_allclose(parts.A, N.T @ system.mass @ N, atol=1e-13)
    np.testing.assert_allclose(parts.Gamma, N.T @ system.damping @ N, atol=1e-13)
    np.testing.assert_allclose(parts.G, -N.T @ system.gyroscopic @ N, atol=1e-13)


def test_what_a_linearized_constraint_loses_is_its_curvature_times_the_multiplier(general):
    system, eq = general
    lost = linearized_constraint(system, eq, independent=(1, 2, 3))
    B = -system.normal[1:] / system.normal[0]
    N = jnp.concatenate([B[None], jnp.eye(3)])
    np.testing.assert_allclose(
        lost.lost_stiffness, eq.multipliers[0] * N.T @ system.curvature @ N, atol=1e-12
    )
    assert not lost.valid
    assert "loses stiffness up to" in lost.reason


@pytest.mark.slow
def test_gravity_on_a_parabola_is_lost_and_flips_the_verdict(bead):
    """With a weak spring pulling outwards only the curvature of the wire holds the bead."""
    system = bead(stiffness=-2.0)
    eq = equilibrium(system, jnp.zeros(2), u=jnp.zeros(1))
    lost = linearized_constraint(system, eq)
    weight = system.mass * system.gravity * system.curvature
    np.testing.assert_allclose(lost.C_B, [[weight]], rtol=1e-12)
    np.testing.assert_allclose(lost.P_B, 0.0, atol=1e-14)
    assert lost.roots.real.max() < 0 < lost.wrong_roots.real.max()
    assert spectrum(linearize(system, eq)).verdict == "asymptotically stable"


@pytest.mark.slow
def test_a_force_that_carries_the_weight_loses_nothing(bead):
    """C_B and the constant force are both there; only their sum matters."""
    system = bead(lift=1.3 * 9.81)
    lost = linearized_constraint(system, equilibrium(system, jnp.zeros(2), u=jnp.zeros(1)))
    assert np.abs(lost.C_B).max() > 1
    assert np.abs(lost.P_B).max() > 1
    assert lost.valid
    assert "nothing is lost" in lost.reason


@pytest.mark.slow
def test_a_velocity_constraint_is_refused(knife):
    with pytest.raises(ValueError, match="has 1 velocity constraints"):
        characteristic_matrix(knife, equilibrium(knife, jnp.zeros(3)))


class Aslant(jaxdae.System):
    """A body on a quaternion, a rod from its centre of mass to the origin, that a spring holds.

    Drag, and a force that turns with it; 7 coordinates, 6 velocities, 3 equations.
    """

    def rate(self, t, q, v):
        e, u, w = q[3], q[4:], v[3:]
        return jnp.concatenate([v[:3], -(u @ w)[None] / 2, (e * w + jnp.cross(u, w)) / 2])

    def seen(self, q, x):
        e, u = q[3], q[4:]
        return x + 2 * jnp.cross(u, jnp.cross(u, x) + e * x)

    def kinetic_energy(self, t, q, v):
        return 0.75 * v[:3] @ v[:3] + 0.5 * jnp.array([1.0, 2.0, 3.5]) @ v[3:] ** 2

    def potential_energy(self, t, q):
        aside = self.seen(q, jnp.array([0.5, 0.0, 0.0])) - jnp.array([0.5, 0.1, -0.2])
        return 1.5 * 9.81 * q[2] + 3 * aside @ aside

    def dissipation(self, t, q, v):
        return 0.2 * v[3:] @ v[3:] + 0.1 * v[3] ** 2

    def force(self, t, q, v, w, u):
        turning = 0.3 * v[4] * jnp.array([1.0, 0.0, -1.0])
        push = turning + 0.2 * self.seen(q, jnp.array([1.0, 0.0, 0.4]))
        return jnp.concatenate([jnp.array([2.0, 1.0, 0.0]), push])

    def position_constraints(self, t, q):
        return q[:3] - self.seen(q, jnp.array([0.0, 0.0, 0.8]))


@pytest.mark.slow
def test_roots_of_a_body_on_a_ball_are_those_of_the_linearized_motion():
    """In local coordinates, whichever of them are independent."""
    system = Aslant()
    eq = equilibrium(system, [0.1, 0.05, -0.79, 0.02, 0.99, 0.1, 0.0])
    expected = np.sort_complex(spectrum(linearize(system, eq)).others)
    for independent in (("v4", "v5", "v6"), ("v1", "v2", "v6")):
        parts = characteristic_matrix(system, eq, independent=independent)
        # Two derivations, eigenvalues of order one.
        np.testing.assert_allclose(np.sort_complex(parts.roots()), expected, atol=1e-10)
        assert np.abs(parts.C_B).max() > 1.0
