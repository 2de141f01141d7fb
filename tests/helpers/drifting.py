"""A system whose velocity constraints are violated by displacements at rest."""

import jax.numpy as jnp

import jaxdae


class Drifting(jaxdae.System):
    """`v2 = growth q2 + pull q1`, and further coordinates that follow in `rates`; a push on `q1`.

    Displacements at rest violate the first constraint: `q2` moves by itself, and by `q1`.
    """

    growth: float = 0.5
    pull: float = 1.0
    rates: tuple[tuple[float, float], ...] = ()

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(q).at[0].set(u[0])

    def position_constraints(self, t, q):
        return jnp.stack([q[-1] - q[0] ** 2])

    def velocity_constraints(self, t, q, v):
        first = v[1] - self.growth * q[1] - self.pull * q[0]
        others = [v[i + 2] - a * q[0] - b * q[1] for i, (a, b) in enumerate(self.rates)]
        return jnp.stack([first, *others])


def drifting(**parameters):
    system = Drifting(**parameters)
    rest = jaxdae.equilibrium(system, jnp.zeros(3 + len(system.rates)), u=jnp.zeros(1))
    return system, jaxdae.linearize(system, rest, independent=("q1",))
