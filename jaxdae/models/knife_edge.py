"""Knife edge on an inclined plane."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractSolvedModel, ConstraintStudy, Model, Rest, rolling
from jaxdae.systems import Labels, Points


class KnifeEdge(AbstractSolvedModel):
    r"""Blade on an inclined plane that cannot move sideways; its point of contact is its centre.

    Coordinates `(x, y, theta)`: x points down the slope, y across it, theta is the blade's heading
    from x.

        T = (m (x'^2 + y'^2) + I theta'^2) / 2,    V = -m g x sin(alpha)
        g = x' sin theta - y' cos theta = 0

    It turns at a constant rate, `theta = w t`, and does not run down the slope: released at rest
    with a turning rate `w` it drifts across it, along a cycloid, at `g sin(alpha) / (2 w)`
    on average.

    Source: [NeimarkFufaev1972, chapter III; Bloch2003, section 1.6].

    Args:
        mass: m [kg].
        inertia: I about the vertical through the contact [kg m^2].
        gravity: g [m/s^2].
        slope: alpha [rad].
        turn_rate: w of the motion that starts [rad/s], not zero.
        speed: along the blade at t = 0, where it heads down the slope [m/s].
    """

    mass: float = 1.0
    inertia: float = 0.2
    gravity: float = 9.81
    slope: float = 0.3
    turn_rate: float = 2.0
    speed: float = 0.0

    def kinetic_energy(self, t, q, v):
        """T of translation and turning [J]."""
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + self.inertia * v[2] ** 2)

    def potential_energy(self, t, q):
        """V = -m g x sin(alpha) [J]."""
        return -self.mass * self._pull() * q[0]

    def velocity_constraints(self, t, q, v):
        """Sideways velocity, to the right of the heading [m/s], shape (1,)."""
        return jnp.stack([v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2])])

    def labels(self) -> Labels:
        return Labels(("x", "y", "theta"), ("m", "m", "rad"), ("blade",), ("m/s",))

    def points(self, t, q) -> Points:
        """The blade in space, as long as twice its radius of gyration, z up."""
        half = jnp.sqrt(self.inertia / jnp.asarray(self.mass))
        along = half * jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        return Points(
            {
                "contact": self._in_space(q[:2]),
                "_heel": self._in_space(q[:2] - along),
                "toe": self._in_space(q[:2] + along),
            },
            links=(("_heel", "contact", "toe"),),
            trace=("contact",),
        )

    def _in_space(self, place):
        """A place `(x, y)` of the inclined plane, shape (3,)."""
        slope = jnp.asarray(self.slope)
        return jnp.stack([place[0] * jnp.cos(slope), place[1], -place[0] * jnp.sin(slope)])

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 3"]:
        r"""Motion in closed form from the origin.

        The speed along the blade is `c + (p / w) sin theta` with `p = g sin(alpha)` and its initial
        value `c`; with `theta = w t`

            x = (c / w) sin theta + (p / 2 w^2) sin^2 theta
            y = (c / w) (1 - cos theta) + (p / 2 w^2) (theta - sin(2 theta) / 2)
        """
        w, theta = self.turn_rate, self.turn_rate * jnp.asarray(t, dtype=float)
        run, fall = self.speed / w, self._pull() / (2 * w**2)
        x = run * jnp.sin(theta) + fall * jnp.sin(theta) ** 2
        y = run * (1 - jnp.cos(theta)) + fall * (theta - jnp.sin(2 * theta) / 2)
        return jnp.stack([x, y, theta])

    def multiplier(self, q: Float[Array, " 3"], v: Float[Array, " 3"]) -> Float[Array, ""]:
        """`lam = m (v w + g sin(alpha) sin theta)`, the force to the left of the heading [N]."""
        along = v[0] * jnp.cos(q[2]) + v[1] * jnp.sin(q[2])
        return self.mass * (along * v[2] + self._pull() * jnp.sin(q[2]))

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """At the origin, heading down the slope: coordinates and velocities, each of shape (3,)."""
        return jnp.zeros(3), jnp.stack([jnp.asarray(x) for x in (self.speed, 0.0, self.turn_rate)])

    def _pull(self):
        """Acceleration of gravity down the slope [m/s^2]."""
        return self.gravity * jnp.sin(jnp.asarray(self.slope))


MODELS = (
    Model(
        name="knife-edge",
        summary="blade on an inclined plane",
        source="Neimark, Fufaev, ch. III; Bloch, 1.6",
        place=8,
        system=KnifeEdge,
        formulation=rolling,
        t1=6.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=Rest(
            guess=lambda _: jnp.array([0.0, 0.0, 0.5 * jnp.pi]),
            remark="blade across the slope, where it carries the weight; it rests so anywhere",
        ),
    ),
)
