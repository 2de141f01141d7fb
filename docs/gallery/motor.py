"""Slider-crank with its motor.

A geared DC motor whose charge is a coordinate drives the crank.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("motor")
system = model.system()
start = jaxdae.State(*system.start(), system.actuators())
run = jaxdae.simulate(system, model.formulation(), start, t1=0.5)
film(run, "motor.gif")
