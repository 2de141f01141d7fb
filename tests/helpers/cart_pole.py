"""A cart with a pendulum, in Cartesian coordinates: three numbers and their rates, one rod."""

import jax.numpy as jnp

import jaxdae


class CartPole(jaxdae.System):
    """`q = (x, a, b)`: the cart, and the place of the pendulum's mass; `u` pushes the cart.

    Args:
        cart: mass of the cart [kg].
        bob: mass of the pendulum [kg].
        length: of its rod, which has no mass [m].
        gravity: [m/s^2].
    """

    cart: float = 1.0
    bob: float = 0.2
    length: float = 0.5
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        return 0.5 * (self.cart * v[0] ** 2 + self.bob * (v[1] ** 2 + v[2] ** 2))

    def potential_energy(self, t, q):
        return self.bob * self.gravity * q[2]

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(q) if u is None else jnp.zeros_like(q).at[0].set(u[0])

    def position_constraints(self, t, q):
        return jnp.stack([(q[1] - q[0]) ** 2 + q[2] ** 2 - self.length**2])

    def at(self, x, angle, x_dot=0.0, rate=0.0) -> jaxdae.State:
        """The state with the cart at a place and the pendulum at an angle from the upright."""
        s, c = self.length * jnp.sin(angle), self.length * jnp.cos(angle)
        q = jnp.stack([x, x + s, c])
        return jaxdae.State(q, jnp.stack([x_dot, x_dot + rate * c, -rate * s]))
