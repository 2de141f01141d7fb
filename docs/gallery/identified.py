"""Measured and fitted.

Noisy places of a pendulum (dots) in air; its length and friction are identified from them.
"""

import jax
import jax.numpy as jnp
from draw import film

import jaxdae
from jaxdae.identification import Channel, Experiment, Measurement
from jaxdae.models import CartesianPendulum

jax.config.update("jax_enable_x64", True)


class Damped(CartesianPendulum):
    damping: float = 0.1

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v


def build(params):
    return Damped(**params), jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))


def release(system):
    return jaxdae.State(*system.released_from(1.3))


def run(params):
    system, gains = build(params)
    return jaxdae.simulate(system, gains, release(system), t1=4.0, dt=0.05)


exact, guess = {"length": 1.2, "damping": 0.5}, {"length": 1.0, "damping": 0.1}
places = run(exact).q[1:] + 0.03 * jax.random.normal(jax.random.key(1), (80, 2))
readings = {x: Measurement(places[:, i], 0.03) for i, x in enumerate("xy")}
channels = {x: Channel(lambda run, i=i: run.q[:, i], unit="m") for i, x in enumerate("xy")}
fitted = jaxdae.identify(
    build,
    {name: jaxdae.tuning.Positive(x) for name, x in guess.items()},
    Experiment(jnp.linspace(0.05, 4.0, 80), readings, release),
    channels=channels,
    dt=0.05,
)
film({"guess": run(guess), "fitted": run(fitted.params)}, "identified.gif", marks=places)
