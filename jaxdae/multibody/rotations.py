"""Rotations in space: matrices, and quaternions with the scalar part first.

Products of vectors are contractions with constants: a handful of operations to trace and compile,
and zeros that kernels leave out.
"""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, fails

# Of a, b: (a x b)_i = CROSS_ijk a_j b_k.
CROSS = np.zeros((3, 3, 3))
for _i, _j, _k in itertools.permutations(range(3)):
    CROSS[_i, _j, _k] = (_i - _j) * (_j - _k) * (_k - _i) / 2
# Of a quaternion p of length 1: R_ij = TURN_ijkl p_k p_l, and omega_i = 2 RATE_ijk p_j p'_k.
TURN = np.zeros((3, 3, 4, 4))
TURN[..., 0, 0] = np.eye(3)
TURN[..., 0, 1:] = 2 * CROSS.transpose(0, 2, 1)
TURN[..., 1:, 1:] = 2 * np.eye(9).reshape(3, 3, 3, 3)
for _i in range(3):
    TURN[..., 1 + _i, 1 + _i] -= np.eye(3)
RATE = np.zeros((3, 4, 4))
RATE[:, 0, 1:] = np.eye(3)
RATE[:, 1:, 0] = -np.eye(3)
RATE[:, 1:, 1:] = -CROSS


def normalized(what: str, values: Float[Array, " k"]) -> Float[Array, " k"]:
    """The same direction with length 1; refused where it has none."""
    # Known numbers by NumPy, which has nothing to compile.
    xp: Any = np if are_known(values) else jnp
    length = xp.linalg.norm(xp.asarray(values))
    if fails(lambda x: 0 < x < np.inf, length):
        raise ValueError(
            f"multibody: {what} has a direction; got {np.asarray(values).tolist()}: give finite "
            "numbers, not all of them zero."
        )
    return jnp.asarray(xp.asarray(values) / length)


def none(dtype) -> Float[Array, "3 3"]:
    """Matrix of no rotation."""
    return jnp.asarray(np.eye(3), dtype)


def from_axis(axis: Float[Array, " 3"], angle: Float[Array, ""]) -> Float[Array, "3 3"]:
    """Matrix of the rotation about a unit vector by an angle [rad] (Rodrigues' formula)."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    along = (1 - cos) * jnp.outer(axis, axis)
    return cos * none(axis.dtype) + sin * cross_matrix(axis) + along


def cross_matrix(a: Float[Array, " 3"]) -> Float[Array, "3 3"]:
    """The matrix `A` with `A b` the cross product of `a` and `b`."""
    return jnp.tensordot(CROSS.astype(a.dtype), a, ((1,), (0,)))


def cross(a: Float[Array, " 3"], b: Float[Array, " 3"]) -> Float[Array, " 3"]:
    """Cross product."""
    return cross_matrix(a) @ b


def vector(a: Float[Array, "3 3"]) -> Float[Array, " 3"]:
    """The vector of the skew-symmetric part of a matrix: the inverse of `cross_matrix`."""
    return -0.5 * jnp.tensordot(CROSS.astype(a.dtype), a, 2)


def half_tangent(sine, cosine):
    """Of an angle `2 tan(angle / 2)`, zero for none alone; of the same shape as the sine."""
    return 2.0 * sine / (1.0 + cosine)


def half_tangent_vector(turn: Float[Array, "3 3"]) -> Float[Array, " 3"]:
    """The same of a matrix of rotation, along its axis."""
    return half_tangent(vector(turn), cosine(turn))


def cosine(turn: Float[Array, "3 3"]) -> Float[Array, ""]:
    """Of the angle of a matrix of rotation."""
    return 0.5 * (jnp.trace(turn) - 1.0)


def from_quaternion(p: Float[Array, " 4"]) -> Float[Array, "3 3"]:
    """Matrix of the rotation of a quaternion of any length but zero."""
    return jnp.tensordot(TURN.astype(p.dtype), p, 1) @ p / (p @ p)


def quaternion_rate(p: Float[Array, " 4"], omega: Float[Array, " 3"]) -> Float[Array, " 4"]:
    """Rate of a quaternion at an angular velocity in axes of the body: `p o (0, omega) / 2`."""
    along = jnp.tensordot(RATE.astype(p.dtype), p, ((1,), (0,)))
    return 0.5 * omega @ along


def perpendicular(axis: Float[Array, " 3"]) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
    """Two unit vectors `b`, `c` with which a unit vector `a` makes a right-handed frame `b, c, a`.

    `b = ex - (a_x / (1 + a_z)) (a + ez)` is the image of `ex` under the rotation of `ez` to `a`,
    and `c` that of `ey`; for `a_z < -1/2` the same of `-a`, with `c` reversed. For an axis of
    coordinates they are axes of coordinates. No choice is smooth everywhere; this one is, but
    where `a_z = -1/2`.
    """
    x, y, z = axis
    side = jnp.where(z < -0.5, -1.0, 1.0).astype(axis.dtype)
    fraction = 1.0 / (1.0 + side * z)
    b = jnp.stack([1.0 - fraction * x * x, -fraction * x * y, -side * x])
    c = jnp.stack([-fraction * x * y, 1.0 - fraction * y * y, -side * y])
    return b, side * c
