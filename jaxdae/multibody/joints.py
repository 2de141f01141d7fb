"""Joints: how a body moves relative to its parent."""

import abc
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody import rotations
from jaxdae.reprs import Module
from jaxdae.systems.precision import as_floats


class Pose(NamedTuple):
    """Where a body is.

    Args:
        place: its origin in space [m], shape `(3,)`.
        turn: from its axes to those of space, shape `(3, 3)`.
    """

    place: Float[Array, " 3"]
    turn: Float[Array, "3 3"]

    def point(self, offset: Float[Array, " 3"]) -> Float[Array, " 3"]:
        """A point of the body in space [m], from its place in the body."""
        return self.place + self.turn @ offset

    def then(self, relative: "Pose") -> "Pose":
        """The pose of what has a pose relative to this one."""
        return Pose(self.point(relative.place), self.turn @ relative.turn)


class Twist(NamedTuple):
    """How a body moves, in its own axes.

    Args:
        velocity: of its origin [m/s], shape `(3,)`.
        spin: its angular velocity [rad/s], shape `(3,)`.
    """

    velocity: Float[Array, " 3"]
    spin: Float[Array, " 3"]

    def at(self, offset: Float[Array, " 3"]) -> Float[Array, " 3"]:
        """Velocity of a point of the body [m/s]."""
        return self.velocity + rotations.cross(self.spin, offset)

    def seen(self, relative: Pose) -> "Twist":
        """Of what is fixed at a pose relative to the body, in its axes."""
        return Twist(relative.turn.T @ self.at(relative.place), relative.turn.T @ self.spin)

    def plus(self, other: "Twist") -> "Twist":
        """Both together."""
        return Twist(self.velocity + other.velocity, self.spin + other.spin)


def space_vector(values) -> Float[Array, " 3"]:
    """Three components."""
    (found,) = as_floats(values)
    if found.shape != (3,):
        raise ValueError(f"multibody: a vector in space has 3 components; got shape {found.shape}.")
    return found


def unit_vector(values) -> Float[Array, " 3"]:
    """A vector of length 1."""
    return rotations.normalized("an axis", space_vector(values))


class AbstractJoint(Module):
    """One joint: `size` coordinates, and as many or fewer speeds.

    Its fields `damping` and `armature` are of these speeds: numbers, or one for each.
    """

    size: ClassVar[int]
    name: eqx.AbstractVar[str]

    @abc.abstractmethod
    def pose(self, values: Float[Array, " size"]) -> Pose:
        """Of the body, relative to where it is with the joint at rest."""

    @abc.abstractmethod
    def twist(self, values: Float[Array, " size"], rates: Float[Array, " size"]) -> Twist:
        """Of the body, relative to there and in its own axes."""

    def speeds(self, values: Float[Array, " size"], rates: Float[Array, " size"]):
        """What damping and armature belong to [rad/s or m/s]."""
        del values
        return rates

    def energy(self, values: Float[Array, " size"]) -> Float[Array, ""]:
        """Of its spring [J]."""
        return jnp.zeros((), values.dtype)

    def residuals(self, values: Float[Array, " size"]) -> tuple[Float[Array, ""], ...]:
        """Constraints among its own coordinates."""
        del values
        return ()

    @abc.abstractmethod
    def coordinates(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each coordinate."""

    @abc.abstractmethod
    def start(self) -> tuple[float, ...]:
        """Coordinates in which the body is as it was declared."""


class _Single(AbstractJoint):
    """One coordinate along or about an axis, with a spring and a damper."""

    size: ClassVar[int] = 1

    name: str = eqx.field(static=True)
    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    reference: float = 0.0
    stiffness: float = 0.0
    relaxed: float = 0.0
    damping: float = 0.0
    armature: float = 0.0

    def energy(self, values):
        return 0.5 * self.stiffness * (values[0] - self.relaxed) ** 2

    def start(self):
        return (self.reference,)


class Hinge(_Single):
    """A pin: one angle [rad] about an axis.

    Args:
        name: of the joint, and of its coordinate.
        axis: a vector in axes of the body; its length does not matter.
        reference: angle at which the body is as it was declared [rad].
        stiffness: of a torsion spring [N m/rad].
        relaxed: angle at which it is relaxed [rad].
        damping: [N m s/rad].
        armature: inertia of a rotor that turns with the angle, [kg m^2].
        anchor: a point of the axis in the body [m].
    """

    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))

    def pose(self, values):
        turn = rotations.from_axis(unit_vector(self.axis), values[0] - self.reference)
        return Pose(self.anchor - turn @ self.anchor, turn)

    def twist(self, values, rates):
        del values
        spin = rates[0] * unit_vector(self.axis)
        return Twist(rotations.cross(self.anchor, spin), spin)

    def coordinates(self):
        return ((self.name, "rad"),)


class Slide(_Single):
    """A straight guide: one displacement [m] along an axis.

    Args:
        name: of the joint, and of its coordinate.
        axis: a vector in axes of the body; its length does not matter.
        reference: displacement at which the body is as it was declared [m].
        stiffness: of a spring [N/m].
        relaxed: displacement at which it is relaxed [m].
        damping: [N s/m].
        armature: mass that moves with the displacement [kg].
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))

    def pose(self, values):
        along = (values[0] - self.reference) * unit_vector(self.axis)
        return Pose(along, rotations.none(values.dtype))

    def twist(self, values, rates):
        del values
        return Twist(rates[0] * unit_vector(self.axis), jnp.zeros_like(self.axis))

    def coordinates(self):
        return ((self.name, "m"),)


class Ball(AbstractJoint):
    """A ball in its socket: four Euler parameters (a quaternion of length 1, scalar part first).

    Args:
        name: of the joint; its coordinates are numbered from 0.
        anchor: the centre of the ball in the body [m].
        damping: [N m s/rad], of each angular velocity in axes of the body.
        armature: [kg m^2], the same.
    """

    size: ClassVar[int] = 4

    name: str = eqx.field(static=True)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    damping: float | Float[Array, " 3"] = 0.0
    armature: float | Float[Array, " 3"] = 0.0

    def pose(self, values):
        turn = rotations.from_quaternion(values)
        return Pose(self.anchor - turn @ self.anchor, turn)

    def twist(self, values, rates):
        spin = rotations.turning(values, rates)
        return Twist(rotations.cross(self.anchor, spin), spin)

    def speeds(self, values, rates):
        return rotations.turning(values, rates)

    def residuals(self, values):
        return (values @ values - 1.0,)

    def coordinates(self):
        return tuple((f"{self.name} e{i}", "1") for i in range(4))

    def start(self):
        return (1.0, 0.0, 0.0, 0.0)


class Free(AbstractJoint):
    """No joint at all: the place of the body [m], then its four Euler parameters.

    Coordinates are those of the body in space, whatever pose it was declared with; only a body
    without a parent can be free.

    Args:
        name: of the coordinates.
        damping: [N s/m and N m s/rad].
        armature: [kg and kg m^2].
        place: of the start [m].
        orientation: quaternion of the start.
    """

    size: ClassVar[int] = 7

    name: str = eqx.field(static=True)
    damping: float | Float[Array, " 6"] = 0.0
    armature: float | Float[Array, " 6"] = 0.0
    place: tuple[float, ...] = eqx.field(static=True, default=(0.0, 0.0, 0.0))
    orientation: tuple[float, ...] = eqx.field(static=True, default=(1.0, 0.0, 0.0, 0.0))

    def pose(self, values):
        return Pose(values[:3], rotations.from_quaternion(values[3:]))

    def twist(self, values, rates):
        turn = rotations.from_quaternion(values[3:])
        return Twist(turn.T @ rates[:3], rotations.turning(values[3:], rates[3:]))

    def speeds(self, values, rates):
        return jnp.concatenate([rates[:3], rotations.turning(values[3:], rates[3:])])

    def residuals(self, values):
        return (values[3:] @ values[3:] - 1.0,)

    def coordinates(self):
        places = tuple((f"{self.name} {x}", "m") for x in "xyz")
        return places + tuple((f"{self.name} e{i}", "1") for i in range(4))

    def start(self):
        return (*self.place, *self.orientation)
