"""Mobile robot with two driven wheels."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractSolvedModel, ConstraintStudy, Model, Rest, rolling
from jaxdae.systems import Labels, Points


class DifferentialDriveRobot(AbstractSolvedModel):
    r"""Body on two coaxial driven wheels that neither slip nor skid.

    Coordinates `(x, y, theta, right, left)`: middle of the axle, heading, angles of the wheels. The
    body's centre of mass lies at distance `d` ahead of the axle. The control input `u` holds the
    torques of the motors, right and left [N m]; without a controller there are none. Friction of
    bearings and the motors' back electromotive force are viscous, `c` [N m s] for each wheel.

        T = (m |c'|^2 + I theta'^2 + I_w (right'^2 + left'^2)) / 2
        D = c (right'^2 + left'^2) / 2
        g1 = y' cos theta - x' sin theta = 0                     no skidding
        g2 = x' cos theta + y' sin theta + b theta' - r right' = 0     right wheel rolls
        g3 = x' cos theta + y' sin theta - b theta' - r left' = 0      left wheel rolls

    On the constraints, with speed `v`, `w = theta'`, `m* = m + 2 I_w / r^2` and
    `I* = I + m d^2 + 2 I_w b^2 / r^2`,

        m* v' - m d w^2 = (u1 + u2) / r - 2 c v / r^2
        I* w' + m d v w = b (u1 - u2) / r - 2 c b^2 w / r^2

    Coasting straight on, `v` decays with the time constant `(m r^2 + 2 I_w) / (2 c)`.

    Source: [SiegwartNourbakhsh2004, chapter 3]; equations derived here.

    Args:
        mass: m of the body [kg].
        inertia: I of the body about its centre of mass [kg m^2].
        offset: d [m].
        wheel_inertia: I_w of each wheel and rotor about the axle [kg m^2].
        wheel_radius: r [m].
        half_track: b, half the distance of the wheels [m].
        friction: c [N m s].
        speed: v of the motion that starts [m/s].
        turn_rate: w of the motion that starts [rad/s].
    """

    mass: float = 8.0
    inertia: float = 0.12
    offset: float = 0.05
    wheel_inertia: float = 0.004
    wheel_radius: float = 0.08
    half_track: float = 0.18
    friction: float = 0.02
    speed: float = 0.6
    turn_rate: float = 0.8

    def kinetic_energy(self, t, q, v):
        """T of the body, from the velocity of its centre of mass, and of the wheels [J]."""
        x = v[0] - self.offset * v[2] * jnp.sin(q[2])
        y = v[1] + self.offset * v[2] * jnp.cos(q[2])
        wheels = self.wheel_inertia * (v[3] ** 2 + v[4] ** 2)
        return 0.5 * (self.mass * (x**2 + y**2) + self.inertia * v[2] ** 2 + wheels)

    def dissipation(self, t, q, v):
        """D = c (right'^2 + left'^2) / 2 [W]."""
        return 0.5 * self.friction * (v[3] ** 2 + v[4] ** 2)

    def force(self, t, q, v, w, u):
        """Torques of the motors on the wheels, shape (5,)."""
        if u is None:
            return jnp.zeros_like(q)
        return jnp.concatenate([jnp.zeros_like(q[:3]), jnp.asarray(u, q.dtype)])

    def velocity_constraints(self, t, q, v):
        """Velocities of skidding and of the wheels' slipping [m/s], shape (3,)."""
        cos, sin = jnp.cos(q[2]), jnp.sin(q[2])
        along, turning = v[0] * cos + v[1] * sin, self.half_track * v[2]
        return jnp.stack(
            [
                v[1] * cos - v[0] * sin,
                along + turning - self.wheel_radius * v[3],
                along - turning - self.wheel_radius * v[4],
            ]
        )

    def labels(self) -> Labels:
        return Labels(
            ("x", "y", "theta", "right", "left"),
            ("m", "m", "rad", "rad", "rad"),
            ("skidding", "rolling right", "rolling left"),
            ("m/s", "m/s", "m/s"),
            inputs=("torque right", "torque left"),
            input_units=("N m", "N m"),
        )

    def points(self, t, q) -> Points:
        """Axle, wheels and centre of mass, seen from above."""
        ahead = jnp.stack([jnp.cos(q[2]), jnp.sin(q[2])])
        aside = jnp.stack([-ahead[1], ahead[0]])
        axle, roll = q[:2], self.wheel_radius * ahead
        right, left = axle - self.half_track * aside, axle + self.half_track * aside
        return Points(
            {
                "axle": axle,
                "right": right,
                "left": left,
                "centre of mass": axle + self.offset * ahead,
                "_right front": right + roll,
                "_right back": right - roll,
                "_left front": left + roll,
                "_left back": left - roll,
            },
            links=(
                ("right", "axle", "left"),
                ("axle", "centre of mass"),
                ("_right front", "right", "_right back"),
                ("_left front", "left", "_left back"),
            ),
            trace=("axle",),
        )

    def steady_torques(self) -> Float[Array, " 2"]:
        """Torques that keep `speed` and `turn_rate` constant [N m], shape (2,)."""
        r, b, v, w = self.wheel_radius, self.half_track, self.speed, self.turn_rate
        total = 2 * self.friction * v / r - self.mass * self.offset * w**2 * r
        difference = 2 * self.friction * b * w / r + self.mass * self.offset * v * w * r / b
        return jnp.stack([jnp.asarray(total + difference), jnp.asarray(total - difference)]) / 2

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 5"]:
        """Motion under `steady_torques`, from the origin: the axle's middle moves on a circle."""
        t = jnp.asarray(t, dtype=float)
        theta = self.turn_rate * t
        chord = self.speed * t * jnp.sinc(theta / (2 * jnp.pi))
        turning = self.half_track * self.turn_rate
        right = (self.speed + turning) / self.wheel_radius * t
        left = (self.speed - turning) / self.wheel_radius * t
        x, y = chord * jnp.cos(theta / 2), chord * jnp.sin(theta / 2)
        return jnp.stack([x, y, theta, right, left])

    def start(self) -> tuple[Float[Array, " 5"], Float[Array, " 5"]]:
        """At the origin, heading along x: coordinates and velocities, each of shape (5,)."""
        return self.exact_motion(0.0)


MODELS = (
    Model(
        name="robot",
        summary="mobile robot on two driven wheels, coasting without a controller",
        source="Siegwart, Nourbakhsh, Introduction to Autonomous Mobile Robots, ch. 3",
        place=12,
        system=DifferentialDriveRobot,
        formulation=rolling,
        t1=6.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=Rest(
            guess=lambda _: jnp.zeros(5), inputs=2, remark="parked; it may be parked anywhere"
        ),
    ),
)
