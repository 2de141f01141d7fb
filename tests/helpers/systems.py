"""Small systems that tests of several rooms share."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

import jaxdae


class UnitMass(jaxdae.System):
    """Coordinates with a mass of one each, for declarations of forces and constraints."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


class Point(jaxdae.System):
    """A mass in the plane, free of forces."""

    mass: Any = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v


class HarmonicOscillator(jaxdae.System):
    """`q'' = -k q`, whose solution is a cosine; one that explodes where `k` is not finite."""

    stiffness: Any = 4.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * q @ q


class Blowup(jaxdae.System):
    """`q' = v`, `v' = growth v^2`: from `v = 1` infinite at `t = 1 / growth`."""

    growth: Any = 2.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return self.growth * v**2


class DoublePendulum(jaxdae.System):
    """Two point masses on rods in series, both angles from the downward vertical."""

    m1: float = 1.3
    m2: float = 0.7
    l1: float = 0.9
    l2: float = 0.6
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        cross = 2 * self.l1 * self.l2 * v[0] * v[1] * jnp.cos(q[0] - q[1])
        first = (self.l1 * v[0]) ** 2
        return 0.5 * (self.m1 * first + self.m2 * (first + (self.l2 * v[1]) ** 2 + cross))

    def potential_energy(self, t, q):
        y1 = -self.l1 * jnp.cos(q[0])
        return self.gravity * (self.m1 * y1 + self.m2 * (y1 - self.l2 * jnp.cos(q[1])))


class Everything(jaxdae.System):
    """Every function of a declaration at once, each depending on all it may depend on.

    Three coordinates, one rheonomic position constraint, one nonholonomic constraint that is not
    affine in the velocities, one actuator state, one input.
    """

    mass: float = 1.2
    length: float = 1.5

    def kinetic_energy(self, t, q, v):
        a, b, c = v
        inertia = 0.5 * (1 + 0.3 * q[0] ** 2 + 0.2 * jnp.sin(t)) * c**2
        return 0.5 * self.mass * (a**2 + b**2) + inertia + 0.4 * jnp.cos(q[2]) * a * c

    def potential_energy(self, t, q):
        spring = (2 + jnp.cos(t)) * (q[1] ** 2 + q[0] * q[2])
        return self.mass * 9.81 * q[1] + spring

    def dissipation(self, t, q, v):
        return 0.1 * (1 + 0.5 * jnp.sin(t)) * (v @ v) + 0.05 * q[0] ** 2 * v[2] ** 2

    def force(self, t, q, v, w, u):
        drive = 0.0 if u is None else u
        return jnp.stack([w[0] * jnp.cos(q[2]), jnp.sin(t) * v[2], w[0] + drive])

    def position_constraints(self, t, q):
        pivot = jnp.stack([0.2 * jnp.sin(t), jnp.zeros_like(t)])
        arm = q[:2] - pivot
        return jnp.stack([arm @ arm - self.length**2])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[2] + 0.3 * v[0] ** 2 + q[0] * v[1] - 0.5 * jnp.cos(t)])

    def actuator_rate(self, t, q, v, w, u):
        drive = jnp.sin(3 * t) if u is None else u
        return jnp.stack([drive - w[0] - 0.2 * v[2] + 0.1 * q[0]])

    def labels(self):
        return jaxdae.Labels(
            coordinates=("x", "y", "angle"),
            units=("m", "m", "rad"),
            constraints=("rod", "rolling"),
            constraint_units=("m^2", "m/s"),
        )


class MassOnCircle(jaxdae.System):
    """Unit mass on a circle: `q = (cos a, sin a)`, `a' = exp(-t / 2)`, `lam = a'^2 / 2`.

    That is its motion from `start()`, with the constraint stated once; `copies` repeat it.
    """

    copies: int = 1

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def dissipation(self, t, q, v):
        return 0.25 * v @ v

    def position_constraints(self, t, q):
        return (q @ q - 1.0) * jnp.arange(1, 1 + self.copies, dtype=q.dtype)

    def start(self):
        """State at `t = 0`, with a velocity of 1 m/s along the circle."""
        return jaxdae.State(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))


class DrivenPendulum(jaxdae.System):
    """A mass that depends on its place, on a rope of varying length from a moving support."""

    rope: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v * (1 + 0.1 * q[0] ** 2)

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def position_constraints(self, t, q):
        length = self.rope + 0.1 * jnp.cos(2 * t)
        return jnp.stack([(q[0] - 0.2 * jnp.sin(3 * t)) ** 2 + q[1] ** 2 - length**2])

    def start(self):
        """A consistent state at `t = 0`."""
        return jaxdae.consistent_state(self, jnp.array([0.5, -0.9]), jnp.array([0.3, 0.2]))


class LedPoint(jaxdae.System):
    """A unit mass on the unit circle whose abscissa is led: `x = speed t`.

    Both constraints fix the motion; at `t = 1 / speed` the target leaves the circle, and the
    Jacobian `[[2x, 2y], [1, 0]]` loses rank there and nowhere before.
    """

    speed: float = 0.5

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - 1, q[0] - self.speed * t])

    def labels(self):
        return jaxdae.Labels(constraints=("circle", "leader"))

    def start(self):
        """State at `t = 0`, on top of the circle."""
        return jaxdae.State(jnp.array([0.0, 1.0]), jnp.stack([self.speed * jnp.ones(()), 0.0]))


class RepeatedRod(jaxdae.System):
    """A point mass on a rod whose constraint is stated `len(weights)` times over."""

    weights: tuple = eqx.field(static=True, default=(1.0, 1.0))
    length: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * (1.0 * v[0] ** 2 + 2.0 * v[1] ** 2)

    def potential_energy(self, t, q):
        return 2.0 * 9.81 * q[1]

    def position_constraints(self, t, q):
        return jnp.asarray(self.weights, q.dtype) * (q @ q - self.length**2)


class Massless(jaxdae.System):
    """A mass on the curve `y = x^2 / 2`, where `y` carries no inertia of its own."""

    mass: float = 1.5
    stiffness: float = 4.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v[0] ** 2

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * q[1] ** 2

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - 0.5 * q[0] ** 2])


class Turning(jaxdae.System):
    """A rigid body in a field, by a quaternion and angular velocities, one point on a surface."""

    def rate(self, t, q, v):
        w, x, y, z = q
        return 0.5 * jnp.array([[-x, -y, -z], [w, -z, y], [z, w, -x], [-y, x, w]]) @ v

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v**2) @ jnp.array([1.0, 2.0, 3.0])

    def potential_energy(self, t, q):
        return 2.0 * (q[1] * q[3] - q[0] * q[2]) + q[0] ** 2 - q[1] ** 2

    def position_constraints(self, t, q):
        return jnp.stack([q[1] * q[2] + q[0] * q[3]])

    def start(self):
        """A consistent state at `t = 0`."""
        q = jnp.array([0.9, 0.1, 0.2, 0.3]) / 0.95**0.5
        return jaxdae.consistent_state(self, q, jnp.array([1.0, 2.0, 0.5]))


class Actuated(jaxdae.System):
    """Point of mass `mass` in the plane; each force comes through a chain of actuators.

    `delays = (a, b)`: the force along x is the control behind `a` integrators, along y behind `b`.
    """

    delays: tuple[int, int] = eqx.field(static=True, default=(0, 0))
    mass: float = 2.0
    stiffness: float = 3.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return 0.25 * self.stiffness * (q @ q) ** 2 + q[0] * q[1]

    def force(self, t, q, v, w, u):
        a, b = self.delays
        first = u[0] if a == 0 else w[0]
        second = u[1] if b == 0 else w[a]
        return jnp.stack([first, (2 + jnp.cos(q[0])) * second])

    def actuator_rate(self, t, q, v, w, u):
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
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return jnp.stack([self.law(t, q, u)])  # pyright: ignore[reportCallIssue]


class Bead(jaxdae.System):
    """Unit mass on the unit circle, under gravity and a force `push(q, u)`."""

    push: object = eqx.field(static=True)
    gravity: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return self.gravity * q[1]

    def force(self, t, q, v, w, u):
        return self.push(q, u)  # pyright: ignore[reportCallIssue]

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - 1.0])
