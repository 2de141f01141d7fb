"""A stiff mechanism: a slider-crank whose rod is a damped spring."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdae


class ElasticCrank(jaxdae.System):
    """A crank and a slider, joined by a damped spring of high stiffness and no mass.

    Args:
        stiffness: of the spring [N/m].
        damping: of the spring [N s/m].
    """

    stiffness: Any = 1e7
    damping: Any = 1e4

    def _spring(self, q):
        return jnp.hypot(q[1] - 0.2 * jnp.cos(q[0]), 0.2 * jnp.sin(q[0]))

    def kinetic_energy(self, t, q, v):
        return 0.025 * v[0] ** 2 + 0.75 * v[1] ** 2

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * (self._spring(q) - 0.5) ** 2

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * jax.jvp(self._spring, (q,), (v,))[1] ** 2

    def force(self, t, q, v, w, u):
        return jnp.stack([2.0 * jnp.cos(3 * t), 0.0 * t])


def elastic_crank(t, y):
    """Its equations, derived by hand."""
    x, s, x_dot, s_dot = y
    along, across = s - 0.2 * np.cos(x), -0.2 * np.sin(x)
    length = np.hypot(along, across)
    by_x, by_s = 0.2 * (along * np.sin(x) - across * np.cos(x)) / length, along / length
    tension = 1e7 * (length - 0.5) + 1e4 * (by_x * x_dot + by_s * s_dot)
    return [x_dot, s_dot, (2.0 * np.cos(3 * t) - tension * by_x) / 0.05, -tension * by_s / 1.5]


CRANK = jaxdae.State([0.5, 0.2 * np.cos(0.5) + np.sqrt(0.25 - 0.04 * np.sin(0.5) ** 2)], [0.0, 0.0])
