"""A ball that bounces on a floor, by simulation and by parabolas."""

from typing import Any

import jax.numpy as jnp
import numpy as np

import jaxdae

GRAVITY = 9.81


class Ball(jaxdae.System):
    """A point over a floor."""

    gravity: float = GRAVITY

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return self.gravity * q[0]

    def gap(self, t, q):
        return q[0]


BALL = Ball()


def bounced(height=1.0, restitution=0.8, *, t1=3.0, system=BALL, **how) -> Any:
    state = jaxdae.State(jnp.array([height]), jnp.zeros(1))
    events = [jaxdae.impact(system, system.gap, restitution)]
    settings: Any = {"max_events": 8} | how
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, t1=t1, events=events, **settings)


def impacts(height, restitution, count):
    """Times and speeds before them: flights last twice the speed by gravity."""
    first = np.sqrt(2 * height / GRAVITY)
    speeds = GRAVITY * first * restitution ** np.arange(count)
    return first + np.concatenate([[0.0], np.cumsum(2 * speeds[1:] / GRAVITY)]), speeds


def parabolas(ts, height, restitution):
    """Height of the ball at times; an impact belongs to the flight behind it."""
    times, speeds = impacts(height, restitution, 20)
    k = np.searchsorted(times, ts, side="right")
    since = ts - times[np.maximum(k - 1, 0)]
    flight = restitution * speeds[np.maximum(k - 1, 0)] * since - GRAVITY * since**2 / 2
    return np.where(k == 0, height - GRAVITY * np.asarray(ts) ** 2 / 2, flight)
