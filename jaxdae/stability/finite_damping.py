r"""What a number of steps leaves of a violation: transients count, not factors alone.

Of `n` steps of size `theta h` the violation `(phi, h phi_dot)` has the matrix

    R(theta Z)^n = f(z) I + f[z, conj(z)] (Z - z I),        f = R(theta .)^n

with the divided difference `f[z, conj(z)] = Im f(z) / Im z`, the derivative where the two roots
coincide. Its norm falls like the n-th power of the factor in the end, but coinciding roots begin
with `n` times as much: where the least factor is at a double root, pairs beside it leave less after
few steps.
"""

import numpy as np

from jaxdae.stability.damping import Effort, least, REACH, worst_damping
from jaxdae.stability.stability_functions import companions, stability_function

# Roots that coincide are moved apart by this fraction of their size, for the divided difference.
_APART = 1e-5


def remainder(solver, z, margin: float, horizon: int, samples: int = 33) -> np.ndarray:
    """The largest norm that `horizon` equal steps of the range leave, per step.

    Args:
        solver: a Runge-Kutta solver.
        z: largest step times root, of any shape.
        margin: largest step over smallest.
        horizon: number of steps.
        samples: steps of the range that are tried.

    Returns:
        The `horizon`-th root of the norm of the product on `(phi, h phi_dot)`, `h` the largest
        step; of the shape of `z`, infinite where smaller steps amplify.
    """
    real, imaginary = np.asarray(np.real(z)), np.asarray(np.imag(z))
    imaginary = np.asarray(np.maximum(np.abs(imaginary), _APART * np.abs(z)))
    within = np.geomspace(1.0 / margin, 1.0, samples if margin > 1 else 1)
    R = stability_function(solver, (real + 1j * imaginary)[..., None] * within)
    # Powers of the factors over the largest one, which neither overflow nor all vanish.
    largest = np.abs(R).max(axis=-1, keepdims=True)
    f = (R / np.where(largest > 0, largest, 1.0)) ** horizon
    slope = np.imag(f) / imaginary[..., None]
    shift = np.real(f) - slope * real[..., None]
    matrices = shift[..., None, None] * np.eye(2)
    matrices = matrices + slope[..., None, None] * companions(z)[..., None, :, :]
    norms = np.linalg.norm(matrices, 2, axis=(-2, -1)).max(axis=-1)
    left = largest[..., 0] * norms ** (1.0 / horizon)
    return np.where(np.isfinite(worst_damping(solver, z, margin, 17)), left, np.inf)


def best_remainder(solver, margin: float, horizon: int) -> complex:
    """The root with the least `remainder`.

    Args:
        solver: as for `remainder`.
        margin: likewise.
        horizon: likewise.

    Returns:
        Largest step times root.
    """
    effort = Effort(REACH / 500, REACH, 41, 81, 3, 28, 17)
    return least(lambda z: remainder(solver, z, margin, horizon), effort)
