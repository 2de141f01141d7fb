"""Gears between bodies: wheels, and a pinion on its rack."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody import rotations
from jaxdae.multibody.bodies import AbstractLoop, quaternion
from jaxdae.multibody.closures import AbstractPair, cos_and_sin, turned_apart
from jaxdae.multibody.joints import unit_vector


def _teeth(values) -> tuple[int, int]:
    counts = tuple(values)
    if len(counts) != 2 or any(isinstance(x, bool) or int(x) != x or x == 0 for x in counts):
        raise ValueError(
            f"GearPair: teeth are two integers, not zero, that of an internal gear negative; got "
            f"{counts}. A ratio of hinges that is no fraction is a Coupling."
        )
    return int(counts[0]), int(counts[1])


class GearPair(AbstractLoop):
    r"""Two gears that turn in one housing: one equation.

    With the angles `alpha` and `beta` of both gears relative to the housing, each about its own
    axis, and the numbers of teeth `m` and `n`, the teeth of both that have passed are equal,

        2 tan((m alpha + n beta - phase) / 2) / m = 0,

    to first order the angle of the first gear that is wrong. Numbers of teeth are integers, so that
    no turn has to be counted. Angles at which other teeth mesh satisfy the equation, too, so start
    within half a tooth. The axes of the gears are for other joints to hold. Of gears on hinges of a
    tree, whose angles are coordinates, a `Coupling` with `coefficients=(0, -m / n)` is the same,
    without a tooth to start within.

    Args:
        name: of the constraint.
        first: name of a gear; `None` is the ground, as a sun or ring may be.
        second: name of the other gear, or `None`.
        housing: name of the body in which both turn, such as the arm of a planetary gear; `None` is
            the ground.
        axis: of the first gear, in axes of the housing; its length does not matter.
        other_axis: of the second gear, in axes of the housing. Axes that are parallel point the
            same way; those of bevel gears both point away from where the axes cross, or both there.
        teeth: `m` and `n`; that of an internal gear is negative.
        orientation: of the first gear's axes in those of the housing where its angle is zero, a
            quaternion.
        other_orientation: the same of the second gear.
        phase: of the mesh, `m alpha + n beta` in one position in which teeth mesh [rad].

    Raises:
        ValueError: for numbers of teeth that are no integers, or zero.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True)
    housing: str | None = eqx.field(static=True, default=None)
    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    other_axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    teeth: tuple[int, int] = eqx.field(static=True, converter=_teeth, default=(1, 1))
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))
    other_orientation: Float[Array, " 4"] = eqx.field(
        converter=quaternion, default=(1.0, 0.0, 0.0, 0.0)
    )
    phase: float = 0.0

    def residuals(self, t, poses, values):
        del t, values
        passed = -self.phase
        for gear, axis, orientation, count in (
            (self.first, self.axis, self.orientation, self.teeth[0]),
            (self.second, self.other_axis, self.other_orientation, self.teeth[1]),
        ):
            turn = poses[self.housing].turn.T @ poses[gear].turn
            turn = turn @ rotations.from_quaternion(orientation).T
            cos, sin = cos_and_sin(unit_vector(axis), turn)
            passed += count * jnp.arctan2(sin, cos)
        return rotations.half_tangent(jnp.sin(passed), jnp.cos(passed))[None] / self.teeth[0]

    def constraints(self, units):
        del units
        return ((self.name, "rad"),)


def _radius(value):
    if fails(lambda x: 0 < x < np.inf, value):
        raise ValueError(f"RackAndPinion: the radius is {value} m; it is positive.")
    return value


class RackAndPinion(AbstractPair):
    r"""A pinion that rolls on a rack: one equation.

    With the displacement `s` of the pinion's centre along the rack, its angle `theta` relative to
    the rack, and the radius `r` of its pitch circle,

        2 r tan((theta - s / r) / 2) = 0:

    to first order the displacement that is wrong. The displacement counts the turns, so that no
    angle is unwrapped; one that differs from the right one by a circumference satisfies the
    equation too, so start within half of it. Other joints hold the pinion beside the rack, on the
    side `along x axis` of it. Of coordinates of joints, a slide and a hinge, a `Coupling` with
    `coefficients=(0, r)` is the same.

    Args:
        name: of the constraint.
        first: name of the rack; `None` is the ground.
        second: name of the pinion, or `None`.
        anchor: the pinion's centre without displacement, in the rack [m].
        other: its centre in the pinion [m].
        axis: of the pinion in axes of the rack; its length does not matter.
        along: the rack, in its axes, where the pinion goes as it turns about its axis.
        radius: of the pinion's pitch circle [m].
        orientation: of the pinion's axes in those of the rack without displacement, a quaternion.

    Raises:
        ValueError: for a radius that is not positive.
    """

    axis: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(0.0, 0.0, 1.0))
    along: Float[Array, " 3"] = eqx.field(converter=unit_vector, default=(1.0, 0.0, 0.0))
    radius: float = eqx.field(converter=_radius, default=1.0)
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        apart, turn = self.relative(poses)
        turn = turn @ rotations.from_quaternion(self.orientation).T
        cos, sin = cos_and_sin(unit_vector(self.axis), turn)
        wanted = unit_vector(self.along) @ apart / self.radius
        return self.radius * turned_apart(cos, sin, wanted)[None]

    def constraints(self, units):
        del units
        return ((self.name, "m"),)
