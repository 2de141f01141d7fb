"""Rods on ball joints between two points: a closed mechanism in coordinates of each body."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.transform import Rotation

import jaxdae


class Hung(jaxdae.System):
    """Rods in a row on ball joints between two points, their places and quaternions by themselves.

    Args:
        inertia: about the axes of each rod, shape `(rods, 3)`; unit masses and lengths.
        span: distance of the points.
    """

    inertia: jax.Array
    span: float = 1.8

    def rate(self, t, q, v):
        def one(q, v):
            e, u, w = q[3], q[4:], v[3:]
            return jnp.concatenate([v[:3], -(u @ w)[None] / 2, (e * w + jnp.cross(u, w)) / 2])

        return jax.vmap(one)(q.reshape(-1, 7), v.reshape(-1, 6)).reshape(-1)

    def kinetic_energy(self, t, q, v):
        v = v.reshape(-1, 6)
        return 0.5 * jnp.sum(v[:, :3] ** 2) + 0.5 * jnp.sum(self.inertia * v[:, 3:] ** 2)

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q[2::7])

    def position_constraints(self, t, q):
        def half(q):
            e, u, x = q[3], q[4:], jnp.array([0.5, 0.0, 0.0])
            return x + 2 * jnp.cross(u, jnp.cross(u, x) + e * x)

        bodies = q.reshape(-1, 7)
        places, halves = bodies[:, :3], jax.vmap(half)(bodies)
        ends = jnp.concatenate([jnp.zeros((1, 3)), places + halves])
        starts = jnp.concatenate([places - halves, jnp.array([[self.span, 0.0, 0.0]])])
        return (starts - ends).reshape(-1)


def hung():
    """Three rods that hang like a trapeze, spun about their axes, with velocities by a seed."""
    rng, q, end = np.random.default_rng(0), [], np.zeros(3)
    for pitch, spin in zip(np.arccos(0.4) * np.array([1, 0, -1]), (0.3, -0.5, 0.8), strict=True):
        turn = Rotation.from_rotvec([0, pitch, 0]) * Rotation.from_rotvec([spin, 0, 0])
        along = turn.apply([1.0, 0.0, 0.0])
        q.append([*(end + along / 2), *np.roll(turn.as_quat(), 1)])
        end = end + along
    system = Hung(jnp.asarray(rng.uniform(0.1, 0.3, (3, 3))))
    return system, jaxdae.consistent_state(system, np.ravel(q), rng.normal(size=18))
