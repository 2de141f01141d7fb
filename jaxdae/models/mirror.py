"""Element of an adaptive-optics mirror, turned by a direct-current motor."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import Multipliers
from jaxdae.models.base import AbstractModel, Model, Rest, ServoStudy
from jaxdae.systems import Labels, Points, State

# Derivatives of the angle that the states and the control at the program motion take.
_ORDER = 4
# Of the servo-constraint [1/s]; distinct: a root of multiplicity four is moved far by little.
_ROOTS = (-10.0, -8.0, -5.0, -3.0)


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
        return 0.5 * self.mass * self.length**2 * v[0] ** 2

    def potential_energy(self, t, q):
        """V = m g l sin phi [J]."""
        return self.mass * self.gravity * self.length * jnp.sin(q[0])

    def force(self, t, q, v, w, u):
        """Torque of the motor [N m], shape (1,)."""
        return w[:1]

    def actuator_rate(self, t, q, v, w, u):
        """Rates of the torque and of its rate, shape (2,); no control means no voltage."""
        voltage = jnp.zeros_like(w[1]) if u is None else u[0]
        back = self.torque_constant * self.back_emf_constant / self.gear_ratio * v[0]
        drive = self.torque_constant * voltage - self.resistance * w[1] - back
        return jnp.stack([w[1], drive / self.inductance])

    def source(self, t) -> Float[Array, ""]:
        """Abscissa s(t) of the source of the beam [m]."""
        return self.source_mean + self.source_amplitude * jnp.sin(self.source_rate * t)

    def program(self, t, q, v) -> Float[Array, " 1"]:
        """What the control must keep zero: `l (s + c) - 2 c s cos phi` [m^2], shape (1,)."""
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
        return Labels(
            coordinates=("phi",),
            units=("rad",),
            actuators=("torque", "rate of the torque"),
            actuator_units=("N m", "N m/s"),
            inputs=("voltage",),
            input_units=("V",),
        )

    def points(self, t, q) -> Points:
        """Crank and mirror, a source's beam, and where it gets after as long a way as to C."""
        along = jnp.stack([jnp.cos(q[0]), jnp.sin(q[0])])
        across = jnp.stack([-along[1], along[0]])
        mirror, zero = self.length * along, jnp.zeros_like(q[0])
        source = jnp.stack([jnp.asarray(self.source(t)), zero])
        target = jnp.stack([jnp.asarray(self.target), zero])
        ray = mirror - source
        reflected = ray - 2 * (ray @ across) * across
        way = jnp.linalg.norm(target - mirror) / jnp.linalg.norm(ray)
        return Points(
            {
                "O": jnp.zeros_like(along),
                "mirror": mirror,
                "_lower": 0.75 * mirror,
                "_upper": 1.25 * mirror,
                "source": source,
                "C": target,
                "beam": mirror + way * reflected,
            },
            links=(("O", "_lower", "_upper"),),
            lines=(("source", "mirror", "beam"),),
            trace=("mirror", "beam"),
            fixed=("O", "C"),
        )

    def start(self) -> tuple[Float[Array, " 1"], Float[Array, " 1"]]:
        """Angle [rad] and angular velocity [rad/s] of the program at t = 0, each of shape (1,)."""
        state = self.program_state(jnp.zeros(()))
        return state.q, state.v

    def actuators(self) -> Float[Array, " 2"]:
        """Torque [N m] and its rate [N m / s] of the program at t = 0, shape (2,)."""
        return self.program_state(jnp.zeros(())).w


def _derivatives(function, t) -> list:
    """Value and derivatives up to the order of the program, by nested forward differentiation."""
    t = jnp.asarray(t, dtype=float)
    functions = [function]
    for _ in range(_ORDER):
        functions.append(_rate_of(functions[-1]))
    return [f(t) for f in functions]


def _rate_of(function):
    return lambda t: jax.jvp(function, (t,), (jnp.ones_like(t),))[1]


@jit
def servo(system: AdaptiveMirror) -> ServoConstraint:
    """Keeps the beam on the target; four derivatives of the program until the voltage appears."""
    return ServoConstraint(
        system.program,
        HurwitzGains(np.poly(_ROOTS)[:0:-1]),
        system=system,
        formulation=Multipliers(),
        sample=system.program_state(0.0),
        degrees=(_ORDER,),
        names=("beam on target",),
    )


class Coefficient(NamedTuple):
    """A coefficient of the paper's law.

    Args:
        printed: its value as printed.
        correct: its value by differentiation, by hand.
        slip: what is wrong in print; empty where nothing is.
    """

    printed: Float[Array, ""]
    correct: Float[Array, ""]
    slip: str = ""


def coefficients(mirror: AdaptiveMirror, x: Float[Array, " 4"]) -> dict[str, Coefficient]:
    """Every coefficient printed in [Mukharlyamov2019, section 5], at a state, and as it must be.

    With `x = (phi, omega, tau, z)` and `s^i` the derivatives of `s(t)` from `s^1 = s`, the
    derivatives of the program are `g^k = g_i^k(x) s^i` (and `l c` in the first), and the control
    solves `g^5 = Phi` [Mukharlyamov2019, eqs. 5.4-5.7]. `g_14^4` is the derivative of `g_1^4` by
    `x^4`.

    Args:
        mirror: the system.
        x: angle, angular velocity, torque, rate of the torque, shape (4,).

    Returns:
        From names such as `g_14^4` to `Coefficient`.
    """
    omega, torque, z = x[1], x[2], x[3]
    k_phi, k_m, _, _, _ = constants(mirror)
    c, sin, cos = mirror.target, jnp.sin(x[0]), jnp.cos(x[0])
    sin2, cos2 = jnp.sin(2 * x[0]), jnp.cos(2 * x[0])
    g13 = c * (2 * omega**2 * cos - k_phi * sin2 + 2 * k_m * torque * sin)
    g14 = 2 * c * (k_phi * omega - omega**3 * sin + k_m * (omega * torque * cos + z * sin))
    weight = k_phi * (1 + 2 * cos2)
    right14 = 2 * c * (k_m * (3 * omega * torque * cos + z * sin) - omega**3 * sin - weight * omega)
    right111 = (
        (k_m * z - omega**3) * cos - 3 * omega * k_m * torque * sin + 4 * k_phi * omega * sin2
    )
    right21 = 6 * c * (k_m * torque * cos - omega**2 * sin - k_phi * cos2)
    plain = {
        "g_1^1": mirror.length - 2 * c * cos,
        "g_1^2": 2 * c * omega * sin,
        "g_1^3": g13,
        "g_2^3": 4 * c * omega * sin,
        "g_2^4": 3 * g13,
        "g_3^4": 6 * c * omega * sin,
        "g_14^4": 2 * c * k_m * sin,
        "g_24^4": jnp.zeros_like(sin),
        "g_31^4": 6 * c * omega * cos,
        "g_32^4": 6 * c * sin,
        "g_41^4": 2 * c * sin,
    }
    return {name: Coefficient(value, value) for name, value in plain.items()} | {
        "g_1^4": Coefficient(
            g14,
            right14,
            "k_phi omega for -k_phi omega (1 + 2 cos 2phi); k_M omega M cos phi for 3 of it",
        ),
        "g_11^4": Coefficient(
            2 * c * ((k_m * z - omega**3) * cos - omega * k_m * torque * sin),
            2 * c * right111,
            "derivative of the wrong g_1^4: factor 3 and 4 k_phi omega sin 2phi missing",
        ),
        "g_12^4": Coefficient(
            2 * c * (k_m * torque * cos + k_phi - 3 * omega**2 * sin),
            2 * c * (3 * k_m * torque * cos - weight - 3 * omega**2 * sin),
            "derivative of the wrong g_1^4",
        ),
        "g_13^4": Coefficient(
            2 * c * k_m * cos, 6 * c * k_m * omega * cos, "omega and the factor 3 missing"
        ),
        "g_21^4": Coefficient(
            6 * c * (omega**2 * sin - k_phi * cos2 + k_m * torque * cos),
            right21,
            "sign of omega^2 sin phi",
        ),
        "g_22^4": Coefficient(12 * c * omega * sin, 12 * c * omega * cos, "sin for cos"),
        "g_23^4": Coefficient(6 * c * k_m * cos, 6 * c * k_m * sin, "cos for sin"),
    }


def constants(mirror: AdaptiveMirror) -> tuple:
    """`(k_phi, k_M, k_v, k_omega, k_a / L)` of [Mukharlyamov2019, eq. 5.3]."""
    m = mirror
    back = m.torque_constant * m.back_emf_constant / (m.gear_ratio * m.inductance)
    drive = m.torque_constant / m.inductance
    return (
        m.gravity / m.length,
        1 / (m.mass * m.length**2),
        m.resistance / m.inductance,
        back,
        drive,
    )


def voltage(mirror: AdaptiveMirror, x, s, wanted, *, printed: bool = False) -> Float[Array, ""]:
    """The control law [Mukharlyamov2019, eq. 5.7].

        u = (Phi - g_j^5 s^j) / (2 c s^1 sin(phi) k_M k_a / L)

    Args:
        mirror: the system.
        x: state, shape (4,).
        s: `s(t)` and its derivatives up to the fourth, shape (5,).
        wanted: `Phi`, the fourth derivative of the program that is wanted.
        printed: with the coefficients as printed, and without `k_M` in the denominator, as printed.

    Returns:
        Voltage [V].
    """
    k_phi, k_m, k_v, k_omega, drive = constants(mirror)
    rate = jnp.stack([x[1], k_m * x[2] - k_phi * jnp.cos(x[0]), x[3], -k_v * x[3] - k_omega * x[1]])
    table = coefficients(mirror, x)
    g = {name: entry.printed if printed else entry.correct for name, entry in table.items()}
    g |= {"g_4^4": g["g_1^1"], "g_0^4": 0.0}

    def fifth(j):
        """`g_ji^4 X^i + g_{j-1}^4`."""
        terms = [g.get(f"g_{j}{i + 1}^4", 0.0) * rate[i] for i in range(4)]
        return sum(terms) + g[f"g_{j - 1}^4"]

    drift = sum(fifth(j) * s[j - 1] for j in range(1, 6))
    denominator = 2 * mirror.target * s[0] * jnp.sin(x[0]) * drive
    return (wanted - drift) / (denominator if printed else denominator * k_m)


def _beam_off_target(start: State) -> State:
    """The mirror turned by 0.02 rad from the angle of its program."""
    return State(start.q + 0.02, start.v, start.w)


MODELS = (
    Model(
        name="mirror",
        summary="adaptive-optics mirror whose DC motor keeps a beam on a target",
        source="Mukharlyamov (2019), section 5",
        place=16,
        system=AdaptiveMirror,
        formulation=Multipliers,
        t1=2.0,
        study=ServoStudy(t1=1.0, dt=0.01, deviation=0.03, effort=1e-6),
        rest=Rest(
            guess=lambda system: system.start()[0],
            inputs=1,
            fixed=("phi",),
            remark="at the angle of the program at t = 0, held by the motor's torque; the program "
            "itself moves and is not part of it",
        ),
        controller=servo,
        departure=_beam_off_target,
    ),
)
