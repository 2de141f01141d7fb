"""Systems with closed forms, and the motion of a formulation in the system's own terms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import State


class MovingPivot(jaxdae.System):
    """A point mass on a rod whose pivot is shaken: `p(t) = amplitude sin(frequency t)`."""

    mass: float = 1.3
    length: float = 0.8
    amplitude: float = 0.1
    frequency: float = 5.0
    damping: float = 0.2

    def pivot(self, t):
        """Place of the pivot [m]."""
        return self.amplitude * jnp.sin(self.frequency * t)

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[1]

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v

    def position_constraints(self, t, q):
        x = q[0] - self.pivot(t)
        return jnp.stack([x**2 + q[1] ** 2 - self.length**2])

    def labels(self):
        return jaxdae.Labels(coordinates=("x", "y"), constraints=("rod",))

    def start(self):
        """Consistent state at t = 0, below the pivot and aside."""
        x, y = 0.3, -jnp.sqrt(self.length**2 - 0.09)
        # x (x' - p') + y y' = 0 with x' = 1
        v = jnp.stack([1.0, -x * (1 - self.amplitude * self.frequency) / y])
        return State(jnp.stack([x, y]), v)


class Sleigh(jaxdae.System):
    """Chaplygin's: a plate on ice with a knife edge at distance `arm` from its mass centre."""

    mass: float = 2.0
    inertia: float = 0.5
    arm: float = 0.3

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * (v[0] ** 2 + v[1] ** 2) + 0.5 * self.inertia * v[2] ** 2

    def velocity_constraints(self, t, q, v):
        return jnp.stack([-jnp.sin(q[2]) * v[0] + jnp.cos(q[2]) * v[1] - self.arm * v[2]])

    def labels(self):
        return jaxdae.Labels(coordinates=("x", "y", "angle"), constraints=("edge",))

    def at(self, angle, along, turn):
        """State at the origin with the given heading, speed along the edge, and turn rate."""
        cos, sin, across = np.cos(angle), np.sin(angle), self.arm * turn
        v = jnp.array([along * cos - across * sin, along * sin + across * cos, turn])
        return State(jnp.array([0.0, 0.0, angle]), v)


class Driven(jaxdae.System):
    """All terms at once, its velocity constraint affine.

    Four coordinates with an inertia that depends on them and on time, potential, dissipation, an
    actuator, one rheonomic position constraint, one rheonomic nonholonomic constraint.
    """

    mass: float = 1.2
    length: float = 1.5

    def kinetic_energy(self, t, q, v):
        inertia = 1 + 0.3 * q[0] ** 2 + 0.2 * jnp.sin(t)
        coupling = 0.4 * jnp.cos(q[2]) * v[0] * v[2] + 0.2 * q[1] * v[1] * v[3]
        linear = 0.3 * q[1] * v[0] + 0.1 * t * v[2]
        quadratic = 0.5 * (self.mass * v[:2] @ v[:2] + inertia * v[2] ** 2 + 0.8 * v[3] ** 2)
        return quadratic + coupling + linear

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[1] + (2 + jnp.cos(t)) * (q[1] ** 2 + q[0] * q[3])

    def dissipation(self, t, q, v):
        return 0.1 * (1 + 0.5 * jnp.sin(t)) * (v @ v) + 0.05 * q[0] ** 2 * v[2] ** 2

    def force(self, t, q, v, w, u):
        drive = 0.0 if u is None else u
        return jnp.stack([w[0] * jnp.cos(q[2]), jnp.sin(t) * v[2], w[0] + drive, 0.3 * v[1]])

    def position_constraints(self, t, q):
        arm = q[:2] - jnp.stack([0.2 * jnp.sin(t), jnp.zeros_like(t)])
        return jnp.stack([arm @ arm - self.length**2 + 0.2 * q[3]])

    def velocity_constraints(self, t, q, v):
        row = v[2] + q[0] * v[1] + 0.5 * jnp.sin(q[2]) * v[3]
        return jnp.stack([row - 0.5 * jnp.cos(t) + 0.1 * q[3]])

    def actuator_rate(self, t, q, v, w, u):
        drive = jnp.sin(3 * t) if u is None else u
        return jnp.stack([drive - w[0] - 0.2 * v[2] + 0.1 * q[0]])

    def labels(self):
        names = ("x", "y", "angle", "lift")
        return jaxdae.Labels(coordinates=names, constraints=("rod", "rolling"))

    def start(self, t=0.0):
        """A consistent state."""
        q, v = [1.2, -0.9, 0.3, 0.1], [0.5, 0.4, -0.3, 0.6]
        return jaxdae.consistent_state(self, q, v, t, w=[0.7])


@eqx.filter_jit
def _flow(system, formulation, state, t, u):
    """Velocity, acceleration, actuator rate and multipliers along a formulation's flow.

    The derivatives are those of what `recover` gives, along the vector field of its own state.
    """
    y = formulation.init(system, t, state)
    rate = formulation.vector_field(system, t, y, u)
    back = lambda t, y: formulation.recover(system, t, y)  # noqa: E731
    state, motion = jax.jvp(back, (t, y), (jnp.ones_like(t), rate))
    return state, motion, formulation.multipliers(system, t, y, u)


@pytest.fixture(scope="session")
def flow():
    """`flow(system, formulation, state, t, u)`: state, its rate, multipliers."""

    def of_arrays(system, formulation, state, t=0.0, u=None):
        # As arrays, times and inputs share a compiled program.
        dtype = state.q.dtype
        u = None if u is None else jnp.asarray(u, dtype)
        return _flow(system, formulation, state, jnp.asarray(t, dtype), u)

    return of_arrays


@pytest.fixture(scope="session")
def moving_pivot():
    return MovingPivot()


@pytest.fixture(scope="session")
def sleigh():
    return Sleigh()


@pytest.fixture(scope="session")
def driven():
    return Driven()
