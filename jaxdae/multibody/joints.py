"""Joints: how a body moves relative to its parent."""

import abc
import functools
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
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

    def on_parent(self, pose: Pose) -> "Twist":
        """The same about the origin of a frame in which its own has a pose, and in its axes."""
        spin = pose.turn @ self.spin
        return Twist(pose.turn @ self.velocity + rotations.cross(pose.place, spin), spin)

    def plus(self, other: "Twist") -> "Twist":
        """Both together."""
        return Twist(self.velocity + other.velocity, self.spin + other.spin)

    def changes(self, other: "Twist") -> "Twist":
        """Rate of another twist that is constant in axes that move with this one."""
        return Twist(
            rotations.cross(self.spin, other.velocity) + rotations.cross(self.velocity, other.spin),
            rotations.cross(self.spin, other.spin),
        )

    def times(self, speed: Float[Array, ""]) -> "Twist":
        """At another speed."""
        return Twist(self.velocity * speed, self.spin * speed)


class Wrench(NamedTuple):
    """A force and a torque on a body, in its own axes; or a momentum.

    Args:
        force: [N], shape `(3,)`.
        torque: about the origin of the body [N m], shape `(3,)`.
    """

    force: Float[Array, " 3"]
    torque: Float[Array, " 3"]

    def power(self, twist: Twist) -> Float[Array, ""]:
        """At a twist of the body [W]."""
        return self.force @ twist.velocity + self.torque @ twist.spin

    def times(self, factor: Float[Array, ""]) -> "Wrench":
        """A multiple."""
        return Wrench(self.force * factor, self.torque * factor)

    def at(self, relative: Pose) -> "Wrench":
        """The same on the body, of what is given in a frame that has a pose relative to it."""
        force = relative.turn @ self.force
        return Wrench(force, relative.turn @ self.torque + rotations.cross(relative.place, force))

    def plus(self, other: "Wrench") -> "Wrench":
        """Both together."""
        return Wrench(self.force + other.force, self.torque + other.torque)

    @classmethod
    def dual(cls, pose: Pose, slope: Pose) -> "Wrench":
        """The one whose power is the rate of a function of a pose, from its slope by the pose."""
        # A turn R changes by R (spin x), so that the skew part of R^T d/dR belongs to the spin.
        return cls(pose.turn.T @ slope.place, 2 * rotations.vector(pose.turn.T @ slope.turn))


def space_vector(values) -> Float[Array, " 3"]:
    """Three components."""
    (found,) = as_floats(values)
    if found.shape != (3,):
        raise ValueError(f"multibody: a vector in space has 3 components; got shape {found.shape}.")
    return found


def unit_vector(values) -> Float[Array, " 3"]:
    """A vector of length 1."""
    return rotations.normalized("an axis", space_vector(values))


def screw_pitch(value):
    """A number that is not zero."""
    if fails(lambda x: np.isfinite(x) and x != 0, value):
        raise ValueError(
            f"multibody: the pitch of a screw is {value} m each turn; give a number that is not "
            "zero, or take a hinge, which does not advance."
        )
    return value


class AbstractJoint(Module):
    """One joint: `size` coordinates, and `freedoms` velocities.

    Its frame lies in the body, at the joint's anchor, with the axes of the body. Its fields
    `damping` and `armature` belong to the velocities: numbers, or one for each.
    """

    size: ClassVar[int]
    freedoms: ClassVar[int]
    # Of its steps; of most joints there is one.
    step_freedoms: ClassVar[tuple[int, ...]]
    name: eqx.AbstractVar[str]

    def __check_init__(self):
        armature = getattr(self, "armature", 0.0)
        if fails(lambda x: np.all(np.isfinite(x) & (np.asarray(x) >= 0)), armature):
            raise ValueError(
                f"{type(self).__name__} {self.name!r}: the armature is {armature}; it is an "
                "inertia, finite and not negative."
            )
        for what in ("damping", "armature"):
            shape = np.shape(getattr(self, what, 0.0))
            if shape not in ((), (1,), (self.freedoms,)):
                raise ValueError(
                    f"{type(self).__name__} {self.name!r}: the {what} has the shape {shape}; it is "
                    f"one number, or one for each velocity, shape ({self.freedoms},)."
                )

    @property
    def at(self) -> Float[Array, " 3"] | None:
        """Origin of its frame in the body [m]; `None` for that of the body."""
        return None

    @abc.abstractmethod
    def steps(self, values: Float[Array, " size"]) -> tuple[Pose, ...]:
        """Of its frame relative to where that is with the joint at rest, several in a row."""

    @abc.abstractmethod
    def axes(self, dtype) -> tuple[tuple[Twist, ...], ...]:
        """Behind each step, twists of the frame at each velocity 1, in its own axes."""

    def pose(self, values: Float[Array, " size"]) -> Pose:
        """Of the body, relative to where it is with the joint at rest."""
        moved, at = functools.reduce(Pose.then, self.steps(values)), self.at
        return moved if at is None else Pose(at + moved.place - moved.turn @ at, moved.turn)

    def directions(self, values: Float[Array, " size"]) -> tuple[Twist, ...]:
        """Of its frame relative to there at each velocity 1, in axes of the body."""
        found: list[Twist] = []
        for step, axes in zip(self.steps(values), self.axes(values.dtype), strict=True):
            found = [*(x.seen(step) for x in found), *axes]
        return tuple(found)

    def twist(self, values: Float[Array, " size"], speeds: Float[Array, " freedoms"]) -> Twist:
        """Of the body, relative to there and in its own axes."""
        parts = [x.times(speeds[i]) for i, x in enumerate(self.directions(values))]
        moved, at = functools.reduce(Twist.plus, parts), self.at
        return moved if at is None else Twist(moved.at(-at), moved.spin)

    def rate(self, values: Float[Array, " size"], speeds: Float[Array, " freedoms"]):
        """Rates of the coordinates, shape `(size,)`."""
        del values
        return speeds

    def quaternion(self, values: Float[Array, " size"]) -> Float[Array, " 4"] | None:
        """Those of the coordinates that are a quaternion."""
        return None

    def energy(self, values: Float[Array, " size"]) -> Float[Array, ""]:
        """Of its spring [J]."""
        return jnp.zeros((), values.dtype)

    def gyroscopic_force(self, speeds: Float[Array, " freedoms"]) -> Float[Array, " freedoms"]:
        """Inertial force that the armature has at constant velocities [N or N m]."""
        return jnp.zeros_like(speeds)

    @abc.abstractmethod
    def coordinates(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each coordinate."""

    def velocities(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each velocity."""
        return tuple((name, f"{unit}/s") for name, unit in self.coordinates())

    @abc.abstractmethod
    def start(self) -> tuple[float, ...]:
        """Coordinates in which the body is as it was declared."""


class _Single(AbstractJoint):
    """One coordinate along or about an axis, with a spring and a damper."""

    size: ClassVar[int] = 1
    freedoms: ClassVar[int] = 1
    step_freedoms: ClassVar[tuple[int, ...]] = (1,)

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

    @property
    def at(self):
        return self.anchor

    def steps(self, values):
        turn = rotations.from_axis(unit_vector(self.axis), values[0] - self.reference)
        return (Pose(jnp.zeros(3, values.dtype), turn),)

    def axes(self, dtype):
        del dtype
        return ((Twist(jnp.zeros_like(self.axis), unit_vector(self.axis)),),)

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

    def steps(self, values):
        along = (values[0] - self.reference) * unit_vector(self.axis)
        return (Pose(along, rotations.none(values.dtype)),)

    def axes(self, dtype):
        del dtype
        return ((Twist(unit_vector(self.axis), jnp.zeros_like(self.axis)),),)

    def coordinates(self):
        return ((self.name, "m"),)


class Screw(_Single):
    """A screw in its nut: one angle [rad] about an axis, with a displacement along it.

    The displacement is `pitch / (2 pi)` times the angle from where the body is as it was declared.

    Args:
        name: of the joint, and of its coordinate.
        axis: a vector in axes of the body; its length does not matter.
        reference: angle at which the body is as it was declared [rad].
        stiffness: of a torsion spring [N m/rad].
        relaxed: angle at which it is relaxed [rad].
        damping: [N m s/rad].
        armature: inertia of a rotor that turns with the angle, [kg m^2].
        anchor: a point of the axis in the body [m].
        pitch: displacement along the axis for each turn about it [m], positive for a right-handed
            thread.

    Raises:
        ValueError: for a pitch of zero.
    """

    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    pitch: float = eqx.field(converter=screw_pitch, default=1.0)

    @property
    def at(self):
        return self.anchor

    def _advance(self):
        """Displacement for each radian, a vector."""
        return self.pitch / (2 * np.pi) * unit_vector(self.axis)

    def steps(self, values):
        angle = values[0] - self.reference
        turn = rotations.from_axis(unit_vector(self.axis), angle)
        return (Pose(angle * self._advance(), turn),)

    def axes(self, dtype):
        del dtype
        return ((Twist(self._advance(), unit_vector(self.axis)),),)

    def coordinates(self):
        return ((self.name, "rad"),)


class Ball(AbstractJoint):
    """A ball in its socket: a quaternion (scalar part first), and an angular velocity.

    The velocity is that relative to the parent, in axes of the body [rad/s]. The length of the
    quaternion does not change along a motion, and does not matter.

    Args:
        name: of the joint; its coordinates are numbered from 0.
        anchor: the centre of the ball in the body [m].
        damping: [N m s/rad], of each angular velocity in axes of the body.
        armature: [kg m^2], the same.
    """

    size: ClassVar[int] = 4
    freedoms: ClassVar[int] = 3
    step_freedoms: ClassVar[tuple[int, ...]] = (3,)

    name: str = eqx.field(static=True)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    damping: float | Float[Array, " 3"] = 0.0
    armature: float | Float[Array, " 3"] = 0.0

    @property
    def at(self):
        return self.anchor

    def steps(self, values):
        return (Pose(jnp.zeros(3, values.dtype), rotations.from_quaternion(values)),)

    def axes(self, dtype):
        return (_turns(dtype),)

    def quaternion(self, values):
        return values

    def rate(self, values, speeds):
        return rotations.quaternion_rate(values, speeds)

    def gyroscopic_force(self, speeds):
        return rotations.cross(speeds, self.armature * speeds)

    def coordinates(self):
        return tuple((f"{self.name} e{i}", "1") for i in range(4))

    def velocities(self):
        return tuple((f"{self.name} about {x}", "rad/s") for x in "xyz")

    def start(self):
        return (1.0, 0.0, 0.0, 0.0)


class Free(AbstractJoint):
    """No joint at all: the place of the body [m], then a quaternion (scalar part first).

    Its velocities are that of the place in axes of space [m/s], then the angular velocity in axes
    of the body [rad/s]. Coordinates are those of the body in space, whatever pose it was declared
    with; only a body without a parent can be free.

    Args:
        name: of the coordinates.
        damping: [N s/m and N m s/rad].
        armature: [kg and kg m^2].
        place: of the start [m].
        orientation: quaternion of the start.
    """

    size: ClassVar[int] = 7
    freedoms: ClassVar[int] = 6
    step_freedoms: ClassVar[tuple[int, ...]] = (3, 3)

    name: str = eqx.field(static=True)
    damping: float | Float[Array, " 6"] = 0.0
    armature: float | Float[Array, " 6"] = 0.0
    place: tuple[float, ...] = eqx.field(static=True, default=(0.0, 0.0, 0.0))
    orientation: tuple[float, ...] = eqx.field(static=True, default=(1.0, 0.0, 0.0, 0.0))

    def steps(self, values):
        still = jnp.zeros(3, values.dtype)
        turned = Pose(still, rotations.from_quaternion(values[3:]))
        return Pose(values[:3], rotations.none(values.dtype)), turned

    def axes(self, dtype):
        turns = _turns(dtype)
        return tuple(Twist(x.spin, x.velocity) for x in turns), turns

    def quaternion(self, values):
        return values[3:]

    def rate(self, values, speeds):
        return jnp.concatenate([speeds[:3], rotations.quaternion_rate(values[3:], speeds[3:])])

    def gyroscopic_force(self, speeds):
        turning = jnp.broadcast_to(jnp.asarray(self.armature, speeds.dtype), (6,))[3:]
        return jnp.concatenate(
            [jnp.zeros_like(speeds[:3]), rotations.cross(speeds[3:], turning * speeds[3:])]
        )

    def coordinates(self):
        places = tuple((f"{self.name} {x}", "m") for x in "xyz")
        return places + tuple((f"{self.name} e{i}", "1") for i in range(4))

    def velocities(self):
        places = tuple((f"{self.name} {x}", "m/s") for x in "xyz")
        return places + tuple((f"{self.name} about {x}", "rad/s") for x in "xyz")

    def start(self):
        return (*self.place, *self.orientation)


def _turns(dtype) -> tuple[Twist, ...]:
    """Rotations about the three axes of a body."""
    return tuple(Twist(jnp.zeros(3, dtype), jnp.asarray(x, dtype)) for x in np.eye(3))
