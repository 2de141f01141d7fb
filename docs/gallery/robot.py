"""Robot on two wheels.

Coasting, slowed down by friction of the bearings [SiegwartNourbakhsh2004].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("robot")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=3.0)
film(run, "robot.gif")
