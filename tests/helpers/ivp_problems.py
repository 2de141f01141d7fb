"""Stiff and long problems: particles on a sphere, springs of unlike stiffness, a governor."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxdae

# Rows of particles of the Fekete problem: how many, latitude, and longitude before the first [rad].
_ROWS = (
    (3, 3 * np.pi / 8, np.pi / 13),
    (7, np.pi / 8, np.pi / 29),
    (6, -2 * np.pi / 15, np.pi / 7),
    (4, -3 * np.pi / 10, np.pi / 17 - np.pi / 2),
)


class ParticlesOnSphere(jaxdae.System):
    """Unit masses on the unit sphere that repel each other, in a medium of viscous friction.

    `q = (p_1, ..., p_N)` in space, `V = -sum_(i<j) log |p_i - p_j|`, `D = damping |v|^2 / 2`. With
    20 of them and a damping of 1/2 it is the Fekete problem of the test set.

    Args:
        damping: of the medium [kg/s].
    """

    damping: Any = 0.5

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def mass_matrix(self, t, q):
        return jnp.eye(q.size, dtype=q.dtype)

    def potential_energy(self, t, q):
        first, second = np.triu_indices(q.size // 3, 1)
        apart = q.reshape(-1, 3)[first] - q.reshape(-1, 3)[second]
        return -0.5 * jnp.sum(jnp.log(jnp.sum(apart**2, axis=1)))

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v

    def position_constraints(self, t, q):
        return jnp.sum(q.reshape(-1, 3) ** 2, axis=1) - 1.0


def fekete_start() -> jaxdae.State:
    """Twenty particles at rest, in four rows, as the test set has them."""
    places = []
    for count, latitude, first in _ROWS:
        angles = 2 * np.pi * np.arange(1, count + 1) / count + first
        flat = np.cos(latitude) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        places.append(np.column_stack([flat, np.full(count, np.sin(latitude))]))
    q = np.concatenate(places).ravel()
    return jaxdae.State(jnp.asarray(q), jnp.zeros(q.size))


class SprungArm(jaxdae.System):
    """Two uniform bars with damped springs in their joints, one a million times as stiff.

    `q = (x1, y1, a1, x2, y2, a2)`: centres and angles from the downward vertical; the joints are
    four constraints. The second spring holds the second bar in line with the first.

    Args:
        soft: stiffness of the first joint [N m/rad].
        ratio: of the second joint's stiffness to it.
        damping: of the second joint [N m s/rad].
    """

    soft: Any = 1.0
    ratio: Any = 1e6
    damping: Any = 50.0

    def kinetic_energy(self, t, q, v):
        x1, y1, a1, x2, y2, a2 = v
        return 0.5 * (x1**2 + y1**2 + x2**2 + y2**2 + (a1**2 + a2**2) / 12)

    def potential_energy(self, t, q):
        bend = q[5] - q[2]
        springs = 0.5 * self.soft * q[2] ** 2 + 0.5 * self.ratio * self.soft * bend**2
        return springs + 9.81 * (q[1] + q[4])

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * (v[5] - v[2]) ** 2

    def position_constraints(self, t, q):
        e = lambda a: 0.5 * jnp.stack([jnp.sin(a), -jnp.cos(a)])  # noqa: E731
        first, second = e(q[2]), e(q[5])
        return jnp.concatenate([q[:2] - first, q[3:5] - (q[:2] + first + second)])

    @staticmethod
    def at(a1: float, a2: float) -> jaxdae.State:
        """At rest with two angles [rad]."""
        e = lambda a: 0.5 * np.array([np.sin(a), -np.cos(a)])  # noqa: E731
        first, second = e(a1), e(a2)
        q = np.concatenate([first, [a1], 2 * first + second, [a2]])
        return jaxdae.State(jnp.asarray(q), jnp.zeros(6))


class Governor(jaxdae.System):
    """A centrifugal governor: two balls on arms about a shaft, and a sleeve on rods below them.

    `q = (turn, opening, sleeve)`: angle of the shaft, of the arms from the shaft, and height of
    the sleeve below the arms' joint, `sleeve = 2 l cos(opening)`. The arms and the rods have the
    length `l` and no mass.

        T = J turn'^2 / 2 + m l^2 (opening'^2 + sin^2(opening) turn'^2) + m_s sleeve'^2 / 2
        V = -2 m g l cos(opening) - m_s g sleeve + k (sleeve - 2 l cos(rest))^2 / 2

    A torque drives the shaft, less the more the sleeve has risen; friction damps shaft and sleeve.

    Args:
        ball: m [kg].
        sleeve: m_s [kg].
        length: l [m].
        shaft: J [kg m^2].
        stiffness: k [N/m].
    """

    ball: Any = 1.0
    sleeve: Any = 2.0
    length: Any = 0.3
    shaft: Any = 0.1
    stiffness: Any = 200.0

    def kinetic_energy(self, t, q, v):
        balls = self.ball * self.length**2 * (v[1] ** 2 + jnp.sin(q[1]) ** 2 * v[0] ** 2)
        return 0.5 * self.shaft * v[0] ** 2 + balls + 0.5 * self.sleeve * v[2] ** 2

    def potential_energy(self, t, q):
        stretch = q[2] - 2 * self.length * np.cos(0.4)
        weight = 2 * self.ball * self.length * jnp.cos(q[1]) + self.sleeve * q[2]
        return 0.5 * self.stiffness * stretch**2 - 9.81 * weight

    def dissipation(self, t, q, v):
        return 0.5 * (0.05 * v[0] ** 2 + 8.0 * v[2] ** 2)

    def force(self, t, q, v, w, u):
        torque = 0.5 + 2.0 * (q[2] - 2 * self.length * np.cos(0.6))
        return jnp.stack([torque, 0.0 * torque, 0.0 * torque])

    def position_constraints(self, t, q):
        return jnp.stack([q[2] - 2 * self.length * jnp.cos(q[1])])

    def begin(self) -> jaxdae.State:
        """Arms half open, the shaft turning at 8 rad/s."""
        q = jnp.stack([jnp.zeros(()), jnp.asarray(0.5), 2 * self.length * jnp.cos(0.5)])
        return jaxdae.State(q, jnp.array([8.0, 0.0, 0.0]))
