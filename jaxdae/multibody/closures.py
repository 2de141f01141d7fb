"""Joints that close loops: between two bodies that have their coordinates already.

Each has as many equations as it takes freedoms, independent of each other where the joint is
assembled [Haug1989, chapter 9]. Lengths are those of a vector from a point of the first body to one
of the second, in axes of the first. Of an angle that is wrong the residual is `2 tan(angle / 2)`,
from sines and cosines that are scalar products of unit vectors: the angle to first order, a smooth
function of the poses that does not vanish at half a turn, as a sine does, but has no value there.
"""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.multibody import rotations
from jaxdae.multibody.bodies import AbstractLoop, quaternion
from jaxdae.multibody.joints import Pose, screw_pitch, space_vector, unit_vector


def optional_axis(values) -> Float[Array, " 3"] | None:
    """A unit vector, or none."""
    return None if values is None else unit_vector(values)


class AbstractPair(AbstractLoop):
    """A loop between a point of one body and a point of another one.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point of the first body [m].
        other: a point of the second body [m].
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True, default=None)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    other: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))

    def relative(self, poses: dict[str | None, Pose]) -> Pose:
        """From anchor to other point, and the second body's rotation, in axes of the first."""
        one, two = poses[self.first], poses[self.second]
        apart = two.point(self.other) - one.point(self.anchor)
        return Pose(one.turn.T @ apart, one.turn.T @ two.turn)


def _across(axis: Float[Array, " 3"]) -> Float[Array, "2 3"]:
    """Two unit vectors that are perpendicular to an axis."""
    return jnp.stack(rotations.perpendicular(axis))


def _of_second(axis: Float[Array, " 3"], other_axis: Float[Array, " 3"] | None):
    """The axis in the second body; without one it has the components of that in the first."""
    return axis if other_axis is None else unit_vector(other_axis)


def _tilt(axis: Float[Array, " 3"], other_axis: Float[Array, " 3"] | None, turn):
    """Of the angle from an axis of the first body to one of the second, about two directions."""
    image = turn @ _of_second(axis, other_axis)
    return rotations.half_tangent(_across(axis) @ image, axis @ image)


def _axis_cosine(axis: Float[Array, " 3"], other_axis: Float[Array, " 3"] | None, turn):
    return unit_vector(axis) @ turn @ _of_second(axis, other_axis)


_PLACES = tuple((x, "m") for x in "xyz")
_ACROSS = (("across 1", "m"), ("across 2", "m"))
_TILTS = (("tilt 1", "rad"), ("tilt 2", "rad"))


class HingeLoop(AbstractPair):
    """A hinge that closes a loop: a common point and a common axis, five equations.

    With the vector `d` from the anchor to the other point, the axes `a` and `a'` of both bodies,
    and `b, c` perpendicular to `a`: `d = 0`, `b . a' = c . a' = 0`, the latter divided by
    `(1 + a . a') / 2`. In a mechanism that moves in a plane three of them say nothing; take a
    `Connection` there.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point of the axis in the first body [m].
        other: the same point in the second body [m].
        axis: in axes of the first body; its length does not matter.
        other_axis: the same in axes of the second body; `None` has the same components.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    other_axis: Float[Array, " 3"] | None = eqx.field(converter=optional_axis, default=None)

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        return jnp.concatenate([apart, _tilt(unit_vector(self.axis), self.other_axis, turn)])

    def constraints(self, units):
        del units
        return named(self.name, _PLACES + _TILTS)

    def alignment(self, poses):
        return _axis_cosine(self.axis, self.other_axis, self.relative(poses).turn)


class CylindricalLoop(AbstractPair):
    """A shaft that turns and slides in a bush and closes a loop: a common axis, four equations.

    With the vector `d` from the anchor to the other point, the axes `a` and `a'` of both bodies,
    and `b, c` perpendicular to `a`: `b . d = c . d = 0`, `b . a' = c . a' = 0`, the latter
    divided by `(1 + a . a') / 2`.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point of the axis in the first body [m].
        other: a point of the axis in the second body [m].
        axis: in axes of the first body; its length does not matter.
        other_axis: the same in axes of the second body; `None` has the same components.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    other_axis: Float[Array, " 3"] | None = eqx.field(converter=optional_axis, default=None)

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        axis = unit_vector(self.axis)
        return jnp.concatenate([_across(axis) @ apart, _tilt(axis, self.other_axis, turn)])

    def constraints(self, units):
        del units
        return named(self.name, _ACROSS + _TILTS)

    def alignment(self, poses):
        return _axis_cosine(self.axis, self.other_axis, self.relative(poses).turn)


class PlanarLoop(AbstractPair):
    """A plane of one body that slides on a plane of another one: three equations.

    With the vector `d` from the anchor to the other point, the normals `a` and `a'` of both planes,
    and `b, c` perpendicular to `a`: `a . d = 0`, `b . a' = c . a' = 0`, the latter divided by
    `(1 + a . a') / 2`.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point of the plane in the first body [m].
        other: a point of the plane in the second body [m].
        normal: of the plane in axes of the first body; its length does not matter.
        other_normal: the same in axes of the second body; `None` has the same components.
    """

    normal: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    other_normal: Float[Array, " 3"] | None = eqx.field(converter=optional_axis, default=None)

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        normal = unit_vector(self.normal)
        return jnp.concatenate([(normal @ apart)[None], _tilt(normal, self.other_normal, turn)])

    def constraints(self, units):
        del units
        return named(self.name, (("height", "m"), *_TILTS))

    def alignment(self, poses):
        return _axis_cosine(self.normal, self.other_normal, self.relative(poses).turn)


class UniversalLoop(AbstractPair):
    """A universal joint (Cardan, Hooke) that closes a loop: four equations.

    The two pins of its cross have a common point and stay perpendicular to each other:
    `d = 0`, `a . a' = 0`, with the vector `d` from the anchor to the other point and the pins `a`
    and `a'`. Every position that satisfies them is reached by turning about the pins.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: centre of the cross in the first body [m].
        other: the same point in the second body [m].
        axis: of the pin in the first body, in its axes; its length does not matter.
        other_axis: of the pin in the second body, in axes of that one.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))
    other_axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 1.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        cosine = unit_vector(self.axis) @ turn @ unit_vector(self.other_axis)
        return jnp.concatenate([apart, cosine[None]])

    def constraints(self, units):
        del units
        return named(self.name, (*_PLACES, ("right angle", "rad")))


class Perpendicular(AbstractLoop):
    """A direction of one body stays perpendicular to one of another body: one equation.

    `a . a' = 0`. Of two bodies that move in a plane it fixes the angle between them: with
    `PointOnPlane` it is a slide there. A body that is turned by half a turn satisfies it as well,
    so start within a quarter.

    Args:
        name: of the constraint.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        axis: in axes of the first body; its length does not matter.
        other_axis: in axes of the second body.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True, default=None)
    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))
    other_axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 1.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        one = poses[self.first].turn @ unit_vector(self.axis)
        two = poses[self.second].turn @ unit_vector(self.other_axis)
        return jnp.stack([one @ two])

    def constraints(self, units):
        del units
        return ((self.name, "rad"),)


class SlideLoop(AbstractPair):
    """A straight guide that closes a loop: five equations.

    With the vector `d` from the anchor to the other point, `b, c` perpendicular to the axis, and
    the rotation from where the bodies should be: `b . d = c . d = 0`, and `2 tan(angle / 2)` times
    the axis of that rotation is zero. It has no value at half a turn.

    Args:
        name: of the constraints.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point of the guide in the first body [m].
        other: a point of the guide in the second body [m].
        axis: of the guide in axes of the first body; its length does not matter.
        orientation: of the second body's axes in those of the first, a quaternion.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        wrong = rotations.half_tangent_vector(self._left(turn))
        return jnp.concatenate([_across(unit_vector(self.axis)) @ apart, wrong])

    def alignment(self, poses):
        return rotations.cosine(self._left(self.relative(poses).turn))

    def _left(self, turn):
        """The rotation that is to be none."""
        return turn @ rotations.from_quaternion(self.orientation).T

    def constraints(self, units):
        del units
        return named(self.name, _ACROSS + tuple((f"about {x}", "rad") for x in "xyz"))


class ScrewLoop(AbstractPair):
    r"""A screw in its nut that closes a loop: five equations.

    A common axis as in `CylindricalLoop`, and an advance along it. With the displacement
    `s = a . d`, the angle `theta` of the second body about the axis and the pitch `p`,

        (p / 2 pi) 2 tan((theta - 2 pi s / p) / 2) = 0:

    to first order the displacement that is wrong. The displacement counts the turns, so that no
    angle is unwrapped and there are as many turns as one likes; a screw that is displaced by a
    pitch without turning satisfies the equation too, so start within half a pitch.

    Args:
        name: of the constraints.
        first: name of a body, the nut; `None` is the ground.
        second: name of the other one, the screw, or `None`.
        anchor: a point of the axis in the first body [m].
        other: a point of the axis in the second body [m].
        axis: in axes of the first body; its length does not matter.
        pitch: displacement of the second body along the axis for each turn about it [m], positive
            for a right-handed thread.
        orientation: of the second body's axes in those of the first without displacement, a
            quaternion.

    Raises:
        ValueError: for a pitch of zero.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    pitch: float = eqx.field(converter=screw_pitch, default=1.0)
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        axis, turn = unit_vector(self.axis), self._turned(turn)
        advance = self.pitch / (2 * np.pi)
        cos, sin = cos_and_sin(axis, turn)
        wanted = axis @ apart / advance
        wrong = advance * turned_apart(cos, sin, wanted)
        return jnp.concatenate([_across(axis) @ apart, _tilt(axis, None, turn), wrong[None]])

    def constraints(self, units):
        del units
        return named(self.name, (*_ACROSS, *_TILTS, ("advance", "m")))

    def alignment(self, poses):
        return _axis_cosine(self.axis, None, self._turned(self.relative(poses).turn))

    def _turned(self, turn):
        """The rotation from where the screw is without displacement."""
        return turn @ rotations.from_quaternion(self.orientation).T


def cos_and_sin(axis: Float[Array, " 3"], turn: Float[Array, "3 3"]):
    """Of the angle of a rotation about an axis, which it leaves where it is."""
    b, c = rotations.perpendicular(axis)
    image = turn @ b
    return b @ image, c @ image


def turned_apart(cos, sin, wanted):
    """Of an angle, by its cosine and sine, and another one: `2 tan` of half their difference."""
    c, s = jnp.cos(wanted), jnp.sin(wanted)
    return rotations.half_tangent(sin * c - cos * s, cos * c + sin * s)


def named(name: str, rows) -> tuple[tuple[str, str], ...]:
    """Names of residuals, each after that of the constraint, and their units."""
    return tuple((f"{name} {row}", unit) for row, unit in rows)
