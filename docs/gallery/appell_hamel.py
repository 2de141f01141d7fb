"""Appell and Hamel's point.

Its horizontal speed is a multiple of its vertical one.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("appell-hamel")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=3.0)
film(run, "appell_hamel.gif")
