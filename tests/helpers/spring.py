"""A spring that both backends run."""

import equinox as eqx
import jax
import jax.numpy as jnp

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.solvers import RK4


class Spring(jaxdae.System):
    """Unit masses on springs; each may have its own, and an actuator may push all."""

    stiffness: jax.Array | float = 2.0
    sign: int = eqx.field(static=True, default=1)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        push = w.sum() + (0.0 if u is None else u)
        return -self.sign * self.stiffness * q + push

    def actuator_rate(self, t, q, v, w, u):
        return -2 * w


START = State([0.1, 0.2], [0.3, 0.4], jnp.zeros(0))


def run(system=None, start=START, **settings):
    settings = {"t1": 0.3, "dt": 0.1, "solver": RK4(), **settings}
    return simulate(Spring() if system is None else system, Multipliers(), start, **settings)


class Level(eqx.Module):
    """Function of an event: the first coordinate over a level that rises."""

    level: jax.Array
    rate: jax.Array

    def __call__(self, t, q, v, w):
        return q[0] - self.level - self.rate * t
