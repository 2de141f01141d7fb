"""Pendulum.

A point mass in Cartesian coordinates; its rod is a constraint [HairerWanner1996].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("pendulum")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=2.5)
film(run, "pendulum.gif")
