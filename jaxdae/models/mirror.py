"""Element of an adaptive-optics mirror, turned by a direct-current motor."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractModel, Reference
from jaxdae.systems import Labels, State

_PAPER = (
    "R. G. Mukharlyamov, Control of the dynamics of a system with differential constraints (2019), "
    "section 5"
)
# Derivatives of the angle that the states and the control at the program motion take.
_ORDER = 4


class AdaptiveMirror(AbstractModel):
    r"""Mirror on a crank whose motor must keep a reflected beam on a target.

    A mirror of mass `m` sits at the end `A` of a massless crank `OA` of length `l`, facing along
    the tangent. A source `P(s(t), 0)` moves on the axis, and its beam must be reflected to
    `C(c, 0)`. State: angle `phi` of the crank, torque `tau` of the motor, its rate `z`; control:
    voltage `u`.

        m l^2 phi'' = -m g l cos phi + tau,     tau' = z
        z' = -(R / L) z - (k_a k_b / (n L)) phi' + (k_a / L) u
        f = l (s(t) + c) - 2 c s(t) cos phi = 0

    The program `f` (see `program`) has relative degree 4 and is singular where
    `s(t) sin phi = 0`. The source of the beam moves as `s = s0 + s1 sin(rate t)`.

    Source: [Mukharlyamov2019, eqs. 5.1, 5.2]. The paper prints no numbers; these are ours. That the
    rate of the torque, not the torque, is proportional to the current is the paper's.

    Args:
        mass: m [kg].
        length: l [m].
        gravity: g [m/s^2].
        resistance: R of the armature [ohm].
        inductance: L of the armature [H].
        torque_constant: k_a, rate of the torque per current [N m / (s A)].
        back_emf_constant: k_b [V s].
        gear_ratio: n [-].
        target: abscissa c of the target [m].
        source_mean: s0 [m].
        source_amplitude: s1 [m].
        source_rate: angular frequency of the source [rad/s].
    """

    mass: float = 0.5
    length: float = 0.4
    gravity: float = 9.81
    resistance: float = 2.0
    inductance: float = 0.1
    torque_constant: float = 1.0
    back_emf_constant: float = 0.5
    gear_ratio: float = 2.0
    target: float = 1.0
    source_mean: float = 1.5
    source_amplitude: float = 0.3
    source_rate: float = 1.0

    def kinetic_energy(self, t, q, v):
        """T = m l^2 phi'^2 / 2 [J]."""
        del t, q
        return 0.5 * self.mass * self.length**2 * v[0] ** 2

    def potential_energy(self, t, q):
        """V = m g l sin phi [J]."""
        del t
        return self.mass * self.gravity * self.length * jnp.sin(q[0])

    def force(self, t, q, v, w, u):
        """Torque of the motor [N m], shape (1,)."""
        del t, q, v, u
        return w[:1]

    def actuator_rate(self, t, q, v, w, u):
        """Rates of the torque and of its rate, shape (2,); no control means no voltage."""
        del t, q
        voltage = jnp.zeros_like(w[1]) if u is None else u[0]
        back = self.torque_constant * self.back_emf_constant / self.gear_ratio * v[0]
        drive = self.torque_constant * voltage - self.resistance * w[1] - back
        return jnp.stack([w[1], drive / self.inductance])

    def source(self, t) -> Float[Array, ""]:
        """Abscissa s(t) of the source of the beam [m]."""
        return self.source_mean + self.source_amplitude * jnp.sin(self.source_rate * t)

    def program(self, t, q, v) -> Float[Array, " 1"]:
        """What the control must keep zero: `l (s + c) - 2 c s cos phi` [m^2], shape (1,)."""
        del v
        s = self.source(t)
        return jnp.stack([self.length * (s + self.target) - 2 * self.target * s * jnp.cos(q[0])])

    def program_angle(self, t) -> Float[Array, ""]:
        """The angle that satisfies the program, `arccos(l (s + c) / (2 c s))` [rad]."""
        s = self.source(t)
        return jnp.arccos(self.length * (s + self.target) / (2 * self.target * s))

    @eqx.filter_jit
    def program_state(self, t) -> State:
        """State of the motion on which the program and all its derivatives vanish.

        Inverse dynamics: torque and its rate from the second and third derivatives of the angle.
        """
        phi, omega, omega_dot, omega_ddot, _ = _derivatives(self.program_angle, t)
        inertia = self.mass * self.length**2
        weight = self.mass * self.gravity * self.length
        torque = inertia * omega_dot + weight * jnp.cos(phi)
        rate = inertia * omega_ddot - weight * omega * jnp.sin(phi)
        return State(phi[None], omega[None], jnp.stack([torque, rate]))

    def program_voltage(self, t) -> Float[Array, ""]:
        """Voltage of that motion [V], by inverse dynamics."""
        t = jnp.asarray(t, dtype=float)
        state = self.program_state(t)
        _, rate = jax.jvp(lambda t: self.program_state(t).w[1], (t,), (jnp.ones_like(t),))
        back = self.torque_constant * self.back_emf_constant / self.gear_ratio * state.v[0]
        drive = self.inductance * rate + self.resistance * state.w[1] + back
        return drive / self.torque_constant

    def labels(self) -> Labels:
        """Names and units of angle, torque and its rate, and voltage."""
        return Labels(
            coordinates=("phi",),
            units=("rad",),
            actuators=("torque", "rate of the torque"),
            actuator_units=("N m", "N m/s"),
            inputs=("voltage",),
            input_units=("V",),
        )

    def start(self) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
        """Angle [rad] and angular velocity [rad/s] of the program at t = 0, each of shape (1,)."""
        state = self.program_state(jnp.zeros(()))
        return state.q, state.v

    def actuators(self) -> Float[Array, " 2"]:
        """Torque [N m] and its rate [N m / s] of the program at t = 0, shape (2,)."""
        return self.program_state(jnp.zeros(())).w

    def references(self) -> tuple[Reference, ...]:
        """The relations this model is checked against."""
        return (
            Reference(
                "relative degree 4 of the program; decoupling 2 c s sin(phi) k_M k_a / L", _PAPER
            ),
            Reference("angle of the program, cos phi = l (s + c) / (2 c s)", "law of reflection"),
        )


def _derivatives(function, t) -> list:
    """Value and derivatives up to the order of the program, by nested forward differentiation."""
    t = jnp.asarray(t, dtype=float)
    functions = [function]
    for _ in range(_ORDER):
        functions.append(_rate_of(functions[-1]))
    return [f(t) for f in functions]


def _rate_of(function):
    return lambda t: jax.jvp(function, (t,), (jnp.ones_like(t),))[1]
