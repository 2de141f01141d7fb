"""Systems with closed forms, and the motion of a formulation in the system's own terms."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxdae


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
def driven():
    return Driven()
