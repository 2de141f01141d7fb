"""T-handle that turns over.

Three point masses in Cartesian coordinates whose distances are held: a rigid body, without
weight. It spins about its stem, its middle axis of inertia, turns over and back.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae

jax.config.update("jax_enable_x64", True)

PLACES = jnp.array([[0.45, 0.0, 0.14], [-0.45, 0.0, 0.14], [0.0, 0.0, -0.28]])


def squares(places):
    return jnp.sum((places - jnp.roll(places, 1, axis=0)) ** 2, axis=1)


class Handle(jaxdae.System):
    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return squares(q.reshape(3, 3)) - squares(PLACES)

    def points(self, t, q):
        left, right, end = q.reshape(3, 3)
        places = {"a": left, "b": right, "_middle": 0.5 * (left + right), "end": end}
        return jaxdae.Points(places, links=(("a", "b"), ("_middle", "end")), trace=("end",))


spin = jnp.array([0.08, 0.0, 3.0])  # about the stem z, a little off [rad/s]
start = jaxdae.State(PLACES.ravel(), jnp.cross(spin, PLACES).ravel())
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
run = jaxdae.simulate(Handle(), gains, start, t1=8.0)
film(run, "t_handle.gif")
