"""The equations of rest of a constrained system, formed so that few derivatives are needed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.reprs import shown
from jaxdae.systems import System
from jaxdae.systems.dynamics import other_force


class Balance(NamedTuple):
    """What must vanish at an equilibrium.

    Args:
        force: generalized forces less `J^T lam` at rest, shape `(n,)`.
        phi: position constraint residuals, shape `(m,)`.
        phi_dot: velocity-level residuals at rest, shape `(m+r,)`.
        actuator: rates of the actuator state, shape `(k,)`.
    """

    force: Float[Array, " n"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]
    actuator: Float[Array, " k"]

    def __repr__(self) -> str:
        return shown(self)


def balance(system: System, t, q, w, u, multipliers) -> Balance:
    """What is out of balance at rest in `q`, under multipliers `(m+r,)`; zero at an equilibrium."""
    rest = jnp.zeros_like(q)
    phi, f_dot = jax.jvp(lambda t: system.position_constraints(t, q), (t,), (jnp.ones_like(t),))
    g = system.velocity_constraints(t, q, rest)
    holonomic, nonholonomic = jnp.split(multipliers, (phi.size,))
    force = energy_force(system, t, q, holonomic)
    force += remaining_force(system, t, q, rest, w, u, nonholonomic)
    rate = system.actuator_rate(t, q, rest, w, u)
    return Balance(force, phi, jnp.concatenate([f_dot, g]), rate)


def energy_force(system: System, t, q, multipliers) -> Float[Array, " n"]:
    """`-d(W + lam . f)/dq` with `W = V - T0`: energies and position constraints, at rest."""

    def potential(q):
        static = system.potential_energy(t, q) - system.kinetic_energy(t, q, jnp.zeros_like(q))
        return static + multipliers @ system.position_constraints(t, q)

    return -jax.grad(potential)(q)


def remaining_force(system: System, t, q, v, w, u, multipliers) -> Float[Array, " n"]:
    """All other forces: `force`, less the slopes by `v` of dissipation, `lam . g` and `dT/dt`.

    Of the inertial forces it has the explicit rate of the momenta; the rest of them,
    `turning(...) @ v` to first order, vanishes at rest. The multipliers `(r,)` are those of the
    velocity constraints.
    """

    def power(v):
        kinetic = lambda t: system.kinetic_energy(t, q, v)  # noqa: E731
        _, kinetic_rate = jax.jvp(kinetic, (t,), (jnp.ones_like(t),))
        reaction = multipliers @ system.velocity_constraints(t, q, v)
        return kinetic_rate + system.dissipation(t, q, v) + reaction

    return other_force(system, t, q, v, w, u) - jax.grad(power)(v)


def mass_and_turning(system: System, t, q) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Mass matrix, and the gyroscopic matrix `A^T - A` with `A = d2T/dv dq` at rest."""
    rest, eye = jnp.zeros_like(q), jnp.eye(q.size, dtype=q.dtype)
    momentum = lambda q, v: jax.grad(system.kinetic_energy, argnums=2)(t, q, v)  # noqa: E731
    _, push = jax.linearize(momentum, q, rest)
    declared = system.mass_matrix(t, q)
    mass = jax.vmap(lambda e: push(rest, e))(eye).T if declared is None else declared
    A = jax.vmap(lambda e: push(e, rest))(eye).T
    return jnp.asarray(mass, q.dtype), A.T - A
