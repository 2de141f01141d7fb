"""Two-link arm driven out of reach.

The target of the paper leaves the arm's reach at 2.85 s; the paper's gains then drive an arm that
cannot follow [MukharlyamovDeressa2015].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("two-link")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=5.0)
film(run, "two_link_lost.gif")
