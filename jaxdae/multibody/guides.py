"""Points of one body that are held by another one: at a distance, on a line, surface or curve."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody import rotations
from jaxdae.multibody.closures import AbstractPair, named
from jaxdae.multibody.joints import unit_vector


def _length(value):
    if fails(lambda x: 0 < x < np.inf, value):
        raise ValueError(
            f"Rod: the length is {value} m; it is positive. Points with one place are a Connection."
        )
    return value


class Rod(AbstractPair):
    """A rod without mass, with a ball at each end: two points keep their distance, one equation.

    With the vector `d` between the points and the length `l`: `(|d|^2 - l^2) / (2 l) = 0`, to first
    order the distance that is wrong. A rod takes pulls and pushes.

    Args:
        name: of the constraint.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: end of the rod in the first body [m].
        other: its other end in the second body [m].
        length: [m].

    Raises:
        ValueError: for a length that is not positive.
    """

    length: float = eqx.field(converter=_length, default=1.0)

    def residuals(self, t, poses, values):
        del t, values
        apart = self.relative(poses).place
        return jnp.stack([0.5 * (apart @ apart / self.length - self.length)])

    def constraints(self, units):
        del units
        return ((self.name, "m"),)


class PointOnLine(AbstractPair):
    """A point of the second body moves along a straight line of the first one: two equations.

    `b . d = c . d = 0`, with the vector `d` from the anchor to the point, and `b, c` perpendicular
    to the line. In a mechanism that moves in a plane one of them says nothing; there the line is a
    `PointOnPlane`.

    Args:
        name: of the constraints.
        first: name of the body with the line; `None` is the ground.
        second: name of the body with the point, or `None`.
        anchor: a point of the line in the first body [m].
        other: the point in the second body [m].
        axis: direction of the line in axes of the first body; its length does not matter.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        b, c = rotations.perpendicular(unit_vector(self.axis))
        return jnp.stack([b, c]) @ self.relative(poses).place

    def constraints(self, units):
        del units
        return named(self.name, (("across 1", "m"), ("across 2", "m")))


class PointOnPlane(AbstractPair):
    """A point of the second body moves in a plane of the first one: one equation.

    `a . d = 0`, with the vector `d` from the anchor to the point and the normal `a`.

    Args:
        name: of the constraint.
        first: name of the body with the plane; `None` is the ground.
        second: name of the body with the point, or `None`.
        anchor: a point of the plane in the first body [m].
        other: the point in the second body [m].
        normal: of the plane in axes of the first body; its length does not matter.
    """

    normal: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))

    def residuals(self, t, poses, values):
        del t, values
        return jnp.stack([unit_vector(self.normal) @ self.relative(poses).place])

    def constraints(self, units):
        del units
        return ((self.name, "m"),)


def _value(name: str, function: Callable, place, shape: tuple[int, ...]):
    """Of a user's function, refused where it has another shape."""
    value = jnp.asarray(function(place), place.dtype)
    if value.shape != shape:
        raise ValueError(
            f"multibody: the function of {name!r} returned shape {value.shape}; from a point of "
            f"shape (3,) it returns {'one number' if not shape else f'shape {shape}'}."
        )
    return value


class PointOnSurface(AbstractPair):
    """A point of the second body moves on a surface of the first one: one equation, `F(x) = 0`.

    The gradient of `F` is not zero on the surface; where it is about 1, the residual is the
    distance to first order, as for `F = |x| - r` of a sphere. Of a graph `z = h(x, y)` it is
    `F = z - h(x, y)`, of a cam with the radius `r(phi)` it is `F = hypot(x, y) - r(atan2(y, x))`.

    Args:
        name: of the constraint.
        first: name of the body with the surface; `None` is the ground.
        second: name of the body with the point, or `None`.
        anchor: from which the function counts, in the first body [m].
        other: the point in the second body [m].
        function: `F`, from a place in axes of the first body, shape `(3,)`, to a number [m]; a
            module of equinox may have parameters.

    Raises:
        ValueError: where the function returns anything else.
    """

    function: Callable = eqx.field(kw_only=True)

    def residuals(self, t, poses, values):
        del t, values
        return _value(self.name, self.function, self.relative(poses).place, ())[None]

    def constraints(self, units):
        del units
        return ((self.name, "m"),)


class PointOnCurve(AbstractPair):
    """A point of the second body moves on a curve of the first one: two equations, `F(x) = 0`.

    The curve is where two surfaces meet, so that there is no parameter to solve for; the gradients
    of both components of `F` are independent on it. Of a graph `y = g(x)`, `z = h(x)` it is
    `F = (y - g(x), z - h(x))`; of a curve around an axis, given by the angle, as in
    `PointOnSurface`. In a mechanism that moves in a plane a curve is a `PointOnSurface`.

    Args:
        name: of the constraints.
        first: name of the body with the curve; `None` is the ground.
        second: name of the body with the point, or `None`.
        anchor: from which the function counts, in the first body [m].
        other: the point in the second body [m].
        function: `F`, from a place in axes of the first body, shape `(3,)`, to shape `(2,)` [m]; a
            module of equinox may have parameters.

    Raises:
        ValueError: where the function returns another shape.
    """

    function: Callable = eqx.field(kw_only=True)

    def residuals(self, t, poses, values):
        del t, values
        return _value(self.name, self.function, self.relative(poses).place, (2,))

    def constraints(self, units):
        del units
        return named(self.name, (("1", "m"), ("2", "m")))
