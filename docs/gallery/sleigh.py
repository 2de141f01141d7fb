"""Chaplygin's sleigh.

A body on a blade: it turns until its centre of mass leads the blade [Chaplygin1911].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("sleigh")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=8.0)
film(run, "sleigh.gif")
