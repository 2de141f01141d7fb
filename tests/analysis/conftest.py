"""Systems whose equilibria and spectra are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae


class Bead(jaxdae.System):
    """A mass on the parabola `y = c x^2 / 2`, in Cartesian coordinates, with a constant force."""

    mass: float = 1.3
    curvature: float = 0.8
    gravity: float = 9.81
    stiffness: float = 2.0
    drag: float = 0.4
    lift: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[1] + 0.5 * self.stiffness * q[0] ** 2

    def dissipation(self, t, q, v):
        return 0.5 * self.drag * v[0] ** 2

    def force(self, t, q, v, w, u):
        push = jnp.zeros_like(q).at[1].set(self.lift)
        return push if u is None else push.at[0].add(u[0])

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - 0.5 * self.curvature * q[0] ** 2])

    def labels(self):
        return jaxdae.Labels(("x", "y"), ("m", "m"), ("parabola",), ("m",))


class Knife(jaxdae.System):
    """Knife edge: velocity only along its heading; a spring holds its place along x."""

    spring: float = 3.0
    twist: float = 2.0
    drag: float = 0.7

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + v[1] ** 2 + 0.5 * v[2] ** 2)

    def potential_energy(self, t, q):
        return 0.5 * (self.spring * q[0] ** 2 + self.twist * q[2] ** 2)

    def dissipation(self, t, q, v):
        return 0.5 * self.drag * v @ v

    def velocity_constraints(self, t, q, v):
        return jnp.stack([jnp.sin(q[2]) * v[0] - jnp.cos(q[2]) * v[1]])


class RandomForces(jaxdae.System):
    """Random inertia, springs, dampers, gyroscopic and circulatory forces on a curved surface.

    Coordinates `q`, equilibrium at 0 with multiplier `lam`: the constant force `F = C^T lam` is
    balanced by the constraint `C q + q^T H q / 2 = 0`, whose curvature adds to the stiffness.
    """

    mass: jax.Array
    stiffness: jax.Array
    damping: jax.Array
    gyroscopic: jax.Array
    circulatory: jax.Array
    normal: jax.Array
    curvature: jax.Array
    lam: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ self.mass @ v

    def potential_energy(self, t, q):
        # The cubic term makes the motion nonlinear away from the equilibrium.
        return 0.5 * q @ self.stiffness @ q + 0.1 * jnp.sum(q**3)

    def dissipation(self, t, q, v):
        return 0.5 * v @ self.damping @ v

    def force(self, t, q, v, w, u):
        return self.gyroscopic @ v + self.circulatory @ q + self.normal * self.lam

    def position_constraints(self, t, q):
        return jnp.stack([self.normal @ q + 0.5 * q @ self.curvature @ q])


class RandomRolling(RandomForces):
    """The same, and the last velocity tied to the others by a nonholonomic constraint."""

    twist: jax.Array

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[-1] - (self.twist[0] + self.twist[1:] @ q[:2]) * v[1]])


def random_forces(kind: str, count: int, seed: int, n: int = 4):
    """`count` random systems of one kind, stacked for `jax.vmap`."""
    rng = np.random.default_rng(seed)

    def spd(least):
        a = rng.normal(size=(count, n, n))
        return a @ np.swapaxes(a, 1, 2) / n + least * np.eye(n)

    def skew(size):
        a = size * rng.normal(size=(count, n, n))
        return (a - np.swapaxes(a, 1, 2)) / 2

    stiffness = spd(0.3) - rng.uniform(0, 1.2, (count, 1, 1)) * np.eye(n)
    circulatory, damping = skew(0.8), rng.uniform(0.2, 1.5, (count, 1, 1)) * spd(0.2)
    fields = [
        spd(0.5),
        stiffness,
        damping,
        skew(1.5),
        circulatory,
        rng.normal(size=(count, n)) + np.array([3.0] + [0.0] * (n - 1)),
        spd(0.0) * rng.choice([-1, 1], (count, 1, 1)),
        0.3 * rng.normal(size=count),
    ]
    if kind == "rolling":
        fields.append(rng.normal(size=(count, 3)))
        return RandomRolling(*map(jnp.asarray, fields))
    return RandomForces(*map(jnp.asarray, fields))


@pytest.fixture(scope="session")
def bead():
    """The class: `bead(lift=…)`."""
    return Bead


@pytest.fixture(scope="session")
def knife():
    return Knife()


@pytest.fixture(scope="session")
def make_random_forces():
    return random_forces


def lane(tree, i):
    """One system or result of a batch."""
    return jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, tree)


@pytest.fixture(scope="session")
def take_lane():
    return lane
