"""Point of constant speed.

Gravity turns its path but makes it no faster, as the constraint, which is not affine in the
velocities, wants it; beside it the same throw without [NeimarkFufaev1972].
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import ConstantSpeed, get_model

jax.config.update("jax_enable_x64", True)


class Free(ConstantSpeed):
    def velocity_constraints(self, t, q, v):
        return jnp.zeros(0)

    def labels(self):
        return jaxdae.Labels(("x", "y"), ("m", "m"))


held = ConstantSpeed()
start = jaxdae.State(*held.start())
runs = {
    "free": jaxdae.simulate(Free(), jaxdae.Multipliers(), start, t1=1.6),
    "constant speed": jaxdae.simulate(
        held, get_model("constant-speed").formulation(), start, t1=1.6
    ),
}
film(runs, "constant_speed.gif", over=True)
