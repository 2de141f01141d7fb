"""Ball on a beam that a wheel tilts through a rod; direct-current motor included."""

from abc import abstractmethod

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel, Reference
from jaxdae.systems import Labels, State

_PAPER = "Krasinskaya, Krasinskii (2013), section 6"
_ELECTRICAL = {
    "actuators": ("current",),
    "actuator_units": ("A",),
    "inputs": ("voltage",),
    "input_units": ("V",),
}


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
        del t, q
        return 0.5 * self.wheel_damping * self.wheel(v) ** 2

    def force(self, t, q, v, w, u):
        """Torque of the motor on the wheel, K2 i [N m]."""
        del t, v, u
        return jnp.zeros_like(q).at[-1].set(self.torque_constant * w[0])

    def actuator_rate(self, t, q, v, w, u):
        """Kirchhoff's law of the motor's circuit, di/dt [A/s], shape (1,)."""
        del t, q
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

    def references(self) -> tuple[Reference, ...]:
        """Equilibrium formulas of the paper."""
        return (
            Reference("i0 = d m g r0 / (L K2), e0 = d R_a m g r0 / (L K1 K2)", _PAPER),
            Reference("B(0) = d / L", _PAPER),
        )


class BallBeam(AbstractBallBeam):
    r"""Ball and beam with the exact constraint of the rod between beam and wheel.

    Coordinates `q = (r, alpha, theta)`, one of them redundant:

        f = (L (cos alpha - 1) + d (1 - cos theta))^2 + (L sin alpha + l - d sin theta)^2 - l^2 = 0

    See `AbstractBallBeam` for everything else.
    """

    def kinetic_energy(self, t, q, v):
        del t
        wheel = 0.5 * self.wheel_inertia * v[2] ** 2
        return self.ball_and_beam_energy(q[0], v[0], v[1]) + wheel

    def potential_energy(self, t, q):
        del t
        return self.weight_energy(q[0], q[1])

    def position_constraints(self, t, q):
        del t
        _, alpha, theta = q
        along = self.beam_length * (jnp.cos(alpha) - 1) + self.wheel_radius * (1 - jnp.cos(theta))
        rise = self.beam_length * jnp.sin(alpha) - self.wheel_radius * jnp.sin(theta)
        # (rise + l)^2 - l^2, without the cancellation of l^2.
        return jnp.stack([along**2 + rise * (rise + 2 * self.rod_length)])

    def wheel(self, q):
        return q[2]

    def labels(self) -> Labels:
        """Names and units of the coordinates and of the constraint."""
        return Labels(
            coordinates=("r", "alpha", "theta"),
            units=("m", "rad", "rad"),
            constraints=("rod",),
            constraint_units=("m^2",),
            **_ELECTRICAL,
        )

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Beam and wheel level, ball at `rest_position`, at rest; each of shape (3,)."""
        q = jnp.zeros(3).at[0].set(self.rest_position)
        return q, jnp.zeros(3)


class SimplifiedBallBeam(AbstractBallBeam):
    r"""Ball and beam with the linear constraint of the literature, `alpha = (d / L) theta`.

    Coordinates `q = (r, theta)`, independent. See `AbstractBallBeam` for everything else.
    """

    def kinetic_energy(self, t, q, v):
        del t
        wheel = 0.5 * self.wheel_inertia * v[1] ** 2
        return self.ball_and_beam_energy(q[0], v[0], self.transmission() * v[1]) + wheel

    def potential_energy(self, t, q):
        del t
        return self.weight_energy(q[0], self.transmission() * q[1])

    def wheel(self, q):
        return q[1]

    def labels(self) -> Labels:
        """Names and units of the coordinates."""
        return Labels(coordinates=("r", "theta"), units=("m", "rad"), **_ELECTRICAL)

    def start(self) -> tuple[Float[Array, " 2"], Float[Array, " 2"]]:
        """Wheel level, ball at `rest_position`, at rest; each of shape (2,)."""
        return jnp.zeros(2).at[0].set(self.rest_position), jnp.zeros(2)
