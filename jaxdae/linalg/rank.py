"""Numerical rank, for diagnostics on the host."""

from typing import NamedTuple

import numpy as np

# Weights below this are round-off: such a row is not part of a dependence.
_NO_WEIGHT = 1e-6


class NumericalRank(NamedTuple):
    """Rank of a matrix, determined with its rows scaled to unit length.

    Args:
        rank: number of singular values that count as nonzero.
        singular_values: of the scaled matrix, in decreasing order, shape `(min(c, n),)`.
        combinations: orthonormal null combinations `y` of the scaled rows, shape `(c - rank, c)`;
            `(y / norms) @ matrix` is zero.
    """

    rank: int
    singular_values: np.ndarray
    combinations: np.ndarray

    @property
    def dependences(self) -> tuple[tuple[int, np.ndarray], ...]:
        """A superfluous row and the weights of a vanishing sum of scaled rows, for each dependence.

        Its own weight is 1 and that of each other superfluous row 0, so that without it the rest of
        those with weights is independent; sums of few rows come first. Weights have shape `(c,)`.
        """
        count = len(self.combinations)
        if count == 0:
            return ()
        # Imported here: it takes longer than much of the package, and only messages need it.
        from scipy.linalg import qr

        # Each superfluous row with those that it depends on, and none of the other superfluous.
        _, order = qr(self.combinations, mode="r", pivoting=True)  # pyright: ignore
        superfluous = order[:count]
        each = np.linalg.solve(self.combinations[:, superfluous], self.combinations)
        parts = np.abs(each) > _NO_WEIGHT * np.abs(each).max(axis=1, keepdims=True)
        pairs = zip(superfluous.tolist(), np.where(parts, each, 0.0), strict=True)
        return tuple(sorted(pairs, key=lambda x: np.count_nonzero(x[1])))

    @property
    def dependent_sets(self) -> tuple[tuple[int, ...], ...]:
        """Indices of rows that depend on each other, one set for each superfluous row.

        Without any of its rows the rest of a set is independent; sets of few rows come first.
        """
        return tuple(tuple(np.flatnonzero(x).tolist()) for _, x in self.dependences)


def numerical_rank(matrix, tolerance: float = 1e-8) -> NumericalRank:
    """Rank and dependent rows of a matrix, by singular value decomposition.

    The rows of a constraint Jacobian carry different units, so each is scaled to unit length
    first. A row that is zero, or at round-off beside the largest, stays what it is and is dependent
    by itself. Singular values below `tolerance` times the largest count as zero. Not for use under
    `jit`.

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
    return NumericalRank(rank, values, combinations)
