"""Blade on a slope.

It does not slide down the slope, but wanders across it on a cycloid [NeimarkFufaev1972].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("knife-edge")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=6.0)
film(run, "knife_edge.gif")
