"""Mirror that keeps a beam on its target.

The source of the beam moves, and the mirror starts 0.05 rad off. With a constant voltage the beam
is lost; the servo-constraint leads the motor so that it returns to C [Mukharlyamov2019].
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import get_model
from jaxdae.models.mirror import AdaptiveMirror, servo

jax.config.update("jax_enable_x64", True)

system = AdaptiveMirror(source_amplitude=0.6)
wanted = system.program_state(0.0)
start = jaxdae.State(wanted.q + 0.05, wanted.v, wanted.w)
volts = system.program_voltage(0.0)[None]
formulation = get_model("mirror").formulation()


def run(control):
    return jaxdae.simulate(system, formulation, start, t1=6.0, controller=control)


runs = {"constant voltage": run(lambda t, q, v, w: volts), "servo-constraint": run(servo(system))}
film(runs, "mirror.gif")
