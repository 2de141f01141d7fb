"""Two-link arm through singular positions.

Its tip is driven along a line, back and forth; in the middle the links fold, the
constraints lose rank, and with the paper's gains the tip leaves its line for a while
[MukharlyamovDeressa2015].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("two-link-reachable")
system = model.system()
start = jaxdae.State(*system.start())
run = jaxdae.simulate(system, model.formulation(), start, t1=12.0)
film(run, "two_link_again.gif")
