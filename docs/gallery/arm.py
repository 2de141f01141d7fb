"""Plane arm.

Two point masses in redundant coordinates, without gravity [Shemelova].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("arm")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=4.0)
film(run, "arm.gif")
