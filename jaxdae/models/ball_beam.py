"""Ball on a beam that a wheel tilts through a rod; direct-current motor included."""

from abc import abstractmethod
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.analysis import equilibrium, linearize, lqr, RegulatorFeedback
from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.reprs import shown
from jaxdae.systems import circle, Labels, Points, State

_ELECTRICAL = {
    "actuators": ("current",),
    "actuator_units": ("A",),
    "inputs": ("voltage",),
    "input_units": ("V",),
}
# Deviations that count one each: ball [m], wheel [rad], voltage [V]; rates and current count none.
_BALL, _WHEEL, _VOLTAGE = 0.05, 1.0, 1.0


class AbstractBallBeam(AbstractModel):
    r"""What the exact and the simplified ball and beam share.

    With the ball's place `r` on the beam, the beam's angle `alpha`, the wheel's angle `theta` and
    the motor's current `i` (the actuator state; the voltage `e` is the input),

        T = m (r'^2 + r^2 alpha'^2) / 2 + J (r'/R - alpha')^2 / 2 + J0 theta'^2 / 2
        V = m g r sin(alpha),    torque on theta: K2 i - b0 theta'
        L_a di/dt + R_a i + K3 theta' = K1 e

    Rolling without slip. These energies have the ball's centre on the beam's line; they hold for
    `r` much larger than `R` (remark 4 of the paper). With the centre at the height `h` above it,
    and `r` the distance of the contact,

        T = m ((r' - h alpha')^2 + r^2 alpha'^2) / 2 + ...,    V = m g (r sin(alpha) + h cos(alpha))

    which is exact for `h = R` (`centre_height`). At rest with the ball
    at any `r0`: `theta = alpha = 0`, `i0 = d m g r0 / (L K2)`, `e0 = R_a i0 / K1`. Without a
    controller the voltage is `e0`.

    Sources: equations, [Krasinskaya2013, section 6], for the teaching rig GBB1005 of Googol
    Technology. That rig's numbers are not public as far as could be found. The defaults are those
    of Quanser's: ball and beam (configuration file and [QuanserBB01, table 3.1]: `m`, `R`, `L`,
    `d`, `J = 2 m R^2 / 5`) driven by the servo in high gear ([QuanserSRV02, table 3.1]: resistance,
    inductance, torque and back-emf constant 7.68e-3, gear ratio 70, efficiencies 0.69 and 0.90,
    damping 0.015; inertia 0.90 * 70^2 * 4.606e-7 of the rotor and 5.28e-5 of the gears). The length
    of the rod is assumed, and so is `K1 = 1`.

    Args:
        ball_mass: m [kg].
        ball_radius: R [m].
        ball_inertia: J [kg m^2].
        wheel_inertia: J0, seen from the wheel [kg m^2].
        beam_length: L [m].
        wheel_radius: d, of the rod's joint [m].
        rod_length: l [m]; assumed.
        gravity: g [m/s^2].
        wheel_damping: b0 [N m s/rad].
        resistance: R_a [Ohm].
        inductance: L_a [H].
        supply_gain: K1 [-].
        torque_constant: K2, at the wheel [N m/A].
        emf_constant: K3, at the wheel [V s/rad].
        rest_position: r0 [m], not zero.
        centre_height: h [m]; zero as in the paper, `ball_radius` without its approximation.
    """

    ball_mass: float = 0.064
    ball_radius: float = 0.0127
    ball_inertia: float = 0.4 * 0.064 * 0.0127**2
    wheel_inertia: float = 5.28e-5 + 0.90 * 70**2 * 4.606e-7
    beam_length: float = 0.42545
    wheel_radius: float = 0.0254
    rod_length: float = 0.1
    gravity: float = 9.81
    wheel_damping: float = 0.015
    resistance: float = 2.6
    inductance: float = 0.18e-3
    supply_gain: float = 1.0
    torque_constant: float = 0.90 * 0.69 * 70 * 7.68e-3
    emf_constant: float = 70 * 7.68e-3
    rest_position: float = 0.2
    centre_height: float = 0.0

    @abstractmethod
    def wheel(self, q: Float[Array, " n"]) -> Float[Array, ""]:
        """The wheel's angle (or its rate, from velocities), an entry of `q`."""

    def ball_and_beam_energy(self, r, r_dot, alpha_dot):
        """Kinetic energy of the ball [J]."""
        spin = r_dot / self.ball_radius - alpha_dot
        travel = (r_dot - self.centre_height * alpha_dot) ** 2 + (r * alpha_dot) ** 2
        return 0.5 * (self.ball_mass * travel + self.ball_inertia * spin**2)

    def weight_energy(self, r, alpha):
        """Potential energy of the ball [J]."""
        height = r * jnp.sin(alpha) + self.centre_height * jnp.cos(alpha)
        return self.ball_mass * self.gravity * height

    def dissipation(self, t, q, v):
        """Friction of the motor and its gear, b0 theta'^2 / 2 [W]."""
        return 0.5 * self.wheel_damping * self.wheel(v) ** 2

    def force(self, t, q, v, w, u):
        """Torque of the motor on the wheel, K2 i [N m]."""
        return jnp.zeros_like(q).at[-1].set(self.torque_constant * w[0])

    def actuator_rate(self, t, q, v, w, u):
        """Kirchhoff's law of the motor's circuit, di/dt [A/s], shape (1,)."""
        voltage = self.rest_voltage() if u is None else jnp.reshape(u, ())
        drive = self.supply_gain * voltage - self.emf_constant * self.wheel(v)
        return (drive - self.resistance * w) / self.inductance

    def rest_current(self) -> Float[Array, ""]:
        """i0 = d m g r0 / (L K2) [A]."""
        weight = self.ball_mass * self.gravity * self.rest_position
        return jnp.asarray(self.transmission() * weight / self.torque_constant)

    def rest_voltage(self) -> Float[Array, ""]:
        """e0 = R_a i0 / K1 [V]."""
        return self.resistance * self.rest_current() / self.supply_gain

    def transmission(self):
        """B(0) = d / L: the beam's angular velocity per the wheel's, at rest."""
        return self.wheel_radius / self.beam_length

    def actuators(self) -> Float[Array, " 1"]:
        """Current of the equilibrium [A], shape (1,)."""
        return self.rest_current()[None]

    def rest(self) -> State:
        """The equilibrium with the ball at `rest_position`."""
        return State(*self.start(), self.actuators())

    def _drawn(self, r, alpha, theta, *, rod: bool) -> Points:
        """Beam, ball with a mark, wheel and rod; the beam's pivot is the origin."""
        along = jnp.stack([jnp.cos(alpha), jnp.sin(alpha)])
        across = jnp.stack([-along[1], along[0]])
        d, R = self.wheel_radius, self.ball_radius
        centre = r * along + self.centre_height * across
        # It turns with the beam, and rolls on it.
        turned = alpha - r / R
        mark = centre + R * jnp.stack([-jnp.sin(turned), jnp.cos(turned)])
        wheel = jnp.stack([jnp.asarray(self.beam_length - d), -jnp.asarray(self.rod_length)])
        joint = wheel + d * jnp.stack([jnp.cos(theta), jnp.sin(theta)])
        places = {"pivot": jnp.zeros_like(along), "end": self.beam_length * along}
        places |= {"ball": centre, "_mark": mark, "wheel": wheel, "joint": joint}
        links = (("pivot", "end"), ("ball", "_mark"), ("wheel", "joint"))
        return Points(
            places,
            links=(*links, ("joint", "end")) if rod else links,
            outlines={"ball": circle(centre, R), "wheel": circle(wheel, d)},
            trace=("ball",),
            fixed=("pivot", "wheel"),
        )


class BallBeam(AbstractBallBeam):
    r"""Ball and beam with the exact constraint of the rod between beam and wheel.

    Coordinates `q = (r, alpha, theta)`, one of them redundant:

        f = (L (cos alpha - 1) + d (1 - cos theta))^2 + (L sin alpha + l - d sin theta)^2 - l^2 = 0

    See `AbstractBallBeam` for everything else.
    """

    def kinetic_energy(self, t, q, v):
        wheel = 0.5 * self.wheel_inertia * v[2] ** 2
        return self.ball_and_beam_energy(q[0], v[0], v[1]) + wheel

    def potential_energy(self, t, q):
        return self.weight_energy(q[0], q[1])

    def position_constraints(self, t, q):
        _, alpha, theta = q
        along = self.beam_length * (jnp.cos(alpha) - 1) + self.wheel_radius * (1 - jnp.cos(theta))
        rise = self.beam_length * jnp.sin(alpha) - self.wheel_radius * jnp.sin(theta)
        # (rise + l)^2 - l^2, without the cancellation of l^2.
        return jnp.stack([along**2 + rise * (rise + 2 * self.rod_length)])

    def wheel(self, q):
        return q[2]

    def labels(self) -> Labels:
        return Labels(
            coordinates=("r", "alpha", "theta"),
            units=("m", "rad", "rad"),
            constraints=("rod",),
            constraint_units=("m^2",),
            **_ELECTRICAL,
        )

    def points(self, t, q) -> Points:
        return self._drawn(q[0], q[1], q[2], rod=True)

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Beam and wheel level, ball at `rest_position`, at rest; each of shape (3,)."""
        q = jnp.zeros(3).at[0].set(self.rest_position)
        return q, jnp.zeros(3)


class SimplifiedBallBeam(AbstractBallBeam):
    r"""Ball and beam with the linear constraint of the literature, `alpha = (d / L) theta`.

    Coordinates `q = (r, theta)`, independent. See `AbstractBallBeam` for everything else.
    """

    def kinetic_energy(self, t, q, v):
        wheel = 0.5 * self.wheel_inertia * v[1] ** 2
        return self.ball_and_beam_energy(q[0], v[0], self.transmission() * v[1]) + wheel

    def potential_energy(self, t, q):
        return self.weight_energy(q[0], self.transmission() * q[1])

    def wheel(self, q):
        return q[1]

    def labels(self) -> Labels:
        return Labels(coordinates=("r", "theta"), units=("m", "rad"), **_ELECTRICAL)

    def points(self, t, q) -> Points:
        """Without the rod, which the linear constraint stands for."""
        return self._drawn(q[0], self.transmission() * q[1], q[1], rod=False)

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """Wheel level, ball at `rest_position`, at rest; each of shape (2,)."""
        return jnp.zeros(2).at[0].set(self.rest_position), jnp.zeros(2)


class LinearRegulator(NamedTuple):
    """The regulator of the simplified model as a controller of the exact one, and its cost.

    Args:
        feedback: the controller.
        Q: weight of the state `(r, theta, r', theta', i)`, shape (5, 5).
        R: weight of the voltage, shape (1, 1).
        P: of the state at the end, what the rest of the motion costs, shape (5, 5).
    """

    feedback: RegulatorFeedback
    Q: Float[Array, "5 5"]
    R: Float[Array, "1 1"]
    P: Float[Array, "5 5"]

    def __repr__(self) -> str:
        return shown(self)


def linear_regulator(system: BallBeam) -> LinearRegulator:
    """The linear-quadratic regulator about the rest of a ball and beam.

    A ball 5 cm off its place, a wheel turned by 1 rad and a voltage off by 1 V count the same.

    Args:
        system: the ball and beam; its parameters are those of the simplified model too.
    """
    model, zero = SimplifiedBallBeam(**vars(system)), jnp.zeros(1)
    rest = equilibrium(model, model.start()[0], zero, zero, free_controls=True, fixed=("r",))
    Q = jnp.diag(jnp.array([_BALL**-2, _WHEEL**-2, 0.0, 0.0, 0.0]))
    R = jnp.array([[_VOLTAGE**-2]])
    linear = linearize(model, rest, independent=("r", "theta"))
    regulator = lqr(linear, Q=Q, R=R)
    q, _ = system.start()
    eq = linear.equilibrium
    feedback = RegulatorFeedback(regulator.K, q, eq.w, jnp.ravel(eq.u), (0, 2))
    return LinearRegulator(feedback, Q, R, jnp.asarray(regulator.P))


def _ball_aside(start: State) -> State:
    """The ball 5 cm further out, on a level beam."""
    return State(start.q.at[0].add(0.05), start.v, start.w)


_REST = Rest(
    guess=lambda system: system.start()[0],
    inputs=1,
    fixed=("r",),
    remark="the ball is held where it is; the voltage that carries its weight is found",
)

MODELS = (
    Model(
        name="ball-beam",
        summary="ball on a beam that a motor tilts through a rod",
        source="Krasinskaya, Krasinskii (2013), section 6; numbers of Quanser BB01 and SRV02",
        place=13,
        system=BallBeam,
        formulation=stabilized,
        t1=1.0,
        study=ConstraintStudy(t1=0.2, dt=1e-4, deviation=1e-3, rate=20.0),
        rest=_REST,
        controller=lambda system: linear_regulator(system).feedback,
        departure=_ball_aside,
    ),
    Model(
        name="ball-beam-simplified",
        summary="ball and beam with the linear constraint of the literature",
        source="as ball-beam",
        place=14,
        system=SimplifiedBallBeam,
        formulation=Multipliers,
        t1=1.0,
        study="its coordinates are independent, hence it has no constraints and no gains that "
        "enforce them; 'ball-beam' has",
        rest=_REST,
        departure=_ball_aside,
    ),
)
