"""Point of constant speed.

A constraint that is not affine in the velocities [NeimarkFufaev1972].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("constant-speed")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=3.0)
film(run, "constant_speed.gif")
