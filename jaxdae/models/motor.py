"""Direct-current motor that drives a mechanism through a gear: one Lagrangian, or an actuator."""

from abc import abstractmethod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.formulations.gains import is_number
from jaxdae.models.base import AbstractModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.models.slider_crank import SliderCrank
from jaxdae.reprs import shown
from jaxdae.systems import Labels, Points


def _small_slider_crank() -> SliderCrank:
    return SliderCrank(
        crank_length=0.1, rod_length=0.3, crank_mass=0.05, rod_mass=0.1, slider_mass=0.1
    )


class MotorPower(NamedTuple):
    """Where the power of the source goes [W]: `source = heat + loss + shaft + d(L i^2 / 2)/dt`.

    Args:
        source: `e i`.
        heat: `R i^2`.
        loss: of an efficiency below one, `(1 - eta) k i theta'`.
        shaft: `eta k i theta'`, what rotor, gear and mechanism get.
    """

    source: Float[Array, ""]
    heat: Float[Array, ""]
    loss: Float[Array, ""]
    shaft: Float[Array, ""]

    def __repr__(self) -> str:
        return shown(self)


class AbstractMotorDrive(AbstractModel):
    r"""Permanent-magnet motor, gear and mechanism; what both ways to write the motor share.

    With the current `i`, the angle `theta` of the motor's shaft, and the angle `a` of the
    mechanism that it drives through the gear, `theta = n a`,

        L i' + R i + k theta' = e,        torque on the shaft: eta k i
        T = J_r theta'^2 / 2 + J_g a'^2 / 2 + T_mechanism,        friction b a'

    The gear is a constraint, `theta / n - a = 0`, its multiplier the torque that the gear exerts on
    the mechanism, inertia `J_g` included. The mechanism's own energies, forces and constraints
    stay as they are. The voltage is the control input `u`, shape `(1,)`; without one,
    `e = voltage cos(frequency t)`.

    The conversion is reciprocal, one constant `k` for back-emf and torque, and the published
    efficiencies are a loss beside it. A constant efficiency describes a motor that drives; where
    the mechanism drives the motor, `k i theta' < 0`, that loss is negative: then take 1.

    Source of the numbers: [QuanserSRV02, table 3.1] in high gear, as in `BallBeam`; the mechanism,
    a slider-crank of our own numbers, is small enough for that motor.

    Args:
        mechanism: any ready system without actuators of its own.
        driven: name or index of the mechanism's coordinate that the gear drives, an angle.
        voltage: amplitude of e [V].
        frequency: angular frequency of e [rad/s]; 0 for a constant voltage.
        resistance: R [Ohm].
        inductance: L [H], positive; `None` neglects it: `i = (e - k theta') / R`.
        motor_constant: k, at the motor's shaft [V s/rad] = [N m/A].
        gear_ratio: n [-].
        efficiency: eta, of motor and gear together [-].
        rotor_inertia: J_r, at the motor's shaft [kg m^2].
        gear_inertia: J_g, at the mechanism [kg m^2].
        damping: b, at the mechanism [N m s/rad].

    Raises:
        ValueError: for an inductance that is not positive.
    """

    mechanism: AbstractModel = eqx.field(default_factory=_small_slider_crank)
    driven: str | int = eqx.field(static=True, default=0)
    voltage: float = 6.0
    frequency: float = 0.0
    resistance: float = 2.6
    inductance: float | None = 0.18e-3
    motor_constant: float = 7.68e-3
    gear_ratio: float = 70.0
    efficiency: float = 0.90 * 0.69
    rotor_inertia: float = 4.606e-7
    gear_inertia: float = 5.28e-5
    damping: float = 0.015

    def __check_init__(self):
        """Refuse a charge without inertia that is not declared as such."""
        value = self.inductance
        if is_number(value) and fails(lambda x: np.all(x > 0), value):
            raise ValueError(
                f"the inductance must be positive, but is {value} H: the charge would have no "
                "inertia, and nothing would determine di/dt. To neglect the inductance give "
                "inductance=None; Kirchhoff's law is then a constraint without derivatives of i."
            )

    @abstractmethod
    def charges(self) -> int:
        """Number of charges in front of the coordinates, 0 or 1."""

    @abstractmethod
    def current(self, t, q, v, w, u=None) -> Float[Array, ""]:
        """Current i of the motor [A]."""

    def source(self, t, u=None) -> Float[Array, ""]:
        """Voltage e [V]: the control input, or what the declaration says."""
        if u is not None:
            return jnp.reshape(u, ())
        return self.voltage * jnp.cos(self.frequency * t)

    def shaft(self, x):
        """The motor's angle (or its rate, from velocities), an entry of `q`."""
        return x[self.charges()]

    def load(self, x):
        """The mechanism's part of coordinates or velocities."""
        return x[self.charges() + 1 :]

    def driven_angle(self, x):
        """The angle `a` that the gear drives (or its rate)."""
        load = self.load(x)
        if isinstance(self.driven, int):
            return load[self.driven]
        return load[self.mechanism.labels().coordinate_index(self.driven, load.size)]

    def steady_current(self, t, v, u=None) -> Float[Array, ""]:
        """Current without inductance, `i = (e - k theta') / R` [A]."""
        return (self.source(t, u) - self.motor_constant * self.shaft(v)) / self.resistance

    def power(self, t, q, v, w=None, u=None) -> MotorPower:
        """Power of the source and where it goes, at a state.

        Args:
            t: time [s].
            q: coordinates, shape (n,).
            v: velocities, shape (n,).
            w: actuator state, shape (k,), where the current is one.
            u: voltage, shape (1,), or `None`.
        """
        i = self.current(t, q, v, w, u)
        converted = self.motor_constant * i * self.shaft(v)
        return MotorPower(
            source=self.source(t, u) * i,
            heat=self.resistance * i**2,
            loss=(1 - self.efficiency) * converted,
            shaft=self.efficiency * converted,
        )

    def magnetic_energy(self, i) -> Float[Array, ""]:
        """L i^2 / 2 [J]."""
        return jnp.zeros_like(i) if self.inductance is None else 0.5 * self.inductance * i**2

    def potential_energy(self, t, q):
        """V of the mechanism [J]."""
        return self.mechanism.potential_energy(t, self.load(q))

    def position_constraints(self, t, q):
        """Gear, `theta / n - a` [rad], then the mechanism's constraints."""
        gear = self.shaft(q) / self.gear_ratio - self.driven_angle(q)
        return jnp.concatenate([gear[None], self.mechanism.position_constraints(t, self.load(q))])

    def points(self, t, q) -> Points | None:
        """The mechanism; motor and gear have no shape."""
        return self.mechanism.points(t, self.load(q))

    def _mechanical_energy(self, t, q, v):
        rotor = self.rotor_inertia * self.shaft(v) ** 2
        gear = self.gear_inertia * self.driven_angle(v) ** 2
        mechanism = self.mechanism.kinetic_energy(t, self.load(q), self.load(v))
        return 0.5 * (rotor + gear) + mechanism

    def _friction(self, t, q, v):
        of_mechanism = self.mechanism.dissipation(t, self.load(q), self.load(v))
        return 0.5 * self.damping * self.driven_angle(v) ** 2 + of_mechanism

    def _load_force(self, t, q, v, w):
        return self.mechanism.force(t, self.load(q), self.load(v), w[:0], None)

    def _load_velocity_constraints(self, t, q, v):
        return self.mechanism.velocity_constraints(t, self.load(q), self.load(v))

    def _mechanical_start(self):
        """Shaft and mechanism: coordinates and velocities."""
        q, v = self.mechanism.start()
        return self._with_shaft(q), self._with_shaft(v)

    def at_load(self, load: Float[Array, " n_m"]) -> Float[Array, " n"]:
        """Coordinates with the mechanism where `load` says, the shaft with it, no charge flown."""
        return jnp.concatenate([jnp.zeros(self.charges()), self._with_shaft(load)])

    def _with_shaft(self, load):
        padded = jnp.concatenate([jnp.zeros(self.charges() + 1), load])
        return jnp.concatenate([self.gear_ratio * self.driven_angle(padded)[None], load])

    def _labels(self, charge: bool, kirchhoff: bool) -> Labels:
        inner = self.mechanism.labels()
        return Labels(
            coordinates=("charge",) * charge + ("motor", *inner.coordinates),
            units=("C",) * charge + ("rad", *inner.units),
            constraints=("gear", *inner.constraints) + ("Kirchhoff",) * kirchhoff,
            constraint_units=("rad", *inner.constraint_units) + ("V",) * kirchhoff,
            actuators=("current",) * (not charge),
            actuator_units=("A",) * (not charge),
            inputs=("voltage",),
            input_units=("V",),
        )


class ChargeDrive(AbstractMotorDrive):
    r"""The motor by Lagrange's equations: the charge is a coordinate, the current its velocity.

    Coordinates `(charge, theta, mechanism's)`. With the flux linkage `L i + k theta` of coil and
    magnets as the momentum of the charge,

        T = L i^2 / 2 + k theta i + ...,    D = R i^2 / 2 + b a'^2 / 2,    force e on the charge

    The term `k theta i`, linear in the velocities, gives back-emf and torque at once, and no
    energy. With `inductance=None` the charge has no inertia; then Kirchhoff's law without `L i'`,

        R i + k theta' - e = 0,

    is declared as a velocity constraint that the equation of the charge already contains: its
    multiplier is zero. The mass matrix is singular, but positive on the directions that the
    constraints allow: use `Multipliers(..., solve=SingularMassSolve())` or `NullSpace`, with a gain
    `Gamma`. A constraint knows time and state only, so that the voltage cannot be a control input
    there.

    See `AbstractMotorDrive` for the rest.
    """

    def charges(self):
        return 1

    def current(self, t, q, v, w, u=None):
        return v[0]

    def kinetic_energy(self, t, q, v):
        """Magnetic energy, flux of the magnets times current, and T of what turns [J]."""
        coupling = self.motor_constant * self.shaft(q) * v[0]
        return self.magnetic_energy(v[0]) + coupling + self._mechanical_energy(t, q, v)

    def dissipation(self, t, q, v):
        """R i^2 / 2 and the friction of gear and mechanism [W]."""
        return 0.5 * self.resistance * v[0] ** 2 + self._friction(t, q, v)

    def force(self, t, q, v, w, u):
        """Voltage on the charge [V], loss of torque on the shaft [N m], the mechanism's forces."""
        if self.inductance is None and u is not None:
            raise ValueError(
                "without inductance Kirchhoff's law is a velocity constraint, which no control "
                "input can enter; give voltage and frequency, a positive inductance, or use "
                "CurrentDrive, where u may be the voltage"
            )
        lost = (1 - self.efficiency) * self.motor_constant * v[0]
        electrical = jnp.stack([self.source(t, u).astype(q.dtype), -lost])
        return jnp.concatenate([electrical, self._load_force(t, q, v, w)])

    def velocity_constraints(self, t, q, v):
        """The mechanism's; without inductance Kirchhoff's law [V] besides."""
        of_load = self._load_velocity_constraints(t, q, v)
        if self.inductance is not None:
            return of_load
        law = self.resistance * v[0] + self.motor_constant * self.shaft(v) - self.source(t)
        return jnp.concatenate([of_load, law[None]])

    def labels(self) -> Labels:
        return self._labels(charge=True, kirchhoff=self.inductance is None)

    def start(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The mechanism's start; no current, or without inductance the one of Kirchhoff's law."""
        (q, v), none = self._mechanical_start(), jnp.zeros(1)
        v = jnp.concatenate([none, v])
        if self.inductance is None:
            v = v.at[0].set(self.steady_current(0.0, v))
        return jnp.concatenate([none, q]), v


class CurrentDrive(AbstractMotorDrive):
    """The motor as an actuator: its current is the actuator state, its torque a force.

    Coordinates `(theta, mechanism's)`, `w = (i,)` with `i' = (e - R i - k theta') / L`; with
    `inductance=None` there is no actuator state, and `i = (e - k theta') / R`.

    See `AbstractMotorDrive` for the rest.
    """

    def charges(self):
        return 0

    def current(self, t, q, v, w, u=None):
        return self.steady_current(t, v, u) if self.inductance is None else w[0]

    def kinetic_energy(self, t, q, v):
        """T of what turns [J]."""
        return self._mechanical_energy(t, q, v)

    def dissipation(self, t, q, v):
        """Friction of gear and mechanism [W]."""
        return self._friction(t, q, v)

    def force(self, t, q, v, w, u):
        """Torque of the motor on its shaft [N m], the mechanism's forces."""
        torque = self.efficiency * self.motor_constant * self.current(t, q, v, w, u)
        return jnp.concatenate([torque[None], self._load_force(t, q, v, w)])

    def velocity_constraints(self, t, q, v):
        """The mechanism's."""
        return self._load_velocity_constraints(t, q, v)

    def actuator_rate(self, t, q, v, w, u):
        """Kirchhoff's law, di/dt [A/s], shape (1,), or (0,) without inductance."""
        if self.inductance is None:
            return jnp.zeros_like(w)
        drop = self.resistance * w + self.motor_constant * self.shaft(v)
        return (self.source(t, u) - drop) / self.inductance

    def labels(self) -> Labels:
        return self._labels(charge=False, kirchhoff=False)

    def start(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """The mechanism's start, and the shaft with it."""
        return self._mechanical_start()

    def actuators(self) -> Float[Array, " k"]:
        """No current [A], shape (1,); without inductance empty."""
        return jnp.zeros(0 if self.inductance is None else 1)


# Even twice the step is within the limit 1.9e-4 s that the motor's current sets to RK4.
_STUDY = ConstraintStudy(t1=0.01, dt=5e-5, deviation=1e-4)

MODELS = (
    Model(
        name="motor",
        summary="slider-crank driven by a geared DC motor, its charge a coordinate",
        source="Shemelova, elements of another physical nature; numbers of Quanser SRV02",
        place=19,
        system=ChargeDrive,
        formulation=stabilized,
        t1=0.5,
        study=_STUDY,
        rest=Rest(
            guess=lambda system: system.at_load(system.mechanism.at_crank(-0.5 * jnp.pi)[0]),
            remark="without voltage, crank down; the charge that has flown does not matter",
            system=lambda: ChargeDrive(voltage=0.0),
        ),
    ),
    Model(
        name="motor-actuator",
        summary="the same motor with its current as actuator state",
        source="as motor",
        place=20,
        system=CurrentDrive,
        formulation=stabilized,
        t1=0.5,
        study=_STUDY,
        rest=Rest(
            guess=lambda system: system.start()[0],
            inputs=1,
            fixed=("crank",),
            remark="the crank is held where it is; the voltage that carries its weight is found",
        ),
    ),
)
