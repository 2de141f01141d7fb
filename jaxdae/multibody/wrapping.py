"""Obstacles that tendons wrap around: spheres and cylinders."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody.forces import Marker
from jaxdae.multibody.joints import Pose, space_vector
from jaxdae.multibody.lengths import distance
from jaxdae.reprs import Module


class _UnrolledPlane(NamedTuple):
    """Two points outside of a circle, in the plane that the path lies in once it is unrolled.

    Args:
        first: the distance of the one from the centre.
        second: that of the other.
        angle: between their directions, from 0 to half a turn.
        axes: in the frame of the obstacle: the direction of the first point, and the one across it
            towards the second, shape `(2, 3)`.
        along: distance of the two along the axis of a cylinder, signed.
    """

    first: Float[Array, ""]
    second: Float[Array, ""]
    angle: Float[Array, ""]
    axes: Float[Array, "2 3"]
    along: Float[Array, ""]


class AbstractObstacle(Module):
    """A round body that the shortest path between two points goes around."""

    marker: eqx.AbstractVar[Marker]
    radius: eqx.AbstractVar[float]
    side: eqx.AbstractVar[Float[Array, " 3"] | None]

    @abc.abstractmethod
    def plane(self, one: Float[Array, " 3"], two: Float[Array, " 3"]) -> _UnrolledPlane:
        """Of two points in the obstacle's frame."""

    def path(
        self, one: Float[Array, " 3"], two: Float[Array, " 3"], poses: dict[str | None, Pose]
    ) -> Float[Array, ""]:
        """Length of the path between two points in space [m].

        With `cos a = r / p` for each end, at the distance `p` from the centre, and the angle `b`
        between their directions: two tangents and an arc,

            sqrt(p1^2 - r^2) + sqrt(p2^2 - r^2) + r (b - a1 - a2),

        straight where the arc is negative or an end is inside. With a side it goes the longer way,
        `2 pi - b`, where the side is opposite to the cone of both ends, as in MuJoCo.
        """
        frame, r = self.marker.pose(poses), jnp.asarray(self.radius, one.dtype)
        plane = self.plane(*(frame.turn.T @ (x - frame.place) for x in (one, two)))
        outside = (plane.first > r) & (plane.second > r)
        ends = [jnp.where(outside, x, 2 * r) for x in (plane.first, plane.second)]
        tangents = [jnp.sqrt((x - r) * (x + r)) for x in ends]
        shadows = [jnp.arctan2(x, r) for x in tangents]
        angle = jnp.where(outside, plane.angle, 0.0)
        arc = angle - shadows[0] - shadows[1]
        wraps = outside & (arc > 0)
        if self.side is not None:
            far = self._is_far(plane, angle)
            around = 2 * np.pi - angle - shadows[0] - shadows[1]
            arc, wraps = jnp.where(far, around, arc), outside & (far | wraps)
        flat = tangents[0] + tangents[1] + r * jnp.where(wraps, arc, 1.0)
        along = jnp.where(wraps, plane.along, 0.0)
        # On a cylinder's surface, unrolled, the path is straight.
        return jnp.where(wraps, jnp.sqrt(flat**2 + along**2), distance(one, two))

    def _is_far(self, plane: _UnrolledPlane, angle):
        """Whether the side is opposite to the cone of both ends: the path goes the longer way."""
        assert self.side is not None
        ahead, across = plane.axes @ self.side
        return (across < 0) & (ahead * jnp.sin(angle) < across * jnp.cos(angle))


def _check(obstacle: AbstractObstacle, kind: str, size):
    if fails(lambda x: x > 0, obstacle.radius):
        raise ValueError(f"{kind}: the radius is {obstacle.radius} m; it is positive.")
    if size is not None and fails(lambda s, r: s > r, size, obstacle.radius):
        raise ValueError(
            f"{kind}: its side is {float(size):.4g} m from the centre, within the radius "
            f"{float(obstacle.radius):.4g} m: tendons that run through it are not modelled. Give "
            "a point outside of it."
        )


def _side(value):
    return None if value is None else space_vector(value)


class Sphere(AbstractObstacle):
    """A sphere, between two points of a `SpatialTendon`.

    Args:
        marker: its centre.
        radius: [m].
        side: a point outside of it, in the marker's axes: the tendon goes around on that side where
            its ends lie opposite; by default the shorter way.

    Raises:
        ValueError: for a radius that is not positive, or a side within the sphere.
    """

    marker: Marker
    radius: float
    side: Float[Array, " 3"] | None = eqx.field(converter=_side, default=None)

    def __check_init__(self):
        _check(self, "Sphere", None if self.side is None else jnp.linalg.norm(self.side))

    def plane(self, one, two):
        none = jnp.zeros(3, one.dtype)
        first, second = distance(none, one), distance(none, two)
        ahead = one / first
        across = two - (two @ ahead) * ahead
        size = distance(none, across)
        angle = jnp.arctan2(size, two @ ahead)
        return _UnrolledPlane(first, second, angle, jnp.stack([ahead, across / size]), 0.0 * size)


class Cylinder(AbstractObstacle):
    """A cylinder without ends about the axis z of a marker, between two points of a tendon.

    Args:
        marker: a point of its axis, and its axes.
        radius: [m].
        side: a point outside of it, in the marker's axes: the tendon goes around on that side where
            its ends lie opposite; by default the shorter way.

    Raises:
        ValueError: for a radius that is not positive, or a side within the cylinder.
    """

    marker: Marker
    radius: float
    side: Float[Array, " 3"] | None = eqx.field(converter=_side, default=None)

    def __check_init__(self):
        _check(self, "Cylinder", None if self.side is None else jnp.linalg.norm(self.side[:2]))

    def plane(self, one, two):
        flat = jnp.asarray([1.0, 1.0, 0.0], one.dtype)
        return (
            Sphere(self.marker, self.radius)
            .plane(one * flat, two * flat)
            ._replace(along=(two - one)[2])
        )
