"""Ball and beam.

A regulator on the constraints brings the ball back from 15 cm further in [Krasinskaya2013].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model

jax.config.update("jax_enable_x64", True)

model = get_model("ball-beam")
system = model.system()
start = jaxdae.State(*system.start(), system.actuators())
start = jaxdae.State(start.q.at[0].add(-0.15), start.v, start.w)
run = jaxdae.simulate(
    system, model.formulation(), start, t1=4.0, controller=model.controller(system)
)
film(run, "ball_beam.gif")
