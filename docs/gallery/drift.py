"""Without and with stabilization.

A pendulum twice, by steps of 0.1 s, to scale. Nothing takes back the errors of the first run, and
its rod shrinks; with Baumgarte's gains the mass stays on its circle (dots) [Baumgarte1972].
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

jax.config.update("jax_enable_x64", True)

system = CartesianPendulum()
start = jaxdae.State(*system.released_from(jnp.pi / 2))


def run(gains):
    return jaxdae.simulate(system, gains, start, t1=9.0, dt=0.1, solver=RK4())


runs = {
    "no gains": run(jaxdae.Multipliers()),
    "Baumgarte": run(jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))),
}
angles = jnp.linspace(-jnp.pi, 0.0, 25)
circle = system.length * jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1)
film(runs, "drift.gif", marks=circle)
