"""A batch of designs.

Chaplygin's sleighs from one start; the offset is the distance from the blade to the centre of
mass.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import ChaplyginSleigh

jax.config.update("jax_enable_x64", True)


def run(offset):
    gains = jaxdae.Multipliers(jaxdae.Baumgarte(Gamma=10.0))
    system = ChaplyginSleigh(offset=offset)
    start = jaxdae.consistent_state(system, q=[0.0, 0.0, jnp.pi], v=[-0.3, 0.0, 2.5])
    return jaxdae.simulate(system, gains, start, t1=6.0)


offsets = [0.2, 0.3, 0.4, 0.5, 0.6]
film({f"offset {x} m": run(x) for x in offsets}, "sleighs.gif", over=True)
