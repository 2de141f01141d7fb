"""The matrix of linear constraint perturbation equations."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from jaxdae.control.stabilizers import AbstractServoStabilizer
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.formulations.stabilization import AbstractStabilization, perturbation_block


def perturbation_matrix(stabilization, m: int | None = None, r: int | None = None) -> np.ndarray:
    """`H` of the constraint perturbation equations `dy/dt = H y`, `y = (phi, dphi/dt, g)`.

    Args:
        stabilization: `Baumgarte`, `LinearStabilization`, any callable stabilization that is linear
            in the residuals, or the matrix itself.
        m: number of position constraints; by default that of the gains, 1 for scalars.
        r: number of velocity constraints; by default that of the gains, 0 without any.

    Returns:
        Shape `(2m+r, 2m+r)`.

    Raises:
        ValueError: for gains that depend on time or state, or a stabilization of servo-constraints.
    """
    if isinstance(stabilization, AbstractServoStabilizer):
        raise ValueError(
            f"{type(stabilization).__name__} stabilizes servo-constraints, whose matrix depends on "
            "their relative degrees: give ServoConstraint.perturbation_matrix(t, q, v, w)."
        )
    if isinstance(stabilization, AbstractFormulation):
        raise ValueError(
            f"{type(stabilization).__name__} is a formulation: give its stabilization, or the "
            "matrix that its perturbation_matrix(system, t, state) returns."
        )
    if not callable(stabilization):
        return _finite(np.asarray(stabilization, np.float64))
    m, r = _counts(stabilization, m, r)
    if isinstance(stabilization, AbstractStabilization):
        stabilization.check(m, r)

    def matrix(t, y):
        law: Callable = stabilization
        return np.asarray(perturbation_block(law, t, y, y, y, m), np.float64)

    zero = jnp.zeros(2 * m + r)
    H = _finite(matrix(0.0, zero))
    if isinstance(stabilization, AbstractStabilization):
        return H
    # A user's own: the same at another time and state, and far from zero, or it has no one matrix.
    probe = jnp.cos(1.0 + jnp.arange(zero.size, dtype=zero.dtype))
    away = np.abs(matrix(0.7, probe) - H).max(initial=0.0)
    if away > 1e-6 * np.abs(H).max(initial=0.0):
        raise ValueError(
            f"the stabilization has no constant matrix: its derivatives differ by {away:.3g} from "
            "one time and state to another. Give the matrix at the state that matters, or take "
            "step_limit_along."
        )
    return H


def _finite(H: np.ndarray) -> np.ndarray:
    if not np.isfinite(H).all():
        raise ValueError("the constraint perturbation equations have entries that are not finite.")
    return H


def _counts(stabilization, m: int | None, r: int | None) -> tuple[int, int]:
    """Numbers of constraints: those given, or those that the shapes of the gains tell."""
    declares = isinstance(stabilization, AbstractStabilization)
    positions, velocities = stabilization.counts() if declares else (None, None)
    positions = 1 if positions is None else positions
    return positions if m is None else m, (velocities or 0) if r is None else r
