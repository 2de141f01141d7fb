"""Motors: forces along lengths, on balls and at points, by control inputs."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, fails
from jaxdae.multibody.forces import AbstractForce
from jaxdae.multibody.lengths import AbstractLength, along
from jaxdae.systems.precision import as_floats

# How the control input becomes what is multiplied by the gain.
_DYNAMICS = ("none", "integrator", "filter")


def _three(values) -> Float[Array, " 3"]:
    """One number is the constant of an affine function."""
    (found,) = as_floats(values)
    if found.shape not in ((), (3,)):
        raise ValueError(
            "Motor: gain and bias are one number, or three of an affine function of length and "
            f"rate; got shape {found.shape}."
        )
    if found.ndim == 1:
        return found
    xp = np if are_known(found) else jnp
    return jnp.asarray(xp.append(found, xp.zeros(2, found.dtype)))


def _ends(values):
    if values is None:
        return None
    low, high = values
    if fails(lambda a, b: a <= b, low, high):
        raise ValueError(f"Motor: a range goes upwards; got {low} to {high}.")
    return (low, high)


class Motor(AbstractForce):
    r"""A force along a length, or on a joint, by a control input.

    With `x` gear times the length, and the activation `a`,

        F = gear (a (g0 + g1 x + g2 x') + b0 + b1 x + b2 x')

    By default the input itself is `a`, and the gain 1. A gain `k` with the bias `(0, -k, -d)` is a
    servo with the target `u`. The activation may have a state of its own: `a' = u` of an
    "integrator", `a' = (u - a) / time_constant` of a "filter". These are the actuators of MuJoCo
    with affine gain and bias, along joints, tendons, and at sites.

    Args:
        name: of the input.
        along: a length, or the name of a hinge or a slide.
        gear: ratio of the transmission.
        gain: `g0`, or `g0, g1, g2`.
        bias: `b0`, or `b0, b1, b2`.
        dynamics: "none", "integrator" or "filter".
        time_constant: of the filter [s].
        input_range: ends between which the input is taken, or `None`.
        force_range: ends of the force before it is multiplied by the gear, or `None`.

    Raises:
        ValueError: for other dynamics, a range that goes downwards, or a filter without a positive
            time constant.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    gear: float = 1.0
    gain: Float[Array, " 3"] = eqx.field(converter=_three, default=1.0)
    bias: Float[Array, " 3"] = eqx.field(converter=_three, default=0.0)
    dynamics: str = eqx.field(static=True, default="none")
    time_constant: float = 0.0
    input_range: tuple[float, float] | None = eqx.field(converter=_ends, default=None)
    force_range: tuple[float, float] | None = eqx.field(converter=_ends, default=None)

    def __check_init__(self):
        if self.dynamics not in _DYNAMICS:
            raise ValueError(
                f"Motor {self.name!r}: dynamics is {self.dynamics!r}; there are: "
                f"{', '.join(_DYNAMICS)}."
            )
        if self.dynamics == "filter" and fails(lambda x: x > 0, self.time_constant):
            raise ValueError(
                f"Motor {self.name!r}: the time constant of its filter is {self.time_constant} s; "
                'it is positive. Without a filter dynamics is "none".'
            )

    def parts(self):
        return self.along.parts()

    def inputs(self):
        return ((self.name, ""),)

    def states(self):
        return () if self.dynamics == "none" else ((f"activation of {self.name}", ""),)

    def load(self, t, motion, w, u):
        moving = self.along.moving(motion)
        x, rate = self.gear * moving.length, self.gear * moving.rate
        activation = self._input(u[0]) if self.dynamics == "none" else w[0]
        affine = jnp.stack([jnp.ones_like(x), x, rate])
        force = activation * (self.gain @ affine) + self.bias @ affine
        if self.force_range is not None:
            force = jnp.clip(force, *self.force_range)
        return moving.load.times(self.gear * force)

    def _input(self, u):
        return u if self.input_range is None else jnp.clip(u, *self.input_range)

    def rate(self, t, motion, w, u):
        if self.dynamics == "none":
            return w
        given = self._input(u[:1])
        return given if self.dynamics == "integrator" else (given - w) / self.time_constant


class ElectricMotor(AbstractForce):
    r"""A direct-current motor: its input is a voltage `u`, its state the current `i`.

        L i' = u - R i - ke n x',     F = kt n i

    along the length `x`, with the ratio `n` of the transmission. With `kt = ke`, as it is in
    consistent units, electrical power that is not heat or stored in the field is mechanical:
    `u i = R i^2 + d(L i^2 / 2)/dt + F x'`. The inertia of its rotor is `n^2` times as large at the
    joint: give it as the joint's armature.

    Args:
        name: of the input.
        along: a length, or the name of a hinge or a slide.
        resistance: `R` [ohm].
        inductance: `L` [H], positive.
        torque_constant: `kt` [N m/A].
        emf_constant: `ke` [V s/rad]; `kt` by default.
        gear: `n`.

    Raises:
        ValueError: for an inductance that is not positive, or a resistance that is negative.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    resistance: float
    inductance: float
    torque_constant: float
    emf_constant: float | None = None
    gear: float = 1.0

    def __check_init__(self):
        if fails(lambda x: x > 0, self.inductance):
            raise ValueError(
                f"ElectricMotor {self.name!r}: the inductance is {self.inductance} H; it is "
                "positive. Without one the current has no state: take Motor, with the gain kt / R "
                "and the bias (0, 0, -kt ke / R)."
            )
        if fails(lambda x: x >= 0, self.resistance):
            raise ValueError(
                f"ElectricMotor {self.name!r}: the resistance is {self.resistance} ohm; it is not "
                "negative."
            )

    def parts(self):
        return self.along.parts()

    def inputs(self):
        return ((self.name, "V"),)

    def states(self):
        return ((f"current of {self.name}", "A"),)

    def load(self, t, motion, w, u):
        return self.along.moving(motion).load.times(self.torque_constant * self.gear * w[0])

    def rate(self, t, motion, w, u):
        ke = self.torque_constant if self.emf_constant is None else self.emf_constant
        induced = ke * self.gear * self.along.moving(motion).rate
        return (u - self.resistance * w - induced) / self.inductance
