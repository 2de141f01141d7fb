"""Legs of Jansen's beach animal.

One motor turns the crank of both, and the frame is held. With the lengths that Theo Jansen
published (The Great Pretender, 2007) a foot keeps nearly to the ground (dashed) for half a turn.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

# Z is the tip of the crank about M, O a pin of the frame, E the foot; lengths in metres.
PIN, CRANK, MIRROR = jnp.array([0.38, -0.078]), 0.15, jnp.array([-1.0, 1.0])
BARS = {"AZ": 0.5, "AO": 0.415, "BA": 0.558, "BO": 0.401, "CO": 0.393, "CZ": 0.619}
BARS |= {"DB": 0.394, "DC": 0.367, "ED": 0.657, "EC": 0.49}


def legs(q):
    """Corners of both legs, of the left one in a mirror."""
    for side, x in ((jnp.ones(2), q[2:12]), (MIRROR, q[12:])):
        corners = side * jnp.concatenate([q[:2], x]).reshape(6, 2)
        yield dict(zip("ZABCDE", corners, strict=True)) | {"O": PIN}


class Legs(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        return 0.1 * v @ v

    def force(self, t, q, v, w, u):
        across = jnp.stack([-q[1], q[0]]) / CRANK
        return jnp.zeros(22).at[:2].set(100.0 * (4.0 * CRANK - across @ v[:2]) * across)

    def position_constraints(self, t, q):
        bars = [(at[a] - at[b], x) for at in legs(q) for (a, b), x in BARS.items()]
        return jnp.stack([r @ r - x**2 for r, x in ((q[:2], CRANK), *bars)])

    def points(self, t, q):
        right, left = legs(q)
        places = right | {k.lower(): MIRROR * x for k, x in left.items()} | {"M": jnp.zeros(2)}
        places |= {k: jnp.array([x, -0.92]) for k, x in (("_l", -0.9), ("_r", 0.9))}
        links = (("M", "Z"), *map(tuple, BARS), *(tuple(x.lower()) for x in BARS))
        return jaxdae.Points(
            places, links, lines=(("_l", "_r"),), trace=("E", "e"), fixed=("M", "O", "o")
        )


leg = jnp.array([[0.47, 0.33], [0.78, -0.14], [0.21, -0.43], [0.57, -0.47], [0.08, -0.9]])
q = jnp.concatenate([jnp.array([0.0, CRANK]), leg.ravel(), (MIRROR * leg).ravel()])  # about
start = jaxdae.consistent_state(Legs(), q, jnp.zeros(22).at[0].set(-4.0 * CRANK))
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))
run = jaxdae.simulate(Legs(), gains, start, t1=jnp.pi)
film(run, "jansen.gif")
