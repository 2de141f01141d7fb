"""Numerical rank, for diagnostics on the host."""

from typing import NamedTuple

import numpy as np


class NumericalRank(NamedTuple):
    """Rank of a matrix, judged with its rows scaled to unit length.

    Args:
        rank: number of singular values that count as nonzero.
        singular_values: of the scaled matrix, in decreasing order, shape `(min(c, n),)`.
        combinations: orthonormal null combinations `y` of the scaled rows, shape `(c - rank, c)`;
            `(y / norms) @ matrix` is zero.
        dependent_rows: indices of the rows that take part in a combination.
    """

    rank: int
    singular_values: np.ndarray
    combinations: np.ndarray
    dependent_rows: tuple[int, ...]


def numerical_rank(matrix, tolerance: float = 1e-8) -> NumericalRank:
    """Rank and dependent rows of a matrix, by singular value decomposition.

    The rows of a constraint Jacobian carry different units, so each is scaled to unit length
    first. A row that is zero, or at round-off beside the largest, stays what it is and is dependent
    by itself. Not for use under `jit`.

    Args:
        matrix: shape `(c, n)`.
        tolerance: singular values below this fraction of the largest count as zero.

    Returns:
        `NumericalRank`.

    Raises:
        ValueError: for entries that are not finite.
    """
    matrix = np.asarray(matrix, np.float64)
    if not np.isfinite(matrix).all():
        raise ValueError("the rank of a matrix with entries that are not finite is not defined.")
    norms = np.linalg.norm(matrix, axis=1, keepdims=True)
    # Scaled to unit length, a row of round-off would look like a constraint.
    nothing = norms <= 100 * np.finfo(np.float64).eps * norms.max(initial=0.0)
    left, values, _ = np.linalg.svd(np.where(nothing, 0.0, matrix / np.where(nothing, 1.0, norms)))
    rank = int((values > tolerance * values.max(initial=0.0)).sum())
    combinations = left[:, rank:].T
    # A row whose weight is at round-off is not part of the dependence.
    weights = np.abs(combinations).max(axis=0, initial=0.0)
    return NumericalRank(rank, values, combinations, tuple(np.flatnonzero(weights > 1e-3).tolist()))
