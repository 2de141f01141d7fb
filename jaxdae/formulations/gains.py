"""Gains that are scalars, diagonals or symmetric positive definite matrices."""

from types import FunctionType

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, fails

_NO_GAIN = (
    "is no gain; give a number, a vector or a matrix (gains that vary need a stabilization or a "
    "controller of your own, which is any function)"
)
# Float32 input, products of factors: symmetric to round-off is symmetric.
_SYMMETRIC = 1e-5
# Also a parametrization of one, such as `jaxdae.tuning.Positive`, while it is being tuned.
Gain = float | Float[Array, ""] | Float[Array, " c"] | Float[Array, "c c"] | eqx.Module | list


def apply_gain(gain: Gain, y: Float[Array, " c"], name: str = "a gain") -> Float[Array, " c"]:
    """`K y` for a scalar, a diagonal given as a vector, or a matrix."""
    if isinstance(gain, eqx.Module):
        raise TypeError(
            f"{name} is a {type(gain).__name__}, not a number; jaxdae.tune puts the values of "
            "parametrizations in their places, and so does jaxdae.tuning.resolve(…) of the "
            "controller."
        )
    gain = jnp.asarray(gain)  # pyright: ignore[reportArgumentType]
    return gain @ y if gain.ndim == 2 else gain * y


def apply_symmetric(gain: Gain, y: Float[Array, " c"]) -> Float[Array, " c"]:
    """`K y` with the symmetric part of a matrix, which certificates are about."""
    if is_number(gain) and jnp.ndim(gain) == 2:  # pyright: ignore[reportArgumentType]
        gain = (jnp.asarray(gain) + jnp.asarray(gain).T) / 2
    return apply_gain(gain, y)


def metric_factor(weight: Gain | None, size: int, dtype) -> Float[Array, "c c"] | None:
    """Lower factor of a positive gain as a metric; `None` for none, the identity."""
    if weight is None:
        return None
    matrix = jnp.asarray(weight, dtype)  # pyright: ignore[reportArgumentType]
    if matrix.ndim == 2:
        return jnp.linalg.cholesky(matrix)
    return jnp.diag(jnp.broadcast_to(jnp.sqrt(matrix), (size,)))


def as_gain(gain):
    """A gain as it is kept: lists as arrays, integers as floats, anything else untouched."""
    if isinstance(gain, list | tuple):
        try:
            return jnp.asarray(gain, dtype=float)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{gain!r} {_NO_GAIN}.") from error
    return float(gain) if type(gain) is int else gain


def check_kind(name: str, gain) -> None:
    """A gain is a number, an array, a parametrization, or nothing yet."""
    if isinstance(gain, bool | str | dict | set | FunctionType):
        raise TypeError(f"{name} is {gain!r}, which {_NO_GAIN}.")


def check_positive(name: str, gain) -> None:
    """Require a positive scalar, positive diagonal or symmetric positive definite matrix.

    Values that are being traced, and objects that are not arrays (parametrizations), pass.
    """
    check_kind(name, gain)
    if not (is_number(gain) or isinstance(gain, complex)) or not are_known(gain):
        return
    if np.iscomplexobj(gain):
        raise ValueError(f"{name} is complex: {gain}; gains are real.")
    value = np.asarray(gain, float)
    check_finite_gain(name, value)
    matrix = value.ndim >= 2
    if matrix and value.ndim > 2:
        raise ValueError(f"{name} has shape {value.shape}; a gain matrix must be square.")
    value = symmetric(name, value) if matrix else value
    if not (definite(value) if matrix else value.min(initial=np.inf) > 0):
        smallest = np.linalg.eigvalsh(value).min() if matrix else value.min()
        kind = "an eigenvalue" if matrix else "a value"
        raise ValueError(
            f"{name} must be positive definite, but has {kind} {smallest:.6g}; give positive "
            "numbers or a symmetric positive definite matrix."
        )


def check_finite_gain(name: str, gain) -> None:
    """Require finite numbers; values that are being traced, and parametrizations, pass."""
    check_kind(name, gain)
    if is_number(gain) and fails(lambda x: np.isfinite(x).all(), gain):
        raise ValueError(f"{name} is not finite: {np.asarray(gain)}.")


def check_size(name: str, gain, count: int, of: str) -> None:
    """Require a gain that fits `count` constraints."""
    if not is_number(gain):
        raise ValueError(
            f"{name} is a {type(gain).__name__}, not an array; give a number, or what a "
            "parametrization stands for (jaxdae.tuning.resolve). Did the arguments come in another "
            "order?"
        )
    shape = jnp.shape(gain)
    if shape not in {(), (count,), (count, count)}:
        raise ValueError(
            f"{name} has shape {shape}, which does not fit {count} {of}; give a scalar, "
            f"a vector of {count}, or a {count} x {count} matrix."
        )


def is_number(value) -> bool:
    """Whether `value` is a number or an array (traced or not)."""
    return isinstance(value, int | float | np.ndarray | np.generic) or hasattr(value, "aval")


def symmetric(name: str, matrix) -> np.ndarray:
    """The symmetric part of a matrix `(..., p, p)`, symmetric to round-off of single precision.

    Each pair of entries is compared with its diagonal entries, `|k_ij - k_ji| <= 1e-5
    sqrt(|k_ii k_jj|)`: a large entry elsewhere, of another constraint in other units, excuses none.

    Raises:
        ValueError: for a matrix that is not square, or not symmetric, with the largest difference.
    """
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ValueError(f"{name} has shape {matrix.shape}; a gain matrix must be square.")
    skew = np.abs(matrix - np.swapaxes(matrix, -1, -2))
    if (skew > _SYMMETRIC * _scales(matrix)).any():
        raise ValueError(
            f"{name} is not symmetric: entries differ from their mirror images by up to "
            f"{skew.max():.3g}; give (K + K.T) / 2."
        )
    return (matrix + np.swapaxes(matrix, -1, -2)) / 2


def definite(matrix: np.ndarray) -> bool:
    """Whether a symmetric matrix `(..., p, p)` is positive definite beyond round-off."""
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    if not (diagonal > 0).all():
        return False
    least = np.linalg.eigvalsh(matrix / _scales(matrix)).min(initial=np.inf)
    return bool(least > 8 * matrix.shape[-1] * np.finfo(float).eps)


def _scales(matrix: np.ndarray) -> np.ndarray:
    """`sqrt(|k_ii k_jj|)`, shape `(..., p, p)`."""
    root = np.sqrt(np.abs(np.diagonal(matrix, axis1=-2, axis2=-1)))
    return root[..., :, None] * root[..., None, :]
