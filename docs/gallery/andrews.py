"""Andrews' squeezer.

Seven bodies in three loops and a spring (dashed), a test of integrators. A motor turns it once
within 0.03 s; the film shows that about eighty times slower.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("andrews")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=0.03)
film(run, "andrews.gif")
