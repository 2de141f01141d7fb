"""Five-bar.

Two motors lead the tip along an ellipse, from rest [Ghorbel2000].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("five-bar")
system = model.system()
start = jaxdae.State(*system.start())
start = model.departure(start)
run = jaxdae.simulate(
    system, model.formulation(), start, t1=3.0, controller=model.controller(system)
)
film(run, "five_bar.gif")
