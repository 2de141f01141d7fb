"""Slider-crank.

Links of equal length: the mechanism passes its in-line position, where the constraints lose rank.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("slider-crank")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=2.0)
film(run, "slider_crank.gif")
