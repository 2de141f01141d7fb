"""Numerical rank, for diagnostics on the host."""

from typing import NamedTuple

import numpy as np

# Weights below this are round-off: such a row is not part of a dependence.
_NO_WEIGHT = 1e-6


class NumericalRank(NamedTuple):
    """Rank of a matrix, judged with its rows scaled to unit length.

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
    def dependent_sets(self) -> tuple[tuple[int, ...], ...]:
        """Indices of rows that depend on each other, one set for each superfluous row.

        Without any of its rows the rest of a set is independent; sets of few rows come first.
        """
        return _dependent_sets(self.combinations)


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
    return NumericalRank(rank, values, combinations)


def _dependent_sets(combinations: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Sets of rows of null combinations with few entries that span all of them.

    For each row the combination with the least sum of sizes among those where it has the weight 1:
    a vertex of a polyhedron, whose other entries are zero exactly.
    """
    results = [_sparse_combination(combinations, i) for i in range(combinations.shape[1])]
    sparse = [x / np.abs(x).max() for x in results if x is not None]
    sparse.sort(key=lambda x: np.count_nonzero(np.abs(x) > _NO_WEIGHT))
    chosen = np.zeros((0, combinations.shape[1]))
    sets = []
    for x in sparse:
        more = np.vstack([chosen, x])
        if np.linalg.matrix_rank(more, tol=_NO_WEIGHT) == len(more):
            chosen = more
            sets.append(tuple(np.flatnonzero(np.abs(x) > _NO_WEIGHT).tolist()))
    return tuple(sets)


def _sparse_combination(combinations: np.ndarray, row: int) -> np.ndarray | None:
    """The combination with weight 1 of a row and the least sum of sizes; `None` where none has."""
    count, rows = combinations.shape
    if np.abs(combinations[:, row]).max(initial=0.0) < _NO_WEIGHT:
        return None
    # Imported here: it takes longer than much of the package, and only messages need it.
    from scipy.optimize import linprog

    # y = combinations.T @ c with |y| <= bounds, in the unknowns c and bounds.
    span = combinations.T
    bounded = np.block([[span, -np.eye(rows)], [-span, -np.eye(rows)]])
    cost = np.concatenate([np.zeros(count), np.ones(rows)])
    weight = np.concatenate([span[row], np.zeros(rows)])[None]
    free = [(None, None)] * count + [(0, None)] * rows
    result = linprog(cost, bounded, np.zeros(2 * rows), weight, [1.0], free)
    return span @ result.x[:count] if result.success else None
