"""Rotations in space: matrices, and quaternions with the scalar part first."""

import jax.numpy as jnp
from jaxtyping import Array, Float


def from_axis(axis: Float[Array, " 3"], angle: Float[Array, ""]) -> Float[Array, "3 3"]:
    """Matrix of the rotation about a unit vector by an angle [rad] (Rodrigues' formula)."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return (
        cos * jnp.eye(3, dtype=axis.dtype) + sin * cross(axis) + (1 - cos) * jnp.outer(axis, axis)
    )


def cross(a: Float[Array, " 3"]) -> Float[Array, "3 3"]:
    """The matrix `A` with `A b` the cross product of `a` and `b`."""
    zero = jnp.zeros_like(a[0])
    return jnp.stack(
        [
            jnp.stack([zero, -a[2], a[1]]),
            jnp.stack([a[2], zero, -a[0]]),
            jnp.stack([-a[1], a[0], zero]),
        ]
    )


def vector(a: Float[Array, "3 3"]) -> Float[Array, " 3"]:
    """The vector of the skew-symmetric part of a matrix: the inverse of `cross`."""
    return 0.5 * jnp.stack([a[2, 1] - a[1, 2], a[0, 2] - a[2, 0], a[1, 0] - a[0, 1]])


def from_quaternion(p: Float[Array, " 4"]) -> Float[Array, "3 3"]:
    """Matrix of the rotation of a quaternion of any length but zero."""
    scalar, part = p[0], p[1:]
    squared = p @ p
    outer = 2 * jnp.outer(part, part) + 2 * scalar * cross(part)
    return (outer + (scalar**2 - part @ part) * jnp.eye(3, dtype=p.dtype)) / squared


def turning(p: Float[Array, " 4"], rate: Float[Array, " 4"]) -> Float[Array, " 3"]:
    """Angular velocity in axes of the body [rad/s], of a quaternion and its rate."""
    scalar, part = p[0], p[1:]
    along = scalar * rate[1:] - rate[0] * part - jnp.cross(part, rate[1:])
    return 2 * along / (p @ p)
