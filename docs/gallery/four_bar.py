"""Four-bar.

The crank turns all round; the coupler carries a load along its curve.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("four-bar")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=2.0)
film(run, "four_bar.gif")
