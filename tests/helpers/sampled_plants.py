"""Unstable plants under constraints that are stated more than once, for sampled controllers."""

from functools import cache

import equinox as eqx
import jax.numpy as jnp

import jaxdae

PERIOD = 0.05


class Upright(jaxdae.System):
    """A unit mass on the unit circle under gravity, and a horizontal force; `x'' = g x + u`."""

    gravity: float = 9.81
    copies: int = eqx.field(static=True, default=3)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return self.gravity * q[1]

    def force(self, t, q, v, w, u):
        return jnp.stack([u[0], jnp.zeros_like(u[0])])

    def position_constraints(self, t, q):
        return jnp.arange(1, 1 + self.copies) * (q @ q - 1.0)


@cache
def upright(copies: int = 3):
    """The system, and its linearization about the upright position, `s = (x, dx/dt)`."""
    system = Upright(copies=copies)
    rest = jaxdae.equilibrium(system, q=[0.1, 0.9], u=[0.0])
    return system, jaxdae.linearize(system, rest, independent=[0])


class Pair(jaxdae.System):
    """`q2 = 2 q1`, stated twice, of unit masses driven from the origin: `x'' = 3 x + u / 5`."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return -1.5 * q @ q

    def force(self, t, q, v, w, u):
        return jnp.stack([u[0], jnp.zeros_like(u[0])])

    def position_constraints(self, t, q):
        return jnp.array([1.0, 3.0]) * (q[1] - 2.0 * q[0])


def pair():
    """The linearization of `Pair`, `s = (x, dx/dt)`."""
    rest = jaxdae.equilibrium(Pair(), q=[0.1, 0.2], u=[0.0])
    return jaxdae.linearize(Pair(), rest, independent=[0])


def place(t, q, v, w):
    """A measurement of the first coordinate."""
    return q[:1]
