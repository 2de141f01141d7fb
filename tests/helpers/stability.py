"""Stability functions by determinants, apart from the stage equations that the library solves."""

import numpy as np


def stability_polynomials(a, b) -> tuple[np.ndarray, np.ndarray]:
    """Numerator and denominator of `R(z)`, lowest power first, by their determinants.

    Args:
        a: shape `(stages, stages)`.
        b: shape `(stages,)`.

    Returns:
        Coefficients `(stages+1,)` each.
    """
    return _determinant(np.outer(np.ones(b.size), b) - a), _determinant(-a)


def _determinant(matrix) -> np.ndarray:
    """Coefficients of `det(I + z matrix)`, by Newton's identities on the traces of powers."""
    size = len(matrix)
    power, traces = np.eye(size), []
    for _ in range(size):
        power = power @ matrix
        traces.append(np.trace(power))
    out = np.zeros(size + 1)
    out[0] = 1.0
    for k in range(1, size + 1):
        signs = [(-1) ** (i - 1) * out[k - i] * traces[i - 1] for i in range(1, k + 1)]
        out[k] = sum(signs) / k
    return out
