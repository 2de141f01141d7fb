"""Vertical rolling disk."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractSolvedModel, COASTING, ConstraintStudy, Model, rolling
from jaxdae.systems import circle, Labels, Points


class RollingDisk(AbstractSolvedModel):
    r"""Disk that stays vertical and rolls without slipping on a horizontal plane.

    Coordinates `(x, y, theta, phi)`: point of contact, heading, angle of rolling.

        T = (m (x'^2 + y'^2) + J theta'^2 + I phi'^2) / 2
        g = (x' - R phi' cos theta, y' - R phi' sin theta) = 0

    Both angular velocities are constant and the point of contact moves on a circle of radius
    `R phi' / theta'` (a line for `theta' = 0`).

    Source: [Bloch2003, section 1.4].

    Args:
        mass: m [kg].
        radius: R [m].
        spin_inertia: I about the axle [kg m^2].
        turn_inertia: J about the vertical [kg m^2].
        roll_rate: phi' of the motion that starts [rad/s].
        turn_rate: theta' of the motion that starts [rad/s].
    """

    mass: float = 1.0
    radius: float = 0.5
    spin_inertia: float = 0.125
    turn_inertia: float = 0.0625
    roll_rate: float = 3.0
    turn_rate: float = 1.2

    def kinetic_energy(self, t, q, v):
        """T of translation, turning and rolling [J]."""
        turning = self.turn_inertia * v[2] ** 2 + self.spin_inertia * v[3] ** 2
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + turning)

    def velocity_constraints(self, t, q, v):
        """Velocity of slipping along x and y [m/s], shape (2,)."""
        rolling = self.radius * v[3]
        return jnp.stack([v[0] - rolling * jnp.cos(q[2]), v[1] - rolling * jnp.sin(q[2])])

    def labels(self) -> Labels:
        return Labels(
            ("x", "y", "theta", "phi"),
            ("m", "m", "rad", "rad"),
            ("rolling x", "rolling y"),
            ("m/s", "m/s"),
        )

    def points(self, t, q) -> Points:
        """Contact, centre, and the point of the rim that is the contact where `phi = 0`."""
        x, y, theta, phi = q
        up = jnp.array([0.0, 0.0, 1.0], q.dtype)
        ahead = jnp.stack([jnp.cos(theta), jnp.sin(theta), jnp.zeros_like(x)])
        contact = jnp.stack([x, y, jnp.zeros_like(x)])
        centre = contact + self.radius * up
        down = -jnp.sin(phi) * ahead - jnp.cos(phi) * up
        rim = centre + self.radius * down
        return Points(
            {"contact": contact, "_centre": centre, "rim": rim},
            links=(("_centre", "rim"),),
            outlines={"disk": circle(centre, self.radius, ahead, up)},
            trace=("contact", "rim"),
        )

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 4"]:
        """Motion from the origin, on a circle for a turning rate that is not zero.

        `x = (R phi' / theta') sin theta`, `y = (R phi' / theta') (1 - cos theta)`; written with
        `sin(z) / z`, it is the straight line for `theta' = 0`.
        """
        t = jnp.asarray(t, dtype=float)
        theta = self.turn_rate * t
        chord = self.radius * self.roll_rate * t * jnp.sinc(theta / (2 * jnp.pi))
        half = theta / 2
        x, y = chord * jnp.cos(half), chord * jnp.sin(half)
        return jnp.stack([x, y, theta, self.roll_rate * t])

    def multiplier(self, q: Float[Array, " 4"], v: Float[Array, " 4"]) -> Float[Array, " 2"]:
        """`lam = m R phi' theta' (sin theta, -cos theta)`: minus the centripetal force [N]."""
        size = self.mass * self.radius * v[3] * v[2]
        return size * jnp.stack([jnp.sin(q[2]), -jnp.cos(q[2])])

    def start(self) -> tuple[Float[Array, " 4"], Float[Array, " 4"]]:
        """At the origin, heading along x: coordinates and velocities, each of shape (4,)."""
        speed = self.radius * self.roll_rate
        return jnp.zeros(4), jnp.array([speed, 0.0, self.turn_rate, self.roll_rate])


MODELS = (
    Model(
        name="disk",
        summary="vertical disk that rolls without slipping",
        source="Bloch, Nonholonomic Mechanics and Control, 1.4",
        place=7,
        system=RollingDisk,
        formulation=rolling,
        t1=6.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=COASTING,
    ),
)
