"""Forces and torques at points, transmissions that have them, and weights held up."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody import rotation_vectors, rotations
from jaxdae.multibody.forces import AbstractForce, BALL, BODY, Load, Marker
from jaxdae.multibody.joints import space_vector, Wrench
from jaxdae.multibody.lengths import AbstractLength, MovingLength
from jaxdae.systems.precision import as_floats


def _vector(value):
    return value if callable(value) else space_vector(value)


class PointForce(AbstractForce):
    """A force and a torque at a marker of a body, constant or by functions.

    Functions are `function(t, pose, twist)` of the marker: its `place` [m] and `turn` in space, its
    `velocity` [m/s] and `spin` [rad/s] in its own axes; they return shape `(3,)`. Constant forces
    have no potential energy here; their power is in the balance of a run.

    Args:
        name: of the element.
        marker: where it acts.
        force: [N], shape `(3,)`, or a function.
        torque: [N m], shape `(3,)`, or a function.
        follows: whether both are given in the marker's axes, and turn with it; else in space.
    """

    name: str = eqx.field(static=True)
    marker: Marker
    force: Float[Array, " 3"] | Callable[..., Any] = eqx.field(
        converter=_vector, default=(0.0, 0.0, 0.0)
    )
    torque: Float[Array, " 3"] | Callable[..., Any] = eqx.field(
        converter=_vector, default=(0.0, 0.0, 0.0)
    )
    follows: bool = eqx.field(static=True, default=False)

    def parts(self):
        return (("the marker", BODY, self.marker.body),)

    def load(self, t, motion, w, u):
        pose = self.marker.pose(motion.poses)
        twist = self.marker.twist(motion.twists)

        def of(value):
            given = jnp.asarray(value(t, pose, twist) if callable(value) else value)
            return given if self.follows else pose.turn.T @ given

        here = Wrench(of(self.force), of(self.torque))
        return Load({self.marker.body: here.at(self.marker.relative())})


class GravityCompensation(AbstractForce):
    """A force that holds up a part of a body's weight, at its centre of mass: MuJoCo's `gravcomp`.

    Args:
        name: of the element.
        body: its name.
        fraction: of the weight; 1 holds up all of it.
    """

    name: str = eqx.field(static=True)
    body: str = eqx.field(static=True)
    fraction: float = 1.0

    def __check_init__(self):
        if self.body is None:
            raise ValueError(
                f"GravityCompensation {self.name!r}: the ground has no weight; name a body."
            )

    def parts(self):
        return (("the body", BODY, self.body),)

    def energy(self, t, configuration):
        body = configuration.bodies[self.body]
        centre = configuration.poses[self.body].point(body.centre)
        return self.fraction * body.mass * configuration.gravity @ centre


def _six(values) -> Float[Array, " 6"]:
    (found,) = as_floats(values)
    if found.shape != (6,):
        raise ValueError(
            "Site: gear has 6 components, of force and torque in the marker's axes; got shape "
            f"{found.shape}."
        )
    return found


class Site(AbstractLength):
    """Force and torque at a marker, as a transmission of a `Motor`: a thruster, a propeller.

    It has no length, but a rate: `gear` times velocity and angular velocity of the marker, in its
    axes. This is MuJoCo's transmission at a site without a reference site.

    Args:
        marker: where it acts.
        gear: force and torque for each unit, in the marker's axes, shape `(6,)`.
    """

    marker: Marker
    gear: Float[Array, " 6"] = eqx.field(converter=_six)

    def length(self, poses, values):
        return jnp.zeros((), poses[None].place.dtype)

    def parts(self):
        return (("the marker", BODY, self.marker.body),)

    def moving(self, motion):
        here = Wrench(self.gear[:3], self.gear[3:]).at(self.marker.relative())
        load = Load({self.marker.body: here})
        return MovingLength(jnp.zeros((), motion.gravity.dtype), load.power(motion), load)


class BallTransmission(AbstractLength):
    """A torque on a ball, as a transmission of a `Motor`: MuJoCo's `joint` and `jointinparent`.

    Its length is `gear` times the rotation vector of the ball, as MuJoCo has it, its rate `gear`
    times the angular velocity: at large angles the one is not the derivative of the other.

    Args:
        joint: name of the ball.
        gear: torque for each unit [-], shape `(3,)`.
        in_parent: whether `gear` is given in axes of the joint at rest; else of the body.
    """

    joint: str = eqx.field(static=True)
    gear: Float[Array, " 3"] = eqx.field(converter=space_vector)
    in_parent: bool = eqx.field(static=True, default=False)

    def length(self, poses, values):
        del poses
        return self.gear @ rotation_vectors.of_quaternion(values[self.joint])

    def parts(self):
        return (("the joint", BALL, self.joint),)

    def moving(self, motion):
        values = motion.values[self.joint]
        turn = rotations.from_quaternion(values)
        load = Load({}, {self.joint: turn.T @ self.gear if self.in_parent else self.gear})
        return MovingLength(self.length(motion.poses, motion.values), load.power(motion), load)
