"""Hamilton's equations: Legendre transform, closed forms, agreement with multipliers."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae import Baumgarte, Multipliers, SingularMassSolve, State
from jaxdae.formulations.hamiltonian import (
    CanonicalState,
    Hamiltonian,
    hamiltonian,
    is_quadratic,
    velocity,
)
from jaxdae.models import CartesianPendulum, SliderCrank
from jaxdae.systems import generalized_energy, momentum

# Solves with fewer than ten unknowns and condition numbers below 1e3.
ROUND_OFF: Any = {"rtol": 1e-10, "atol": 1e-10}
GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


class Relativistic(jaxdae.System):
    """A particle in a plane, `T = m c^2 (1 - sqrt(1 - v^2/c^2))`, on a circle of radius one."""

    mass: float = 1.5
    light: float = 2.0
    field: float = 0.7

    def kinetic_energy(self, t, q, v):
        return self.mass * self.light**2 * (1 - jnp.sqrt(1 - v @ v / self.light**2))

    def potential_energy(self, t, q):
        return self.field * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - 1])


class DeclaredMass(CartesianPendulum):
    """A pendulum that declares its mass matrix."""

    def mass_matrix(self, t, q):
        return self.mass * jnp.eye(q.size, dtype=q.dtype)


class HasNorm(jaxdae.System):
    """Quadratic, but the program of its Hessian does not show it."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * jnp.linalg.norm(v + 1.0) ** 2


@pytest.mark.slow
def test_hamiltonian_of_the_relativistic_particle_is_the_textbook_one(rng):
    """H = c sqrt(p^2 + m^2 c^2) - m c^2 + V, v = dH/dp = c p / sqrt(p^2 + m^2 c^2)."""
    system = Relativistic()
    q, p = jnp.asarray(rng.normal(size=2)), jnp.array([0.6, -1.1])
    root = np.sqrt(p @ p + (1.5 * 2.0) ** 2)
    energy = 2.0 * root - 1.5 * 2.0**2 + 0.7 * q[1]
    np.testing.assert_allclose(hamiltonian(system, 0.0, q, p), energy, rtol=1e-12)
    dH_dq, dH_dp = jax.jit(jax.grad(hamiltonian, argnums=(2, 3)))(system, 0.0, q, p)
    np.testing.assert_allclose(dH_dp, 2.0 * p / root, rtol=1e-12)
    np.testing.assert_allclose(dH_dq, [0.0, 0.7], atol=1e-12)


def test_newton_out_of_the_energy_domain_gives_nan():
    """A momentum whose first Newton step is faster than light: no finite garbage."""
    v = velocity(Relativistic(), 0.0, jnp.zeros(2), jnp.array([9.0, 0.0]))
    assert np.isnan(v).all()


def test_quadratic_energies_are_recognized(everything, driven, double_pendulum):
    """By a declared mass matrix or by the program of the Hessian; on the safe side otherwise."""
    q = jnp.zeros(2)
    for system, n in (
        (everything, 3), (driven, 4), (double_pendulum, 2), (DeclaredMass(), 2),
        (SliderCrank(), 3),
    ):  # fmt: skip
        assert is_quadratic(system, jnp.zeros(n), jnp.zeros(n)), type(system).__name__
    assert not is_quadratic(Relativistic(), q, q)
    assert not is_quadratic(HasNorm(), q, q)


@eqx.filter_jit
def there_and_back(system, t, q, v):
    return velocity(system, t, q, momentum(system, t, q, v))


@pytest.mark.parametrize("system", [HasNorm(), DeclaredMass(), Relativistic(), None])
def test_velocity_inverts_momentum(system, driven, rng):
    """Linear solve and Newton; `T = v M(t, q) v / 2 + b(t, q) v` the last."""
    system, size = (driven, 4) if system is None else (system, 2)
    q, v = jnp.asarray(rng.normal(size=size)), jnp.array([0.9, -0.4, 0.3, 0.7])[:size]
    np.testing.assert_allclose(there_and_back(system, 0.4, q, v), v, **ROUND_OFF)


def test_hamiltonian_is_the_generalized_energy(driven, rng):
    """H(t, q, dT/dv) = v . dT/dv - T + V."""
    q, v = (jnp.asarray(rng.normal(size=4)) for _ in range(2))
    both = jax.jit(
        lambda q, v: (
            hamiltonian(driven, 0.4, q, momentum(driven, 0.4, q, v)),
            generalized_energy(driven, 0.4, q, v),
        )
    )
    np.testing.assert_allclose(*both(q, v), rtol=1e-12)


@pytest.mark.slow
def test_motion_and_multipliers_are_the_lagrangian_ones_off_the_constraints(everything, flow, rng):
    """Actuator, control, dissipation, rheonomic rod, velocity constraint not affine in v."""
    state = State(*(jnp.asarray(rng.normal(size=k)) for k in (3, 3, 1)))
    back, motion, lam = flow(
        everything, Hamiltonian(GAINS, jaxdae.formulations.FullRankSolve()), state, 0.3, 1.5
    )
    _, expected, reaction = flow(everything, Multipliers(GAINS), state, 0.3, 1.5)
    for got, exact in ((back, state), (motion, expected)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **ROUND_OFF), got, exact)
    np.testing.assert_allclose(lam, reaction, **ROUND_OFF)
    assert np.abs(lam).min() > 0.1


@pytest.mark.slow
def test_relativistic_motion_agrees_with_the_lagrangian_form(flow):
    """The Newton branch of the Legendre transform inside the vector field."""
    state = State([0.6, 0.8], [0.8, -0.6])
    _, motion, lam = flow(Relativistic(), Hamiltonian(GAINS), state)
    _, expected, reaction = flow(Relativistic(), Multipliers(GAINS), state)
    np.testing.assert_allclose(motion.v, expected.v, **ROUND_OFF)
    np.testing.assert_allclose(lam, reaction, **ROUND_OFF)


@pytest.mark.slow
def test_the_newton_branch_is_differentiable(rng):
    """Derivatives of p' through Newton's method against differences."""
    system = Relativistic()
    y0 = CanonicalState(jnp.array([0.6, 0.8]), jnp.array([1.0, -0.9]), jnp.zeros(0))
    x, unravel = ravel_pytree(y0)
    turn = jnp.asarray(rng.normal(size=4))
    field = jax.jit(
        lambda x: ravel_pytree(Hamiltonian(GAINS).vector_field(system, 0.0, unravel(x), None))[0]
    )
    _, forward = jax.jvp(field, (x,), (turn,))
    (reverse,) = jax.vjp(field, x)[1](jnp.ones(4))
    np.testing.assert_allclose(forward, (field(x + 1e-6 * turn) - field(x - 1e-6 * turn)) / 2e-6,
                               rtol=1e-6, atol=1e-7)  # fmt: skip
    np.testing.assert_allclose(reverse @ turn, forward.sum(), rtol=1e-9)


def test_a_policy_for_singular_mass_matrices_is_refused():
    with pytest.raises(
        ValueError, match="Hamiltonian cannot use SingularMassSolve: where the mass mat"
    ):
        Hamiltonian(solve=SingularMassSolve())
