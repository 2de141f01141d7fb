"""Controllability of linear systems, by the staircase form."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdae.analysis.spectra import root_bounds, ROUNDOFF
from jaxdae.reprs import shown


class Controllability(NamedTuple):
    """Which part of `ds/dt = A s + B u` the input reaches.

    Args:
        rank: dimension of the controllable subspace.
        basis: orthonormal basis of it, shape `(s, rank)`.
        uncontrollable: orthonormal basis of its complement, shape `(s, s - rank)`.
        stairs: dimensions that each step of the staircase adds; their number is the
            controllability index.
        roots: roots that no feedback moves, shape `(s - rank,)`.
        tolerances: uncertainty of each.
        stabilizable: whether all of `roots` have negative real parts.
    """

    rank: int
    basis: np.ndarray
    uncontrollable: np.ndarray
    stairs: tuple[int, ...]
    roots: NDArray[np.complex128]
    tolerances: np.ndarray
    stabilizable: bool

    def __repr__(self) -> str:
        return shown(self)


def controllability(A, B) -> Controllability:
    """Controllable subspace and the roots outside of it.

    Staircase by singular value decompositions: `span B`, then what `A` adds to it, until nothing is
    added beyond `1e3 s` times the round-off. Powers of `A`, which lose all digits in Kalman's
    matrix, are not formed.

    Args:
        A: shape `(s, s)`.
        B: shape `(s, i)`.

    Returns:
        `Controllability`.

    Raises:
        ValueError: for shapes that do not fit, or numbers that are not finite.
    """
    eps = _precision(A, B)
    A, B = check_pair(A, B)
    size = len(A)
    tolerance = 1e3 * size * eps
    # Balanced units: what counts as nothing should not depend on seconds against metres.
    scale = np.linalg.norm(A, 2)
    basis, stairs = np.zeros((size, 0)), []
    block, reference = B, np.linalg.norm(B, 2)
    while basis.shape[1] < size:
        fresh = block - basis @ (basis.T @ block)
        left, values, _ = np.linalg.svd(fresh, full_matrices=False)
        count = int((values > tolerance * max(reference, np.finfo(float).tiny)).sum())
        if count == 0:
            break
        added = left[:, :count]
        # Twice is enough: the second pass removes what round-off of the first left over.
        added = np.linalg.qr(added - basis @ (basis.T @ added))[0]
        basis, stairs = np.concatenate([basis, added], axis=1), [*stairs, count]
        block, reference = A @ added, scale
    rank = basis.shape[1]
    complement = np.linalg.qr(np.concatenate([basis, np.eye(size)], axis=1))[0][:, rank:size]
    roots, bounds = root_bounds(complement.T @ A @ complement, eps)
    # Its entries have the round-off of those of A, however small they are themselves.
    bounds = np.maximum(bounds, ROUNDOFF * size * eps * scale)
    stable = bool((np.real(roots) < -bounds).all())
    return Controllability(rank, basis, complement, tuple(stairs), roots, bounds, stable)


def check_pair(A, B) -> tuple[np.ndarray, np.ndarray]:
    """A pair as double-precision matrices, or a `ValueError` that names what does not fit."""
    A, B = np.asarray(A, np.float64), np.asarray(B, np.float64)
    if A.ndim != 2 or A.shape[0] != A.shape[1] or B.ndim != 2 or B.shape[0] != len(A):
        raise ValueError(
            f"A must have shape (s, s) and B (s, i); they have shapes {A.shape} and {B.shape}."
        )
    if not (np.isfinite(A).all() and np.isfinite(B).all()):
        raise ValueError("A and B must be finite.")
    return A, B


def _precision(*matrices) -> float:
    kinds = [np.asarray(x).dtype for x in matrices]
    return max(float(np.finfo(kind).eps) if kind.kind == "f" else 0.0 for kind in kinds) or 2.2e-16
