"""A body in quaternions and angular velocities, which are not their rates."""

import jax
import jax.numpy as jnp

import jaxdae


class Top(jaxdae.System):
    """A rigid body about its centre of mass: a quaternion, angular velocities about its axes."""

    inertia: jax.Array

    def rate(self, t, q, v):
        e, u = q[0], q[1:]
        return 0.5 * jnp.concatenate([-(u @ v)[None], e * v + jnp.cross(u, v)])

    def kinetic_energy(self, t, q, v):
        return 0.5 * jnp.sum(self.inertia * v**2)
