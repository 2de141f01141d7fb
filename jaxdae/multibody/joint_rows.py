"""Joints of a tree that are several hinges and slides in a row: for the `joints` of a `Body`."""

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxdae.checks import fails
from jaxdae.multibody import rotations
from jaxdae.multibody.joints import Hinge, Slide, unit_vector

_ORIGIN = (0.0, 0.0, 0.0)
_EX, _EY, _EZ = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def cylindrical(
    name: str, axis: ArrayLike = _EZ, anchor: ArrayLike = _ORIGIN
) -> tuple[Slide, Hinge]:
    """A shaft in its bush: a displacement along an axis [m] and an angle about it [rad].

    Args:
        name: of the coordinates, `"… along"` and `"… about"`.
        axis: a vector in axes of the body, shape `(3,)`; its length does not matter.
        anchor: a point of the axis in the body [m], shape `(3,)`.

    Returns:
        The joints in a row.
    """
    return Slide(f"{name} along", axis), Hinge(f"{name} about", axis, anchor=anchor)


def universal(
    name: str, axis: ArrayLike = _EX, other_axis: ArrayLike = _EY, anchor: ArrayLike = _ORIGIN
) -> tuple[Hinge, Hinge]:
    """A universal joint (Cardan, Hooke): two angles about pins that cross [rad].

    The first pin is held by the parent, the second one by the body; in every position they are
    perpendicular.

    Args:
        name: of the coordinates, `"… 1"` and `"… 2"`.
        axis: of the pin in the parent, in axes of the body as it was declared, shape `(3,)`.
        other_axis: of the pin in the body, shape `(3,)`, perpendicular to the other one.
        anchor: centre of the cross in the body [m], shape `(3,)`.

    Returns:
        The joints in a row.

    Raises:
        ValueError: for pins that are not perpendicular.
    """
    _check_right_angle("universal", name, axis, other_axis)
    first, second = (
        Hinge(f"{name} {i}", x, anchor=anchor) for i, x in ((1, axis), (2, other_axis))
    )
    return first, second


def planar(
    name: str, normal: ArrayLike = _EZ, along: ArrayLike | None = None
) -> tuple[Slide, Slide, Hinge]:
    """A plane on a plane: two displacements [m] and an angle about the normal [rad].

    A mechanism that moves in a plane has such joints in place of free ones: three coordinates for
    each body.

    Args:
        name: of the coordinates, `"… 1"`, `"… 2"` and `"… about"`.
        normal: of the plane, in axes of the body, shape `(3,)`; its length does not matter.
        along: direction of the first displacement, shape `(3,)`; the second one is along
            `normal x along`. `None` takes x for a normal along z, x for y and -z for x.

    Returns:
        The joints in a row.

    Raises:
        ValueError: for a direction that is not perpendicular to the normal.
    """
    unit = unit_vector(normal)
    if along is None:
        along, second = rotations.perpendicular(unit)
    else:
        _check_right_angle("planar", name, normal, along)
        second = rotations.cross(unit, unit_vector(along))
    return (
        Slide(f"{name} 1", along),
        Slide(f"{name} 2", second),
        Hinge(f"{name} about", unit),
    )


def _check_right_angle(kind: str, name: str, one, two):
    """To round-off of single precision."""
    cosine = jnp.clip(unit_vector(one) @ unit_vector(two), -1.0, 1.0)
    if fails(lambda x: abs(x) < 1e-6, cosine):
        raise ValueError(
            f"multibody: the directions of {kind}({name!r}) are {float(np.arccos(cosine)):.4g} "
            f"rad apart; they are perpendicular, {np.pi / 2:.4g} rad."
        )
