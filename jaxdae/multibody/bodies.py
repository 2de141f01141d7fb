"""Bodies, what closes loops between them, and what drives their joints."""

import abc
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody import rotations
from jaxdae.multibody.joints import AbstractJoint, Free, Pose, space_vector, Twist
from jaxdae.reprs import Module
from jaxdae.systems.precision import as_floats

# Of an inertia's largest entry: digits that a drawing or a file in single precision gives.
_ROUNDED = 1e-6


def quaternion(values) -> Float[Array, " 4"]:
    """Four components, of length 1, the scalar part first."""
    (found,) = as_floats(values)
    if found.shape != (4,):
        raise ValueError(f"multibody: a quaternion has 4 components; got shape {found.shape}.")
    return rotations.normalized("a quaternion", found)


def _inertia(values) -> Float[Array, "3 3"]:
    """A matrix; three numbers are its diagonal."""
    (found,) = as_floats(values)
    if found.shape == (3,):
        return jnp.diag(found)
    if found.shape != (3, 3):
        raise ValueError(
            "Body: the inertia has shape (3, 3), or (3,) for principal moments in axes of the "
            f"body; got shape {found.shape}."
        )
    return found


def _impossible(inertia: np.ndarray) -> str | None:
    """Why no body has an inertia, with the number; `None` where one may.

    With principal moments `I1 <= I2 <= I3`: `I1 + I2 - I3 = 2 int x3^2 dm` is not negative.
    """
    scale = np.abs(inertia).max()
    if not np.isfinite(scale):
        return "the inertia is not finite"
    skew = np.abs(inertia - inertia.T).max()
    if skew > _ROUNDED * scale:
        return f"the inertia is not symmetric: entries differ by up to {skew:.4g} kg m^2"
    moments = np.linalg.eigvalsh((inertia + inertia.T) / 2)
    if moments[0] < -_ROUNDED * scale:
        return f"the inertia has the principal moment {moments[0]:.4g} kg m^2; none is negative"
    excess = moments[2] - moments[0] - moments[1]
    if excess > _ROUNDED * scale:
        listed = ", ".join(f"{x:.6g}" for x in moments)
        return (
            f"the inertia has the principal moments {listed} kg m^2: the largest exceeds the sum "
            f"of the others by {excess:.4g}, which no body's does"
        )
    return None


def _joints(values: AbstractJoint | Sequence[AbstractJoint]) -> tuple[AbstractJoint, ...]:
    return (values,) if isinstance(values, AbstractJoint) else tuple(values)


class Body(Module):
    """A rigid body, and how it moves relative to its parent.

    Args:
        name: of the body.
        joints: one or several in a row, the one next to the parent first; none fixes the body to
            its parent.
        parent: name of the body that carries it; `None` is the ground.
        position: of the body's origin in the parent's axes, joints at rest [m].
        orientation: of its axes in those of the parent, a quaternion with the scalar part first.
        mass: [kg].
        centre: of mass, in the body [m].
        inertia: about the centre of mass in axes of the body [kg m^2], shape `(3, 3)` or `(3,)`.

    Raises:
        ValueError: for a mass or inertia that no distribution of mass has, where it is known: one
            that is negative, no finite number, not symmetric, or whose largest principal moment
            exceeds the sum of the others.
    """

    name: str = eqx.field(static=True)
    joints: tuple[AbstractJoint, ...] = eqx.field(converter=_joints, default=())
    parent: str | None = eqx.field(static=True, default=None)
    position: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))
    mass: float = 0.0
    centre: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    inertia: Float[Array, "3 3"] = eqx.field(converter=_inertia, default=(0.0, 0.0, 0.0))

    def __check_init__(self):
        if fails(lambda x: np.isfinite(x) and np.all(x >= 0), self.mass):
            raise ValueError(f"Body {self.name!r}: the mass is {self.mass} kg; it is not negative.")
        if fails(lambda x: not _impossible(np.asarray(x, float)), self.inertia):
            problem = _impossible(np.asarray(self.inertia, float))
            raise ValueError(f"Body {self.name!r}: {problem}.")

    def at_rest(self) -> Pose:
        """Its pose relative to the parent, joints at rest."""
        return Pose(self.position, rotations.from_quaternion(self.orientation))

    def free(self) -> bool:
        """Whether nothing holds it."""
        return any(isinstance(x, Free) for x in self.joints)


class AbstractLoop(Module):
    """What closes a loop: constraints between bodies, or between joints.

    A loop of one's own has a field `name`, `residuals` and `constraints`, and where velocities are
    constrained beside positions `velocity_residuals` and `velocity_constraints`. Bodies that its
    fields `first` and `second` name, and joints in `joint` and `by`, are checked to exist.
    """

    name: eqx.AbstractVar[str]

    @abc.abstractmethod
    def residuals(
        self, t, poses: dict[str | None, Pose], values: dict[str, Float[Array, " _"]]
    ) -> Float[Array, " rows"]:
        """Residuals of its position constraints.

        Args:
            t: time [s].
            poses: of bodies by name; the ground is `None`.
            values: coordinates of joints by name.
        """

    @abc.abstractmethod
    def constraints(self, units: dict[str, str]) -> tuple[tuple[str, str], ...]:
        """Name and unit of each residual, from units of joints."""

    def alignment(self, poses: dict[str | None, Pose]) -> Float[Array, ""] | None:
        """Cosine of an angle that is to be none, of which a residual has no value at half a turn.

        `None` where there is no such angle.

        Args:
            poses: of bodies by name; the ground is `None`.
        """
        del poses
        return None

    def velocity_residuals(
        self, t, poses: dict[str | None, Pose], twists: dict[str | None, Twist]
    ) -> Float[Array, " rows"]:
        """Residuals of its velocity constraints, those that no position constraint has.

        Args:
            t: time [s].
            poses: of bodies by name; the ground is `None`.
            twists: how they move, each in its own axes.
        """
        del t, twists
        return jnp.zeros(0, poses[None].place.dtype)

    def velocity_constraints(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each residual of a velocity constraint."""
        return ()


def axes_of_space(values: str) -> str:
    """Axes of space, each once."""
    if not values or set(values) - {*"xyz"} or len({*values}) < len(values):
        raise ValueError(f"multibody: axes are some of 'xyz', each once; got {values!r}.")
    return values


class Connection(AbstractLoop):
    """A point of one body is a point of another one.

    In a mechanism that moves in a plane one of three equations says nothing; leave its axis out,
    and constraints are independent.

    Args:
        name: of the constraint.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: the point in the first body [m].
        other: the point in the second body [m].
        axes: of space, along which the points have the same place.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True, default=None)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    other: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    axes: str = eqx.field(static=True, default="xyz", converter=axes_of_space)

    def residuals(self, t, poses, values):
        del t, values
        apart = poses[self.first].point(self.anchor) - poses[self.second].point(self.other)
        return apart[np.array(["xyz".index(x) for x in self.axes])]

    def constraints(self, units):
        del units
        return tuple((f"{self.name} {x}", "m") for x in self.axes)


class Weld(AbstractLoop):
    """One body is fixed to another one.

    Its residuals of rotation are `2 tan(angle / 2)` times the axis of the rotation that is left, in
    axes of the second body: the angle to first order, zero for none alone, and without a value at
    half a turn.

    Args:
        name: of the constraint.
        first: name of a body; `None` is the ground.
        second: name of the other one, or `None`.
        anchor: a point in the first body [m].
        other: the same point in the second body [m].
        orientation: of the second body's axes in those of the first, a quaternion.
    """

    name: str = eqx.field(static=True)
    first: str | None = eqx.field(static=True)
    second: str | None = eqx.field(static=True, default=None)
    anchor: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    other: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))

    def residuals(self, t, poses, values):
        del t, values
        apart = poses[self.first].point(self.anchor) - poses[self.second].point(self.other)
        return jnp.concatenate([apart, rotations.half_tangent_vector(self._left(poses))])

    def alignment(self, poses):
        return rotations.cosine(self._left(poses))

    def _left(self, poses):
        """The rotation that is to be none, in axes of the second body."""
        wanted = poses[self.first].turn @ rotations.from_quaternion(self.orientation)
        return wanted.T @ poses[self.second].turn

    def constraints(self, units):
        del units
        places = tuple((f"{self.name} {x}", "m") for x in "xyz")
        return places + tuple((f"{self.name} about {x}", "rad") for x in "xyz")


def _polynomial(values) -> Float[Array, " c"]:
    (found,) = as_floats(values)
    if found.ndim != 1 or not found.size:
        raise ValueError(
            "Coupling: the coefficients are one number or several in a row; got shape "
            f"{found.shape}."
        )
    return found


class Coupling(AbstractLoop):
    """One joint follows another one: `y - y0 = c0 + c1 (x - x0) + c2 (x - x0)^2 + ...`.

    Args:
        name: of the constraint.
        joint: the joint of `y`, a hinge or a slide.
        by: the joint of `x`, a hinge or a slide; without one, `y - y0 = c0`.
        coefficients: `c0, c1, ...` as many as there are.
        references: `y0` and `x0`.
    """

    name: str = eqx.field(static=True)
    joint: str = eqx.field(static=True)
    by: str | None = eqx.field(static=True, default=None)
    coefficients: Float[Array, " c"] = eqx.field(converter=_polynomial, default=(0.0, 1.0))
    references: tuple[float, float] = (0.0, 0.0)

    def residuals(self, t, poses, values):
        del t, poses
        follows = values[self.joint][0] - self.references[0]
        if self.by is None:
            return jnp.stack([follows - self.coefficients[0]])
        leads = values[self.by][0] - self.references[1]
        return jnp.stack([follows - jnp.polyval(self.coefficients[::-1], leads)])

    def constraints(self, units):
        return ((self.name, units[self.joint]),)
