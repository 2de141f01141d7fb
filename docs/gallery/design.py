"""Design: before and after.

Lengths and coupler point of a four-bar, found so that the point's curve passes through six dots.
The crank turns all round in every design that is tried.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.models import FourBar
from jaxdae.tuning import CrankRocker

jax.config.update("jax_enable_x64", True)

angles = jnp.linspace(0.0, 2 * jnp.pi, 6, endpoint=False)
wanted = jnp.array([0.12, 0.24]) + 0.11 * jnp.stack([jnp.cos(angles), 0.6 * jnp.sin(angles)], 1)
cranks = jnp.linspace(0.0, 2 * jnp.pi, 60, endpoint=False)


def linkage(params):
    return FourBar.of_bars(params["lengths"], params["point"])


def cost(params):
    system = linkage(params)
    curve = jax.vmap(lambda x: system.tracer(system.at_crank(x)))(cranks)
    distances = jnp.linalg.norm(curve[:, None] - wanted, axis=2)
    return 1e4 * jnp.mean(distances.min(axis=0) ** 2)


def turning(params):
    system = linkage(params)
    start = jaxdae.State(*jax.jvp(system.at_crank, (0.8,), (6.0,)))
    gains = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))
    return jaxdae.simulate(system, gains, start, t1=1.5)


first = {"lengths": jnp.array([0.1, 0.3, 0.25, 0.32]), "point": jnp.array([0.2, 0.12])}
params = first | {"lengths": CrankRocker(first["lengths"])}
found = jaxdae.tune(cost, params, optimizer="l-bfgs", steps=60)
film({"before": turning(first), "after": turning(found.params)}, "design.gif", marks=wanted)
