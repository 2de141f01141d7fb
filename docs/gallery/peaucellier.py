"""Peaucellier and Lipkin's linkage.

Seven bars swing under gravity; the corner on the path moves on an exact straight line.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

CRANK, ARM, SIDE = 0.45, 1.0, 0.4
BARS = {"PA": CRANK, "OB": ARM, "OC": ARM, "AB": SIDE, "BD": SIDE, "DC": SIDE, "CA": SIDE}


def corners(q):
    """Four that move, and two of the frame; the crank's circle about P passes through O."""
    frame = {"O": jnp.zeros(2), "P": jnp.array([0.0, -CRANK])}
    return dict(zip("ABCD", q.reshape(4, 2), strict=True)) | frame


class Peaucellier(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 9.81 * q[1::2].sum()

    def position_constraints(self, t, q):
        at = corners(q)
        return jnp.stack([jnp.sum((at[a] - at[b]) ** 2) - x**2 for (a, b), x in BARS.items()])

    def points(self, t, q):
        return jaxdae.Points(corners(q), tuple(map(tuple, BARS)), trace=("D",), fixed=("O", "P"))


def leaning(angle):
    """The corners with A and D in that direction, seen from O."""
    ahead = jnp.array([jnp.sin(angle), -jnp.cos(angle)])
    aside = jnp.array([ahead[1], -ahead[0]])
    near, far = 2 * CRANK * jnp.cos(angle), (ARM**2 - SIDE**2) / (2 * CRANK * jnp.cos(angle))
    middle = 0.5 * (near + far) * ahead
    half = jnp.sqrt(SIDE**2 - 0.25 * (far - near) ** 2) * aside
    return jnp.concatenate([near * ahead, middle + half, middle - half, far * ahead])


start = jaxdae.State(leaning(0.75), jnp.zeros(8))
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))
run = jaxdae.simulate(Peaucellier(), gains, start, t1=4.0)
film(run, "peaucellier.gif")
