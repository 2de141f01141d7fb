"""A linkage that folds flat, and its motion in one coordinate."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.integrate import solve_ivp

import jaxdae

GRAVITY = 9.81


def _along(angle):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


class Rhombus(jaxdae.System):
    """Three uniform bars of length 1 and mass 1 between pivots at (0, 0) and (1, 0).

    Centres and angles of crank, coupler and rocker: nine coordinates, eight constraints, of rank 7
    where all bars lie in one line. On the branch of the parallelogram
    `T = 5/6 angle'^2`, `V = 2 g sin(angle)`.
    """

    def kinetic_energy(self, t, q, v):
        v = v.reshape(3, 3)
        return 0.5 * jnp.sum(v[:, :2] ** 2) + jnp.sum(v[:, 2] ** 2) / 24.0

    def potential_energy(self, t, q):
        return GRAVITY * jnp.sum(q.reshape(3, 3)[:, 1])

    def position_constraints(self, t, q):
        crank, coupler, rocker = q.reshape(3, 3)
        end = lambda bar, sign: bar[:2] + 0.5 * sign * _along(bar[2])  # noqa: E731
        return jnp.concatenate(
            [
                end(crank, -1),
                end(crank, 1) - end(coupler, -1),
                end(coupler, 1) - end(rocker, 1),
                end(rocker, -1) - jnp.array([1.0, 0.0]),
            ]
        )

    @staticmethod
    def parallelogram(angle, rate):
        """Coordinates and velocities on the branch of the parallelogram."""

        def position(angle):
            half, foot = 0.5 * _along(angle), jnp.array([1.0, 0.0])
            middle = jnp.array([0.5, 0.0]) + 2 * half
            parts = (half, angle[None], middle, jnp.zeros(1), foot + half, angle[None])
            return jnp.concatenate(parts)

        angle, rate = jnp.asarray(angle, float), jnp.asarray(rate, float)
        return jax.jvp(position, (angle,), (rate,))

    @classmethod
    def exact(cls, angle, rate, t1):
        """Coordinates at `t1` by SciPy, in the angle alone."""

        def field(t, y):
            return [y[1], -2 * GRAVITY * np.cos(y[0]) * 3 / 5]

        found = solve_ivp(field, (0, t1), [angle, rate], method="DOP853", rtol=1e-12, atol=1e-12)
        return np.asarray(cls.parallelogram(*found.y[:, -1])[0])
