"""Platform on three cranks.

A triangle in the plane, carried by three cranks through rods. PD control of the cranks leads it
round a circle and turns it.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

CRANK, ROD = 0.5, 0.6
CORNERS = jnp.stack([f(2 * jnp.pi * jnp.arange(3) / 3 - jnp.pi / 2) for f in (jnp.cos, jnp.sin)], 1)


def pins(q):
    """Where the rods meet the platform."""
    c, s = jnp.cos(q[2]), jnp.sin(q[2])
    return q[:2] + 0.3 * CORNERS @ jnp.array([[c, s], [-s, c]])


def elbows(q):
    return CORNERS + CRANK * jnp.stack([jnp.cos(q[3:]), jnp.sin(q[3:])], axis=1)


class Platform(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[:2] @ v[:2] + 0.05 * v[2] ** 2 + 0.02 * v[3:] @ v[3:])

    def force(self, t, q, v, w, u):
        return jnp.concatenate([jnp.zeros(3), u])

    def position_constraints(self, t, q):
        return jnp.sum((pins(q) - elbows(q)) ** 2, axis=1) - ROD**2

    def points(self, t, q):
        places = dict(zip("ABCDEFGHI", [*CORNERS, *elbows(q), *pins(q)], strict=True))
        cranks = (("A", "D", "G"), ("B", "E", "H"), ("C", "F", "I"))
        body = (("G", "H", "I"),)
        return jaxdae.Points(places, cranks, bodies=body, trace=("G",), fixed=("A", "B", "C"))


def wanted(t):
    """The platform on a circle, and the cranks that belong to it."""
    place = 0.15 * jnp.array([jnp.cos(3 * t), jnp.sin(3 * t)])
    q = jnp.array([*place, 0.3 * jnp.sin(3 * t), 0.0, 0.0, 0.0])
    x, y = (pins(q) - CORNERS).T
    reach = jnp.hypot(x, y)
    bend = jnp.arccos((CRANK**2 + reach**2 - ROD**2) / (2 * CRANK * reach))
    return q.at[3:].set(jnp.arctan2(y, x) + bend)


def control(t, q, v, w):
    q_wanted, v_wanted = jax.jvp(wanted, (t,), (jnp.ones_like(t),))
    return (100.0 * (q_wanted - q) + 10.0 * (v_wanted - v))[3:]


start = jaxdae.State(wanted(0.0), jnp.zeros(6))
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
run = jaxdae.simulate(Platform(), gains, start, t1=4.2, controller=control)
film(run, "platform_on_cranks.gif")
