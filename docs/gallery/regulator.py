"""Pendulum held upright.

A horizontal force, by a linear-quadratic regulator on the constraints, from a lean.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import CartesianPendulum

jax.config.update("jax_enable_x64", True)


class Pushed(CartesianPendulum):
    def force(self, t, q, v, w, u):
        return jnp.stack([u[0], jnp.zeros_like(u[0])])


system = Pushed()
upright = jaxdae.equilibrium(system, q=[0.1, 0.9], u=[0.0])
law = jaxdae.lqr(jaxdae.linearize(system, upright, independent=[0])).feedback
leaning = jaxdae.consistent_state(system, q=[0.6, 0.8], v=[0.0, 0.0])
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
left = jaxdae.simulate(system, gains, leaning, t1=4.0, controller=lambda t, q, v, w: jnp.zeros(1))
held = jaxdae.simulate(system, gains, leaning, t1=4.0, controller=law)
film({"no control": left, "regulator": held}, "regulator.gif")
