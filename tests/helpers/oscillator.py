"""An oscillator with all that a run may have, and the ways to run it."""

import diffrax
import jax.numpy as jnp
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.solvers import RK4

SaveAt, PID = diffrax.SaveAt, diffrax.PIDController

# Tolerances at which the error estimates of these methods are far above round-off, so that both
# backends choose the same steps to round-off.
LOOSE = PID(rtol=1e-5, atol=1e-7)

ADAPTIVE = {"solver": diffrax.Tsit5(), "stepsize_controller": LOOSE}

FIXED = {"solver": RK4(), "dt": 0.1}

# The estimate of the last step's error, raised to a power, decides on the ends of steps; these
# differ by the round-off of an estimate, 1e-16 / 1e-5 relative, and the states there as much.
AT_STEPS = {"rtol": 0, "atol": 1e-10}

# States at given times depend on the ends of the steps by the error of the method only.
AT_TIMES = {"rtol": 0, "atol": 1e-11}

# Of the same steps: sums in another order.
SAME_STEPS = {"rtol": 0, "atol": 1e-14}

TIMES = jnp.linspace(0, 1, 7)


class Oscillator(jaxdae.System):
    """A nonlinear, driven oscillator in the plane with an actuator, without constraints."""

    stiffness: float = 2.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return self.stiffness * q @ q + q[0] ** 2 * q[1] * (1 + 0.1 * jnp.sin(t))

    def force(self, t, q, v, w, u):
        return jnp.stack([w[0], jnp.zeros_like(w[0])])

    def actuator_rate(self, t, q, v, w, u):
        return jnp.stack([jnp.cos(t) - w[0] * v[0]])


# Not of how LLVM optimizes: as quickly as JAX's programs are made.
QUICK = pytest.mark.quick

START = State([0.5, 0.2], [0.0, 0.3], [0.1])


def run(backend, *, system=None, start=START, **settings):
    settings = {"t1": 1.0, "throw": False, "backend": backend, **settings}
    system = Oscillator() if system is None else system
    found = simulate(system, Multipliers(), start, **settings)
    assert found.backend == backend, found.why_not_native
    return found
