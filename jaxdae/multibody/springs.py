"""Springs, dampers and other characteristics along lengths, and of all kinds of joints."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody import rotation_vectors
from jaxdae.multibody.bodies import quaternion
from jaxdae.multibody.forces import AbstractForce, BODY, JOINT, Load, Marker, Motion
from jaxdae.multibody.lengths import AbstractLength, along
from jaxdae.systems.precision import as_floats


def coefficients(values) -> Float[Array, " c"]:
    """Of a polynomial; one number is a constant."""
    (found,) = as_floats(values)
    if found.ndim > 1 or not found.size:
        raise ValueError(
            "a stiffness or damping is one number, or the coefficients of a polynomial in a row; "
            f"got shape {found.shape}."
        )
    return jnp.atleast_1d(found)


def _relaxed(values) -> Float[Array, "..."]:
    (found,) = as_floats(values)
    if found.shape not in ((), (2,)):
        raise ValueError(
            f"SpringDamper: the relaxed length is one number, or two ends of a range; got shape "
            f"{found.shape}."
        )
    if found.shape == (2,) and fails(lambda x: x[0] <= x[1], found):
        low, high = np.asarray(found).tolist()
        raise ValueError(f"SpringDamper: the relaxed range goes upwards; got {low} to {high}.")
    return found


def spring_energy(stiffness: Float[Array, " c"], x: Float[Array, ""]) -> Float[Array, ""]:
    """`sum k_i x^(i+2) / (i+2)`, of the force `-x (k_0 + k_1 x + k_2 x^2 + ...)` [J]."""
    parts = stiffness / np.arange(2, stiffness.size + 2).astype(stiffness.dtype)
    return x**2 * jnp.polyval(parts[::-1], x)


def rayleigh(damping: Float[Array, " c"], speed: Float[Array, "..."]) -> Float[Array, ""]:
    """`sum d_i |s|^(i+2) / (i+2)`, of the force `-s (d_0 + d_1 |s| + d_2 s^2 + ...)` [W]."""
    parts = damping / np.arange(2, damping.size + 2).astype(damping.dtype)
    # Of one coefficient no |s|, whose slope is a jump.
    size = jnp.abs(speed) if damping.size > 1 else jnp.zeros_like(speed)
    return jnp.sum(speed**2 * jnp.polyval(parts[::-1], size))


class SpringDamper(AbstractForce):
    r"""A spring and a damper along a length.

    With the length `x`, its relaxed value `x0` and `e = x - x0`,

        F = -e (k0 + k1 e + k2 e^2 + ...) - x' (d0 + d1 |x'| + d2 x'^2 + ...)

    which are also MuJoCo's polynomials of joints and tendons. Over a relaxed range the spring has
    no force, as a rope that hangs (from 0 to its length) or play in a coupling; `e` counts from the
    nearer end.

    Example:
        A strut between the ground and a body::

            SpringDamper("strut", Distance(Marker(None), Marker("arm", (0.3, 0.0, 0.0))),
                         stiffness=200.0, relaxed=0.4, damping=5.0)

    Args:
        name: of the element.
        along: a length, or the name of a hinge or a slide.
        stiffness: `k0` [N/m or N m/rad], or `k0, k1, ...`.
        relaxed: length without force [m or rad], or the two ends of a range.
        damping: `d0` [N s/m or N m s/rad], or `d0, d1, ...`.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    stiffness: Float[Array, " c"] = eqx.field(converter=coefficients, default=0.0)
    relaxed: Float[Array, "..."] = eqx.field(converter=_relaxed, default=0.0)
    damping: Float[Array, " d"] = eqx.field(converter=coefficients, default=0.0)

    def parts(self):
        return self.along.parts()

    def energy(self, t, configuration):
        return self._energy(self.along.length(configuration.poses, configuration.values))

    def _energy(self, x):
        ends = self.relaxed
        if ends.shape == ():
            return spring_energy(self.stiffness, x - ends)
        # With both ends equal it is an ordinary spring, with its slope there.
        low, high = x - ends[0], x - ends[1]
        excess = jnp.where(high >= 0, high, jnp.where(low <= 0, low, 0.0))
        return spring_energy(self.stiffness, excess)

    def dissipation(self, t, motion):
        return rayleigh(self.damping, self.along.moving(motion).rate)

    def force(self, motion: Motion) -> Float[Array, ""]:
        """`F` of spring and damper together, positive where it lengthens [N or N m].

        Args:
            motion: of the mechanism, `system.motion(q, v)`.
        """
        moving = self.along.moving(motion)
        damping = jax.grad(lambda s: rayleigh(self.damping, s))(moving.rate)
        return -jax.grad(self._energy)(moving.length) - damping


class Characteristic(AbstractForce):
    """A force along a length by functions of the user.

    Args:
        name: of the element.
        along: a length, or the name of a hinge or a slide.
        force: `force(t, x, rate)` from the length [m or rad] and its rate, positive where it
            lengthens [N or N m]; `None` without one.
        potential: `potential(x)`, an energy [J]; `None` without one. A spring that has an energy
            keeps it in the balance of a run.
    """

    name: str = eqx.field(static=True)
    along: AbstractLength = eqx.field(converter=along)
    force: Callable[..., Any] | None = None
    potential: Callable[..., Any] | None = None

    def __check_init__(self):
        if self.force is None and self.potential is None:
            raise ValueError(
                f"Characteristic {self.name!r} has no function: give force(t, x, rate) or "
                "potential(x)."
            )

    def parts(self):
        return self.along.parts()

    def energy(self, t, configuration):
        if self.potential is None:
            return jnp.zeros((), configuration.gravity.dtype)
        return self.potential(self.along.length(configuration.poses, configuration.values))

    def load(self, t, motion, w, u):
        if self.force is None:
            return Load()
        moving = self.along.moving(motion)
        return moving.load.times(self.force(t, moving.length, moving.rate))


def _orientation(values):
    return None if values is None else quaternion(values)


class JointSpring(AbstractForce):
    r"""A spring of any joint: of a hinge or slide, of a ball, of a free body.

    The torque of a ball points along the rotation vector `theta` from the relaxed orientation,
    `-theta (k0 + k1 |theta| + k2 |theta|^2 + ...)` in axes of the body; its energy is that of the
    angle. Of a free body there is the same force along the displacement in addition. At half a turn
    from the relaxed orientation the shorter way back changes, and the torque its sign. These are
    MuJoCo's springs of joints, `stiffness` and `springref`.

    Args:
        name: of the element.
        joint: its name.
        stiffness: `k0` [N m/rad, N/m or both], or `k0, k1, ...`.
        relaxed: coordinates without force: one of a hinge or slide, a quaternion of a ball, place
            and quaternion of a free body; by default zero and no rotation.
    """

    name: str = eqx.field(static=True)
    joint: str = eqx.field(static=True)
    stiffness: Float[Array, " c"] = eqx.field(converter=coefficients)
    relaxed: Float[Array, " size"] | None = eqx.field(
        converter=lambda x: None if x is None else jnp.atleast_1d(as_floats(x)[0]), default=None
    )

    def parts(self):
        return (("the joint", JOINT, self.joint),)

    def energy(self, t, configuration):
        values = configuration.values[self.joint]
        relaxed = self._relaxed(values)
        if values.size == 1:
            return spring_energy(self.stiffness, (values - relaxed)[0])
        turned = rotation_vectors.relative_quaternion(relaxed[-4:], values[-4:])
        energy = _even_energy(self.stiffness, rotation_vectors.of_quaternion(turned))
        if values.size == 7:
            energy += _even_energy(self.stiffness, values[:3] - relaxed[:3])
        return energy

    def _relaxed(self, values):
        if self.relaxed is None:
            place, turn = (0.0,) * (values.size % 4), (1.0, 0.0, 0.0, 0.0)
            return jnp.asarray([*place, *(turn if values.size >= 4 else ())], values.dtype)
        if self.relaxed.shape != values.shape:
            raise ValueError(
                f"JointSpring {self.name!r}: relaxed has shape {self.relaxed.shape}; the joint "
                f"{self.joint!r} has {values.size} coordinates."
            )
        return self.relaxed


def _even_energy(stiffness, vector):
    """Of a spring by the length of a vector; smooth where it is zero, if only `k0` is there."""
    if stiffness.size == 1:
        return 0.5 * stiffness[0] * vector @ vector
    least = float(jnp.finfo(vector.dtype).eps) ** 1.5
    return spring_energy(stiffness, jnp.sqrt(vector @ vector + least**2))


class JointDamper(AbstractForce):
    """A damper of any joint, of each of its velocities `s`: `-s (d0 + d1 |s| + d2 s^2 + ...)`.

    These are MuJoCo's dampers of joints.

    Args:
        name: of the element.
        joint: its name.
        damping: `d0` [N s/m or N m s/rad], or `d0, d1, ...`.
    """

    name: str = eqx.field(static=True)
    joint: str = eqx.field(static=True)
    damping: Float[Array, " c"] = eqx.field(converter=coefficients)

    def parts(self):
        return (("the joint", JOINT, self.joint),)

    def dissipation(self, t, motion):
        return rayleigh(self.damping, motion.speeds[self.joint])


class TorsionSpring(AbstractForce):
    r"""A torsion spring and damper between two bodies, about whatever axis they turn.

    With the rotation vector `theta` from the axes of the first marker to those of the second and
    the angular velocity `omega` of the second relative to the first,

        torque = -theta (k0 + k1 |theta| + ...) - d omega

    on the second body, and the opposite on the first. The shorter way back changes at half a turn,
    and the torque its sign: it is for less. About a hinge, `SpringDamper` counts turns.

    Args:
        name: of the element.
        first: marker of one body.
        second: marker of the other one.
        stiffness: `k0` [N m/rad], or `k0, k1, ...`.
        damping: `d` [N m s/rad].
    """

    name: str = eqx.field(static=True)
    first: Marker
    second: Marker
    stiffness: Float[Array, " c"] = eqx.field(converter=coefficients, default=0.0)
    damping: float = 0.0

    def parts(self):
        return (("first", BODY, self.first.body), ("second", BODY, self.second.body))

    def energy(self, t, configuration):
        one, two = (x.pose(configuration.poses) for x in (self.first, self.second))
        return _even_energy(self.stiffness, rotation_vectors.of_matrix(one.turn.T @ two.turn))

    def dissipation(self, t, motion):
        one, two = (x.pose(motion.poses) for x in (self.first, self.second))
        spins = (x.twist(motion.twists).spin for x in (self.first, self.second))
        first, second = spins
        omega = one.turn.T @ (two.turn @ second) - first
        return 0.5 * self.damping * omega @ omega
