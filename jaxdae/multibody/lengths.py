"""Lengths: numbers that a configuration has, along which springs, dampers and motors act."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody.forces import BODY, COORDINATE, Load, Marker, Motion, Part
from jaxdae.multibody.joints import Pose, Wrench
from jaxdae.reprs import Module


class MovingLength(NamedTuple):
    """A length in a motion.

    Args:
        length: [m or rad].
        rate: its rate [m/s or rad/s].
        load: on bodies and joints, of a force 1 that lengthens it.
    """

    length: Float[Array, ""]
    rate: Float[Array, ""]
    load: Load


class AbstractLength(Module):
    """A length or an angle between bodies, or of joints.

    A force `F` along it has the power `F dx/dt`: it is positive where it lengthens.
    """

    @abc.abstractmethod
    def length(
        self, poses: dict[str | None, Pose], values: dict[str, Float[Array, " 1"]]
    ) -> Float[Array, ""]:
        """From poses of bodies and coordinates of joints [m or rad]."""

    @abc.abstractmethod
    def parts(self) -> tuple[Part, ...]:
        """Names of bodies, and of hinges and slides, that it depends on."""

    def moving(self, motion: Motion) -> MovingLength:
        """Its value, its rate, and what a unit of force along it does."""
        bodies = {name for _, kind, name in self.parts() if kind == BODY and name is not None}
        joints = {name for _, kind, name in self.parts() if kind == COORDINATE and name is not None}
        ground = motion.poses[None]

        def length(poses, values):
            return self.length({None: ground, **poses}, values)

        poses = {x: motion.poses[x] for x in sorted(bodies)}
        values = {x: motion.values[x] for x in sorted(joints)}
        found, pull = jax.vjp(length, poses, values)
        of_poses, of_values = pull(jnp.ones_like(found))
        wrenches = {name: Wrench.dual(poses[name], x) for name, x in of_poses.items()}
        load = Load(wrenches, of_values)
        return MovingLength(found, load.power(motion), load)


class Coordinate(AbstractLength):
    """The coordinate of a hinge [rad] or of a slide [m].

    Args:
        joint: its name.
    """

    joint: str = eqx.field(static=True)

    def length(self, poses, values):
        del poses
        return values[self.joint][0]

    def parts(self):
        return (("the joint", COORDINATE, self.joint),)

    def moving(self, motion):
        value, speed = motion.values[self.joint], motion.speeds[self.joint]
        return MovingLength(value[0], speed[0], Load({}, {self.joint: jnp.ones_like(speed)}))


def distance(one: Float[Array, " 3"], two: Float[Array, " 3"]) -> Float[Array, ""]:
    """Between two points [m]; where they meet it has the slope zero."""
    apart = two - one
    # sqrt(d^2 + e^2): to round-off the same but where points meet; there its square, the energy of
    # a spring, keeps its second derivatives.
    least = float(jnp.finfo(apart.dtype).eps) ** 1.5
    return jnp.sqrt(apart @ apart + jnp.asarray(least**2, apart.dtype))


class Distance(AbstractLength):
    """The distance of two points [m].

    Where they meet it has no direction: forces along it are zero there.

    Args:
        first: a point of one body.
        second: a point of another one.
    """

    first: Marker
    second: Marker

    def length(self, poses, values):
        del values
        return distance(self.first.point(poses), self.second.point(poses))

    def parts(self):
        return (("first", BODY, self.first.body), ("second", BODY, self.second.body))


def along(value: str | AbstractLength) -> AbstractLength:
    """A length; the name of a hinge or a slide is its coordinate."""
    if isinstance(value, AbstractLength):
        return value
    if isinstance(value, str):
        return Coordinate(value)
    raise TypeError(
        f"a force acts along a length or the name of a hinge or slide; got {value!r}. Give "
        "Distance, FixedTendon, SpatialTendon or another AbstractLength."
    )
