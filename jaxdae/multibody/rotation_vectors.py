"""Rotation vectors: axis times angle, smooth at no rotation, up to half a turn."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.multibody import rotations

# Where atan(x)/x is its series: eight terms are exact to 1e-17 there.
_SMALL = 1e-2
_TERMS = np.array([(-1) ** k / (2 * k + 1) for k in range(9)])


def of_quaternion(p: Float[Array, " 4"]) -> Float[Array, " 3"]:
    """Of the rotation of a quaternion of any length but zero, the shorter way [rad]."""
    part, sign = p[1:], jnp.where(p[0] < 0, -1.0, 1.0).astype(p.dtype)
    return 2 * sign * _angle_over_sine(part @ part, sign * p[0]) * part


def of_matrix(turn: Float[Array, "3 3"]) -> Float[Array, " 3"]:
    """Of a matrix of rotation [rad]."""
    part = rotations.vector(turn)
    return _angle_over_sine(part @ part, 0.5 * (jnp.trace(turn) - 1)) * part


def relative_quaternion(p: Float[Array, " 4"], q: Float[Array, " 4"]) -> Float[Array, " 4"]:
    """The product of the conjugate of `p` with `q`: from the axes of the one to the other's."""
    vector = jnp.tensordot(rotations.RATE.astype(p.dtype), jnp.outer(p, q), 2)
    return jnp.concatenate([(p @ q)[None], vector])


def _angle_over_sine(square: Float[Array, ""], cos: Float[Array, ""]) -> Float[Array, ""]:
    """`angle / s` with `s = sqrt(square)`, `angle = atan2(s, cos)`; smooth at `s = 0 < cos`."""
    small = (square < _SMALL * cos**2) & (cos > 0)
    near, far = jnp.where(small, cos, 1.0), jnp.sqrt(jnp.where(small, 1.0, square))
    ratio = jnp.where(small, square, 0.0) / near**2
    series = jnp.polyval(jnp.asarray(_TERMS[::-1].copy(), square.dtype), ratio) / near
    return jnp.where(small, series, jnp.arctan2(far, cos) / far)
