"""Guessed and tuned gains.

PD control of a five-bar that knows only the weights. The gains are tuned for the tip's path with
torque as the price.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models.five_bar import EllipticPath, FiveBar, path_control
from jaxdae.solvers import RK4

jax.config.update("jax_enable_x64", True)

system, path = FiveBar(), EllipticPath()
start = jaxdae.State(*system.start())
gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))


def run(params):
    law = path_control(system, path, params["K_P"], params["K_D"], static=True)
    return jaxdae.simulate(system, gains, start, t1=1.5, dt=0.01, solver=RK4(), controller=law)


def cost(params):
    tracked = run(params)
    off = jax.vmap(system.tip)(tracked.q) - jax.vmap(path)(tracked.ts)
    return jnp.mean((off / 0.002) ** 2) + jnp.mean(tracked.u**2)


guess = {"K_P": 5.0, "K_D": 0.5}
bounds = {"K_P": (1.0, 200.0), "K_D": (0.1, 4.0)}
first = {name: jaxdae.tuning.Interval(x, *bounds[name]) for name, x in guess.items()}
tuned = jaxdae.tune(cost, first, optimizer="l-bfgs", steps=25)
ellipse = jax.vmap(path)(jnp.linspace(0.0, 1.5, 40))
film({"guessed": run(guess), "tuned": run(tuned.params)}, "tuned.gif", marks=ellipse)
