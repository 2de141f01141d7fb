"""Appell and Hamel's point.

Its horizontal speed is held at 0.7 of its vertical one. Six are let fall at 1 m/s in a batch, each
in a direction of its own: they keep to a cone and get faster [NeimarkFufaev1972].
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import AppellHamel, get_model

jax.config.update("jax_enable_x64", True)

formulation = get_model("appell-hamel").formulation()


def fall(heading):
    system = AppellHamel(heading=heading)
    return jaxdae.simulate(system, formulation, jaxdae.State(*system.start()), t1=3.0)


runs = jax.vmap(fall)(jnp.arange(6) * jnp.pi / 3)
film({f"_{i}": runs[i] for i in range(6)}, "appell_hamel.gif", over=True)
