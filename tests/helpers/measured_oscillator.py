"""A damped oscillator, its motion in closed form, and measurements of it."""

import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.identification import Channel, Experiment, Measurement

FORMULATION = jaxdae.Multipliers()


class Oscillator(jaxdae.System):
    """A mass on a spring with a damper, m x'' + d x' + k x = 0."""

    mass: float = 1.0
    stiffness: float = 4.0
    damping: float = 0.2

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * q @ q

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v


def build(p):
    return Oscillator(**p), FORMULATION


def motion(ts, stiffness, damping, x0=1.0, v0=0.0):
    """Displacement of a unit mass, underdamped, from a state at time zero."""
    decay = 0.5 * damping
    rate = np.sqrt(stiffness - decay**2)
    swing = x0 * np.cos(rate * ts) + (v0 + decay * x0) / rate * np.sin(rate * ts)
    return np.exp(-decay * ts) * swing


def speed(run):
    return run.v[:, 0]


def place(run):
    return run.q[:, 0]


CHANNELS = {"place": Channel(place, unit="m")}
TIMES = np.linspace(0.1, 5.0, 50)
START = jaxdae.State(jnp.array([1.0]), jnp.array([0.0]))


def record(rng, sigma=0.02, given=True, ts=TIMES, start=START, **options):
    """An experiment: samples of an oscillator with stiffness 4 and damping 0.2, with noise."""
    values = motion(ts, 4.0, 0.2) + sigma * rng.normal(size=ts.size)
    measured = Measurement(values, sigma if given else None)
    return Experiment(ts, {"place": measured}, start, **options)
