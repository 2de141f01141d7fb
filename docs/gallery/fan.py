"""A fan of starts.

Twelve double pendulums, released at angles that differ by a thousandth of a radian, in one batch.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import Chain

jax.config.update("jax_enable_x64", True)

system = Chain(lengths=(0.5, 0.5), masses=(1.0, 1.0))
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))


def released(angle):
    start = jaxdae.State(*system.straight(angle))
    return jaxdae.simulate(system, gains, start, t1=6.0)


runs = jax.vmap(released)(2.2 + 1e-3 * jnp.arange(12))
film({f"_{i}": runs[i] for i in range(12)}, "fan.gif", over=True)
