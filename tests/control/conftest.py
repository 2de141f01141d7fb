"""Plants that the tests of control share."""

import equinox as eqx
import jax.numpy as jnp
import pytest

import jaxdae


class Actuated(jaxdae.System):
    """Point of mass `mass` in the plane; each force comes through a chain of actuators.

    `delays = (a, b)`: the force along x is the control behind `a` integrators, along y behind `b`.
    """

    delays: tuple[int, int] = eqx.field(static=True, default=(0, 0))
    mass: float = 2.0
    stiffness: float = 3.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        del t
        return 0.25 * self.stiffness * (q @ q) ** 2 + q[0] * q[1]

    def force(self, t, q, v, w, u):
        del t, v
        a, b = self.delays
        first = u[0] if a == 0 else w[0]
        second = u[1] if b == 0 else w[a]
        return jnp.stack([first, (2 + jnp.cos(q[0])) * second])

    def actuator_rate(self, t, q, v, w, u):
        del t, q
        a, b = self.delays
        chains = (jnp.append(w[1:a], u[0])[:a], jnp.append(w[a + 1 : a + b], u[1])[:b])
        return jnp.concatenate(chains) - 0.1 * w * v[0]

    def state(self):
        """A state with nothing zero."""
        w = 0.3 + 0.1 * jnp.arange(sum(self.delays), dtype=float)
        return jaxdae.State(jnp.array([0.4, -0.7]), jnp.array([0.2, 0.5]), w)


class Forced(jaxdae.System):
    """Unit mass on a line under a force `law(t, q, u)`."""

    law: object = eqx.field(static=True)

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del v, w
        return jnp.stack([self.law(t, q, u)])  # pyright: ignore[reportCallIssue]


@pytest.fixture(scope="session")
def actuated():
    """The class: `actuated(delays)`."""
    return Actuated


@pytest.fixture(scope="session")
def forced():
    """The class: `forced(law)`."""
    return Forced
