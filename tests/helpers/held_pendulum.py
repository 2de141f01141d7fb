"""A pendulum upright, its rod stated more than once, for controllers that are sampled."""

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
