"""Motions that are prescribed: of joints and of points, as functions of time."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.multibody.bodies import AbstractLoop, axes_of_space
from jaxdae.multibody.joints import space_vector


def _value(name: str, function: Callable, t, shape: tuple[int, ...], dtype):
    """Of a user's function, refused where it has another shape."""
    value = jnp.asarray(function(t), dtype)
    if value.shape != shape:
        raise ValueError(
            f"multibody: the function of {name!r} returned shape {value.shape}; of the time it "
            f"returns {'one number' if not shape else f'a place, shape {shape}'}."
        )
    return value


class PrescribedJoint(AbstractLoop):
    """A hinge or slide moves as a function of time says: `x - function(t) = 0`, one equation.

    The multiplier is the force or torque with which it is driven, with the opposite sign. The
    motion that is asked for has two continuous derivatives; at a jump of its second one a step
    should end.

    Args:
        name: of the constraint.
        joint: name of a hinge or slide.
        function: from the time [s] to the joint's coordinate [rad or m]; a module of equinox may
            have parameters.

    Raises:
        ValueError: where the function returns anything but a number.
    """

    name: str = eqx.field(static=True)
    joint: str = eqx.field(static=True)
    function: Callable

    def residuals(self, t, poses, values):
        del poses
        value = values[self.joint]
        return value - _value(self.name, self.function, t, (), value.dtype)

    def constraints(self, units):
        return ((self.name, units[self.joint]),)


class PrescribedPoint(AbstractLoop):
    """A point of a body moves in space as a function of time says: `x - function(t) = 0`.

    Args:
        name: of the constraints.
        first: name of the body.
        function: from the time [s] to the place of the point in space [m], shape `(3,)`; a module
            of equinox may have parameters.
        anchor: the point in the body [m].
        axes: of space, along which it is prescribed: one equation for each.

    Raises:
        ValueError: for a point of the ground, and where the function returns another shape.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    function: Callable
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    axes: str = eqx.field(static=True, default="xyz", converter=axes_of_space)

    def __check_init__(self):
        if self.first is None:
            raise ValueError(
                f"PrescribedPoint {self.name!r}: the ground does not move; name a body that does."
            )

    def residuals(self, t, poses, values):
        del values
        place = poses[self.first].point(self.anchor)
        apart = place - _value(self.name, self.function, t, (3,), place.dtype)
        return apart[np.array(["xyz".index(x) for x in self.axes])]

    def constraints(self, units):
        del units
        return tuple((f"{self.name} {x}", "m") for x in self.axes)
