"""Rolling without slip and skating: what constrains velocities and no positions."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody import rotations
from jaxdae.multibody.bodies import AbstractLoop
from jaxdae.multibody.closures import AbstractPair
from jaxdae.multibody.joints import Pose, space_vector, Twist, unit_vector

_EQUATIONS = ("height", "along", "across")


def _chosen(values: str | Sequence[str]) -> tuple[str, ...]:
    """Equations of rolling, in the order in which they stand."""
    chosen = (values,) if isinstance(values, str) else tuple(values)
    if not chosen or set(chosen) - {*_EQUATIONS} or len({*chosen}) < len(chosen):
        raise ValueError(
            "multibody: equations of rolling are some of 'height', 'along' and 'across', each "
            f"once; got {chosen}."
        )
    return tuple(x for x in _EQUATIONS if x in chosen)


def _radius(value):
    if fails(lambda x: 0 < x < np.inf, value):
        raise ValueError(f"multibody: the radius of what rolls is {value} m; it is positive.")
    return value


def _slip(one: Pose, two: Pose, moving: Twist, base: Twist, place: Float[Array, " 3"]):
    """Velocity of one body over another one at a place in space, in axes of the other one."""
    velocity = one.turn @ moving.at(one.turn.T @ (place - one.place))
    return two.turn.T @ velocity - base.at(two.turn.T @ (place - two.place))


class _Rolling(AbstractPair):
    """Names of the equations of a body that rolls on a plane."""

    radius: float = eqx.field(converter=_radius, default=1.0)
    normal: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    equations: tuple[str, ...] = eqx.field(static=True, converter=_chosen, default=_EQUATIONS)

    def constraints(self, units):
        del units
        return ((f"{self.name} height", "m"),) if "height" in self.equations else ()

    def velocity_constraints(self):
        return tuple((f"{self.name} {x}", "m/s") for x in self.equations if x != "height")

    def centre(self, poses):
        """From the point of the plane to the centre, in axes of the second body."""
        one, two = poses[self.first], poses[self.second]
        return two.turn.T @ (one.point(self.anchor) - two.point(self.other))

    def slips(self, poses, twists, arm, along, across):
        """Velocities over the plane, at an arm from the centre in axes of the second body."""
        one, two = poses[self.first], poses[self.second]
        place = one.point(self.anchor) + two.turn @ arm
        slip = _slip(one, two, twists[self.first], twists[self.second], place)
        kept = [x for name, x in (("along", along), ("across", across)) if name in self.equations]
        return jnp.stack([x @ slip for x in kept])


class RollingWheel(_Rolling):
    r"""A wheel with a sharp rim that rolls on a plane without slip: three equations.

    With the vector `d` from a point of the plane to the centre, the normal `n`, the axle `a` and
    the radius `r`, the rim touches the plane at `c - r e`, `e = (n - (n.a) a) / |n x a|`:

        n . d - r |n x a| = 0                          height, a position constraint
        (n x a) . s = 0,   (n x (n x a)) . s = 0       along and across, velocity constraints

    with the velocity `s` of that point of the wheel over the plane [Bloch2003, section 1.4]. The
    wheel may lean; where it lies flat, `n x a = 0`, the equations have no value. Leave out what
    other constraints say already: the height of a wheel that joints keep upright, or `"across"` of
    a second wheel on the same axle.

    Args:
        name: of the constraints.
        first: name of the wheel.
        second: name of the body with the plane; `None` is the ground.
        anchor: centre of the wheel in its body [m].
        other: a point of the plane in the second body [m].
        radius: [m].
        normal: of the plane, towards the wheel, in axes of the second body; its length does not
            matter.
        equations: some of `"height"`, `"along"` and `"across"`.
        axis: of the axle in axes of the wheel; its length does not matter.

    Raises:
        ValueError: for a radius that is not positive, or equations of other names.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 1.0, 0.0))

    def _directions(self, poses):
        """The normal, the way ahead times the sine of the lean, that sine, the axle."""
        normal = unit_vector(self.normal)
        turn = poses[self.second].turn.T @ poses[self.first].turn
        axle = turn @ unit_vector(self.axis)
        ahead = rotations.cross(normal, axle)
        return normal, ahead, jnp.sqrt(ahead @ ahead), axle

    def residuals(self, t, poses, values):
        del t, values
        if "height" not in self.equations:
            return jnp.zeros(0, poses[None].place.dtype)
        normal, _, sine, _ = self._directions(poses)
        return (normal @ self.centre(poses) - self.radius * sine)[None]

    def velocity_residuals(self, t, poses, twists):
        del t
        normal, ahead, sine, axle = self._directions(poses)
        arm = -self.radius / sine * (normal - (normal @ axle) * axle)
        along = ahead / sine
        return self.slips(poses, twists, arm, along, rotations.cross(normal, along))


class RollingSphere(_Rolling):
    """A sphere that rolls on a plane without slip, and may pivot: three equations.

    With the vector `d` from a point of the plane to the centre and the normal `n`, the height is
    `n . d - r = 0`, a position constraint; the point of the sphere below the centre has no velocity
    over the plane along two directions that are perpendicular to the normal.

    Args:
        name: of the constraints.
        first: name of the sphere.
        second: name of the body with the plane; `None` is the ground.
        anchor: centre of the sphere in its body [m].
        other: a point of the plane in the second body [m].
        radius: [m].
        normal: of the plane, towards the sphere, in axes of the second body; its length does not
            matter.
        equations: some of `"height"`, `"along"` and `"across"`; for a normal along z these are x
            and y.

    Raises:
        ValueError: for a radius that is not positive, or equations of other names.
    """

    def residuals(self, t, poses, values):
        del t, values
        if "height" not in self.equations:
            return jnp.zeros(0, poses[None].place.dtype)
        return (unit_vector(self.normal) @ self.centre(poses) - self.radius)[None]

    def velocity_residuals(self, t, poses, twists):
        del t
        normal = unit_vector(self.normal)
        arm = -self.radius * normal
        return self.slips(poses, twists, arm, *rotations.perpendicular(normal))


class Skate(AbstractLoop):
    """A skate, or knife edge: a point has no velocity along one axis of its body, one equation.

    `(R a) . s = 0`, with the velocity `s` of the point over the second body and the axis `a`, which
    is perpendicular to the edge [NeimarkFufaev1972, chapter III]. Other joints hold it on the ice.

    Args:
        name: of the constraint.
        first: name of the body with the edge.
        second: name of the body on which it moves; `None` is the ground.
        anchor: the point of contact in the first body [m].
        axis: along which it does not move, in axes of the first body; its length does not matter.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True, default=None)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 1.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        return jnp.zeros(0, poses[None].place.dtype)

    def constraints(self, units):
        del units
        return ()

    def velocity_residuals(self, t, poses, twists):
        del t
        one, two = poses[self.first], poses[self.second]
        place = one.point(self.anchor)
        slip = _slip(one, two, twists[self.first], twists[self.second], place)
        return (two.turn.T @ one.turn @ unit_vector(self.axis) @ slip)[None]

    def velocity_constraints(self):
        return ((self.name, "m/s"),)
