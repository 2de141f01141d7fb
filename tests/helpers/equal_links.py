"""The slider-crank of equal links on its branch `psi = -theta`, `s = 2 r cos theta`: one equation.

E = A theta'^2 / 2 + g r (m_1 + m_2) sin(theta) / 2
A = r^2 ((m_1 + m_2)/3 + (2 m_2 + 4 m_3) sin^2 theta)
"""

import jax.numpy as jnp

from jaxdae.models import SliderCrank


def branch(crank: SliderCrank, theta, rate):
    """Coordinates and velocities at a crank angle and its rate, each of shape (3,)."""
    r = crank.crank_length
    q = jnp.stack([theta, -theta, 2.0 * r * jnp.cos(theta)])
    return q, jnp.stack([rate, -rate, -2.0 * r * jnp.sin(theta) * rate])


def branch_energy(crank: SliderCrank, theta, rate):
    """E, as a function of the crank alone [J]."""
    r, bars = crank.crank_length, crank.crank_mass + crank.rod_mass
    growth = 2.0 * crank.rod_mass + 4.0 * crank.slider_mass
    inertia = r**2 * (bars / 3.0 + growth * jnp.sin(theta) ** 2)
    return 0.5 * inertia * rate**2 + 0.5 * crank.gravity * r * bars * jnp.sin(theta)
