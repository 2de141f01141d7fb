"""Systems that are stiff, or only fast."""

import jax
import jax.numpy as jnp

import jaxdae


class ElasticRod(jaxdae.System):
    """A point of 1 kg on a massless rod of 1 m with a stiffness and a damping, under gravity."""

    stiffness: float = 1e7
    damping: float = 1e3

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 9.81 * q[1] + 0.5 * self.stiffness * (jnp.sqrt(q @ q) - 1.0) ** 2

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * (q @ v) ** 2 / (q @ q)


class SpringJoints(jaxdae.System):
    """Two links with springs in their joints, the second of them stiffer by a ratio, and damped."""

    ratio: float = 1e6
    damping: float = 1e3

    def kinetic_energy(self, t, q, v):

        def points(q):
            first, second = q[0], q[0] + q[1]
            a = jnp.array([jnp.sin(first), -jnp.cos(first)])
            return a, a + jnp.array([jnp.sin(second), -jnp.cos(second)])

        _, (one, two) = jax.jvp(points, (q,), (v,))
        return 0.5 * (one @ one + two @ two)

    def potential_energy(self, t, q):
        return 5.0 * (q[0] ** 2 + self.ratio * q[1] ** 2)

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v[1] ** 2


class HungRod(jaxdae.System):
    """A rigid pendulum of 1 m, held by a constraint, from which an elastic rod hangs."""

    stiffness: float = 1e7
    damping: float = 5e3

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        apart = q[2:] - q[:2]
        stretched = jnp.sqrt(apart @ apart) - 1.0
        return 9.81 * (q[1] + q[3]) + 0.5 * self.stiffness * stretched**2

    def dissipation(self, t, q, v):
        apart, rate = q[2:] - q[:2], v[2:] - v[:2]
        return 0.5 * self.damping * (apart @ rate) ** 2 / (apart @ apart)

    def position_constraints(self, t, q):
        return jnp.array([q[:2] @ q[:2] - 1.0])


class Follower(jaxdae.System):
    """An actuator state that follows a slow input fast: `w' = -decay (w - cos t)`."""

    decay: float = 1e5

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def actuator_rate(self, t, q, v, w, u):
        return -self.decay * (w - jnp.cos(t))
