"""Chain.

Point masses in redundant coordinates, let go where the chain is straight and horizontal.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("chain")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=2.5)
film(run, "chain.gif")
