"""Rolling disk.

It rolls without slipping and turns at a constant rate [Bloch2003].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("disk")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=6.0)
film(run, "disk.gif")
