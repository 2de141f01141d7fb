"""Limits of joints and tendons: compliant stops, or events at which a run ends or goes on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp

from jaxdae.events.declaration import Event
from jaxdae.events.impact import Gap, impact
from jaxdae.multibody import rotation_vectors
from jaxdae.multibody.forces import BALL, Load
from jaxdae.multibody.lengths import AbstractLength, MovingLength
from jaxdae.multibody.stops import Stop
from jaxdae.multibody.system import Multibody
from jaxdae.reprs import Module


class BallAngle(AbstractLength):
    """The angle by which a ball is turned, about whatever axis, from 0 to half a turn [rad].

    At no rotation it has no direction: forces along it are zero there. At half a turn the shorter
    way back changes. Its rate is the angular velocity along the rotation vector.

    Args:
        joint: name of the ball.
    """

    joint: str = eqx.field(static=True)

    def length(self, poses, values):
        del poses
        return _size(rotation_vectors.of_quaternion(values[self.joint]))

    def parts(self):
        return (("the joint", BALL, self.joint),)

    def moving(self, motion):
        theta = rotation_vectors.of_quaternion(motion.values[self.joint])
        angle = _size(theta)
        load = Load({}, {self.joint: theta / angle})
        return MovingLength(angle, load.power(motion), load)


def _size(theta):
    """Length of a vector; the slope at zero is zero."""
    least = float(jnp.finfo(theta.dtype).eps) ** 1.5
    return jnp.sqrt(theta @ theta + jnp.asarray(least**2, theta.dtype))


class Limit(NamedTuple):
    """Ends of a length.

    Args:
        name: of the joint or tendon.
        along: the length.
        lower: end [m or rad], or `None`.
        upper: end, or `None`.
    """

    name: str
    along: AbstractLength
    lower: float | None
    upper: float | None


class LimitGap(Module):
    """How far a length is from an end, `gap(t, q)`.

    Args:
        system: the mechanism.
        along: the length.
        end: [m or rad].
        side: 1 for an end below, -1 for one above.
    """

    system: Multibody
    along: AbstractLength
    end: float
    side: float

    def __call__(self, t, q):
        del t
        length = self.along.length(self.system.poses(q), self.system.values(q))
        return self.side * (length - self.end)


def stop(limit: Limit, stiffness: float, dissipation_factor: float) -> Stop:
    """A limit as a smooth force."""
    name = f"stop of {limit.name}"
    return Stop(name, limit.along, stiffness, limit.lower, limit.upper, dissipation_factor)


def events(
    system: Multibody, limits: Sequence[Limit], restitution: Any = None
) -> tuple[Event, ...]:
    """An event where a length comes to one of its ends.

    Args:
        system: the mechanism.
        limits: of lengths of it.
        restitution: coefficient of the impact, from 0 to 1; `None` ends the run there.
    """
    found = []
    for limit in limits:
        for side, end, which in ((1.0, limit.lower, "lower"), (-1.0, limit.upper, "upper")):
            if end is None:
                continue
            gap, name = LimitGap(system, limit.along, end, side), f"{which} limit of {limit.name}"
            if restitution is None:
                found.append(Event(Gap(gap), name=name))
            else:
                found.append(impact(system, gap, restitution, name=name))
    return tuple(found)
