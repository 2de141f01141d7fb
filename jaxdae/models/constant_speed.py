"""Constraints that are not affine in the velocities: constant speed, and Appell's and Hamel's."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel, AbstractSolvedModel, ConstraintStudy, Model, rolling
from jaxdae.systems import Labels, Points


class ConstantSpeed(AbstractSolvedModel):
    r"""A point in a vertical plane whose speed is held constant, under gravity.

        T = m |v|^2 / 2,    V = m g y,    g(v) = |v|^2 - c^2 = 0

    The constraint is not affine in the velocities. By Chetaev's rule virtual displacements are
    `(dg/dv) dq = 2 v . dq = 0`, so the reaction `-2 lam v` acts along the path, and gravity only
    turns it: `c theta' = -g cos theta` for the angle `theta` of the path.

    Source: [Chetaev1932; NeimarkFufaev1972, chapter IV].

    Args:
        mass: m [kg].
        speed: c [m/s], positive.
        gravity: g [m/s^2].
        climb: angle of the path at t = 0 from the horizontal [rad], within (-pi/2, pi/2).
    """

    mass: float = 1.5
    speed: float = 4.0
    gravity: float = 9.81
    climb: float = 1.0

    def kinetic_energy(self, t, q, v):
        """T = m |v|^2 / 2 [J]."""
        return 0.5 * self.mass * (v @ v)

    def potential_energy(self, t, q):
        """V = m g y [J]."""
        return self.mass * self.gravity * q[1]

    def velocity_constraints(self, t, q, v):
        """Square of the speed less that of c [m^2/s^2], shape (1,)."""
        return jnp.stack([v @ v - self.speed**2])

    def labels(self) -> Labels:
        return Labels(("x", "y"), ("m", "m"), ("speed",), ("m^2/s^2",))

    def points(self, t, q) -> Points:
        return Points({"point": q}, trace=("point",))

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 2"]:
        r"""Motion in closed form.

        With `s = g t / c - artanh(sin climb)`: `sin theta = -tanh s`, `cos theta = sech s`, and

            x = (c^2 / g) gd s,    y = -(c^2 / g) ln cosh s

        less their values at t = 0, with the Gudermannian `gd s = arctan sinh s`. From the
        horizontal it is `sin theta = -tanh(g t / c)`.
        """
        start = -jnp.arctanh(jnp.sin(jnp.asarray(self.climb)))
        s = start + self.gravity / self.speed * jnp.asarray(t, dtype=float)
        length = self.speed**2 / self.gravity
        return length * (_curve(s) - _curve(start))

    def multiplier(self, v: Float[Array, " 2"]) -> Float[Array, " 1"]:
        """`lam = -m g v_y / (2 c^2)`: the reaction carries the weight along the path [kg/s]."""
        return jnp.stack([-self.mass * self.gravity * v[1] / (2 * self.speed**2)])

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """At the origin, climbing: coordinates and velocities, each of shape (2,)."""
        direction = jnp.stack([jnp.cos(jnp.asarray(self.climb)), jnp.sin(jnp.asarray(self.climb))])
        return jnp.zeros(2), self.speed * direction


class AppellHamel(AbstractModel):
    r"""A point whose horizontal speed is a fixed multiple of its vertical one (Appell, Hamel).

        T = m |v|^2 / 2,    V = m g z,    g(v) = x'^2 + y'^2 - a^2 z'^2 = 0

    Appell's mechanism of a wheel and a thread, without its wheel. By Chetaev's rule the heading
    stays and the point falls with `z'' = -g / (1 + a^2)`. Where `z' = 0` all velocities and with
    them `J` vanish: the motion ends there.

    Source: [Appell1911; Hamel1949; NeimarkFufaev1972, chapter IV].

    Args:
        mass: m [kg].
        ratio: a, positive.
        gravity: g [m/s^2].
        fall: speed of the fall at t = 0 [m/s], positive.
        heading: horizontal direction of the motion from x [rad].
    """

    mass: float = 1.5
    ratio: float = 0.7
    gravity: float = 9.81
    fall: float = 1.0
    heading: float = 0.4

    def kinetic_energy(self, t, q, v):
        """T = m |v|^2 / 2 [J]."""
        return 0.5 * self.mass * (v @ v)

    def potential_energy(self, t, q):
        """V = m g z [J]."""
        return self.mass * self.gravity * q[2]

    def velocity_constraints(self, t, q, v):
        """Squares of the horizontal and of the scaled vertical speed [m^2/s^2], shape (1,)."""
        return jnp.stack([v[0] ** 2 + v[1] ** 2 - (self.ratio * v[2]) ** 2])

    def labels(self) -> Labels:
        return Labels(("x", "y", "z"), ("m", "m", "m"), ("thread",), ("m^2/s^2",))

    def points(self, t, q) -> Points:
        return Points({"point": q}, trace=("point",))

    def exact_motion(
        self, t: Float[Array, ""] | float
    ) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Coordinates and velocities at a time [s] after the start, each of shape (3,)."""
        t = jnp.asarray(t, dtype=float)
        rate = self.gravity / (1 + self.ratio**2)
        direction = self._direction()
        return direction * (self.fall * t + rate * t**2 / 2), direction * (self.fall + rate * t)

    def multiplier(self, v: Float[Array, " 3"]) -> Float[Array, " 1"]:
        """`lam = m g / (2 (1 + a^2) z')` [kg/s]."""
        return jnp.stack([self.mass * self.gravity / (2 * (1 + self.ratio**2) * v[2])])

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """At the origin, falling: coordinates and velocities, each of shape (3,)."""
        return jnp.zeros(3), self.fall * self._direction()

    def _direction(self):
        heading = jnp.asarray(self.heading)
        cos, sin = jnp.cos(heading), jnp.sin(heading)
        return jnp.stack([self.ratio * cos, self.ratio * sin, -jnp.ones_like(cos)])


def _curve(s):
    """`(gd s, -ln cosh s)`, shape (2,)."""
    return jnp.stack([jnp.arctan(jnp.sinh(s)), -jnp.log(jnp.cosh(s))])


MODELS = (
    Model(
        name="constant-speed",
        summary="point whose speed is held constant, a constraint not affine in the velocities",
        source="Chetaev (1932-33); Neimark, Fufaev, ch. IV",
        place=9,
        system=ConstantSpeed,
        formulation=rolling,
        t1=2.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest="its constraint keeps it moving",
    ),
    Model(
        name="appell-hamel",
        summary="point whose horizontal speed is a multiple of its vertical one",
        source="Appell (1911); Hamel (1949); Neimark, Fufaev, ch. IV",
        place=10,
        system=AppellHamel,
        formulation=rolling,
        t1=2.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest="at rest its constraint has no gradient, so that no reaction is defined there",
    ),
)
