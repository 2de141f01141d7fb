"""Mirror that keeps a beam on its target.

The source swings to and fro, and the mirror starts 0.15 rad off. A servo-constraint, reached
through a DC motor, leads the reflected beam to the fixed target [Mukharlyamov2019].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model
from jaxdae.models.mirror import AdaptiveMirror, servo

jax.config.update("jax_enable_x64", True)

system = AdaptiveMirror(source_amplitude=0.6)
wanted = system.program_state(0.0)
start = jaxdae.State(wanted.q + 0.15, wanted.v, wanted.w)
formulation = get_model("mirror").formulation()
run = jaxdae.simulate(system, formulation, start, t1=6.0, controller=servo(system))
film(run, "mirror.gif")
