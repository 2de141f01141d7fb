"""Spinning body that turns over.

Four point masses in Cartesian coordinates whose six distances are held: a rigid body. It spins
about its middle axis, turns over and back, as a tennis racket does.
"""

import itertools

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

PLACES = jnp.array([[0.5, 0.0, 0.12], [-0.5, 0.0, 0.12], [0.0, 0.25, -0.12], [0.0, -0.25, -0.12]])
FROM, TO = jnp.array(list(itertools.combinations(range(4), 2))).T


def squares(places):
    return jnp.sum((places[FROM] - places[TO]) ** 2, axis=1)


class Racket(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return squares(q.reshape(4, 3)) - squares(PLACES)

    def points(self, t, q):
        places = dict(zip("abcd", q.reshape(4, 3), strict=True))
        return jaxdae.Points(places, links=(("a", "b"),), bodies=(tuple("acbd"),), trace=("c",))


spin = jnp.array([0.15, 3.0, 0.0])  # about the middle axis y, a little off [rad/s]
start = jaxdae.State(PLACES.ravel(), jnp.cross(spin, PLACES).ravel())
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
run = jaxdae.simulate(Racket(), gains, start, t1=9.0)
film(run, "racket.gif")
