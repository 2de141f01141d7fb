"""Mirror that keeps a beam on its target.

A servo-constraint reached through a DC motor, from 0.02 rad off [Mukharlyamov2019].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("mirror")
system = model.system()
start = jaxdae.State(*system.start(), system.actuators())
start = model.departure(start)
run = jaxdae.simulate(
    system, model.formulation(), start, t1=6.0, controller=model.controller(system)
)
film(run, "mirror.gif")
