"""Compliant stops, and dry friction, along lengths."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody.forces import AbstractForce, Motion
from jaxdae.multibody.lengths import AbstractLength, along


class Stop(AbstractForce):
    r"""Limits of a length or of a joint, as springs that push back beyond them.

    With the penetration `p` beyond an end, `z = p / depth` and the contact `p+`,

        p+ = depth (z^3 - z^4 / 2) for 0 < z < 1,     p - depth / 2 beyond,
        F = -k p+ (1 + d p')

    which is zero before the end, smooth to second derivatives, and linear behind `depth`. The
    damping is that of [HuntCrossley1975]: without force at the end itself; impacts with the speed
    `s` and the coefficient of restitution `e` have `d` of about `3 (1 - e) / (2 s)`. Where bodies
    part faster than `1 / d` it would pull.

    Args:
        name: of the element.
        along: a length, or the name of a hinge or a slide.
        stiffness: `k` [N/m or N m/rad].
        lower: end, or `None`.
        upper: end, or `None`.
        dissipation_factor: `d` [s/m or s/rad].
        depth: over which the stiffness comes in [m or rad]; steps have to resolve it.

    Raises:
        ValueError: without an end, for ends in the wrong order, or a depth that is not positive.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    stiffness: float
    lower: float | None = None
    upper: float | None = None
    dissipation_factor: float = 0.0
    depth: float = 1e-3

    def __check_init__(self):
        if self.lower is None and self.upper is None:
            raise ValueError(f"Stop {self.name!r} has no end: give lower or upper.")
        if None not in (self.lower, self.upper) and fails(
            lambda a, b: a < b, self.lower, self.upper
        ):
            raise ValueError(
                f"Stop {self.name!r}: lower, {self.lower}, is not below upper, {self.upper}."
            )
        if fails(lambda x: x > 0, self.depth):
            raise ValueError(f"Stop {self.name!r}: depth is {self.depth}; it is positive.")

    def parts(self):
        return self.along.parts()

    def _penetrations(self, x):
        ends = ((self.lower, -1.0), (self.upper, 1.0))
        return [(side * (x - end), side) for end, side in ends if end is not None]

    def _contact(self, penetration):
        """`p+` and its integral."""
        depth = self.depth
        z = jnp.clip(penetration / depth, 0.0, 1.0)
        # Of p - depth / 2 over p, from z = 1 on; zero before.
        beyond = jnp.maximum(penetration - depth, 0.0)
        contact = depth * (z**3 - 0.5 * z**4) + beyond
        area = depth**2 * (z**4 / 4 - z**5 / 10) + beyond * (0.5 * depth + 0.5 * beyond)
        return contact, area

    def energy(self, t, configuration):
        x = self.along.length(configuration.poses, configuration.values)
        areas = [self._contact(p)[1] for p, _ in self._penetrations(x)]
        return self.stiffness * sum(areas[1:], areas[0])

    def dissipation(self, t, motion):
        moving = self.along.moving(motion)
        pressed = [self._contact(p)[0] for p, _ in self._penetrations(moving.length)]
        factor = self.stiffness * self.dissipation_factor * sum(pressed[1:], pressed[0])
        return 0.5 * factor * moving.rate**2

    def force(self, motion: Motion) -> Float[Array, ""]:
        """`F` of both ends, positive where it lengthens [N or N m].

        Args:
            motion: of the mechanism, `system.motion(q, v)`.
        """
        moving = self.along.moving(motion)
        pushes = [
            -side * self._contact(p)[0] * (1 + self.dissipation_factor * side * moving.rate)
            for p, side in self._penetrations(moving.length)
        ]
        return self.stiffness * sum(pushes[1:], pushes[0])


class DryFriction(AbstractForce):
    r"""Coulomb friction along a length or of a joint, smooth through rest: `-bound tanh(s / s0)`.

    Instead of sticking it creeps, below the speed `s0`. A small `s0` makes the equations stiff:
    `bound / (m s0)` is a rate that a step has to resolve. `jaxdae.stick_slip` sticks.

    Args:
        name: of the element.
        along: a length, or the name of a hinge or a slide.
        bound: the force while it slides [N or N m].
        speed: `s0` [m/s or rad/s], positive.

    Raises:
        ValueError: for a speed that is not positive.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    bound: float
    speed: float = 1e-2

    def __check_init__(self):
        if fails(lambda x: x > 0, self.speed):
            raise ValueError(
                f"DryFriction {self.name!r}: speed is {self.speed}; it is positive: below it "
                "friction is viscous."
            )

    def parts(self):
        return self.along.parts()

    def load(self, t, motion, w, u):
        moving = self.along.moving(motion)
        return moving.load.times(-self.bound * jnp.tanh(moving.rate / self.speed))
