"""What the data say of the parameters: covariance, and which directions they leave open."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxdae.tuning.linearization import triangle

# Sensitivities are exact to round-off, which fixed steps multiply; below this part of the largest
# (of columns of length one) a singular value is zero.
ROUND_OFF = {8: 1e-9, 4: 1e-4}
# Parts of a direction below this do not belong to it.
NEGLIGIBLE = 1e-3


class Sensitivity(NamedTuple):
    """Directions of the unknowns, by how far the data see them.

    Args:
        covariance: of the unknowns in the directions that are seen, shape `(p, p)`.
        unseen: directions that change no residual, orthonormal in scaled unknowns, `(p, k)`.
        sizes: lengths of the columns of the Jacobian, shape `(p,)`.
        singular_values: of the Jacobian with columns of length one.
    """

    covariance: Float[np.ndarray, "p p"]
    unseen: Float[np.ndarray, "p k"]
    sizes: Float[np.ndarray, " p"]
    singular_values: Float[np.ndarray, " p"]

    @property
    def rank(self) -> int:
        """Number of independent directions that the data see."""
        return self.sizes.size - self.unseen.shape[1]


def seen_columns(
    jac: Float[np.ndarray, "residuals p"], units: np.ndarray
) -> Bool[np.ndarray, " p"]:
    """Which unknowns change a residual by more than round-off.

    Args:
        jac: derivatives of the residuals by the unknowns.
        units: what changes of the unknowns are small against.
    """
    effects = np.abs(jac).max(axis=0, initial=0.0) * units
    return effects > ROUND_OFF[jac.dtype.itemsize] * effects.max(initial=0.0)


def sensitivity(jac: Float[np.ndarray, "residuals p"], units: np.ndarray) -> Sensitivity:
    r"""Covariance `(J^T J)^{-1}` by the singular values of `J` with columns of length one.

    Directions whose singular value vanishes to round-off are not identifiable: the data say
    nothing of them, and the covariance is that of the others.

    Args:
        jac: derivatives of the residuals, in units of the noise, by the unknowns.
        units: what changes of the unknowns are small against.
    """
    tolerance = ROUND_OFF[jac.dtype.itemsize]
    seen = seen_columns(jac, units)
    jac = np.where(seen, np.asarray(jac, float), 0.0)
    sizes = np.linalg.norm(jac, axis=0)
    scale = np.where(seen, sizes, 1.0)
    # As many rows as columns at least: then the short form has all directions.
    factor = triangle(jac / scale, np)
    rows = np.pad(factor, ((0, max(0, sizes.size - factor.shape[0])), (0, 0)))
    _, values, right = np.linalg.svd(rows, full_matrices=False)
    good = values > tolerance * values.max(initial=0.0)
    basis = right[good].T / scale[:, None]
    covariance = (basis / values[good] ** 2) @ basis.T
    return Sensitivity(covariance, right[~good].T, sizes, values)


def condensed(
    jac: Float[np.ndarray, "residuals p"], nodes: np.ndarray, gaps: int
) -> Float[np.ndarray, "residuals q"]:
    """Derivatives by what is left when starts of later intervals (`nodes`) follow from closed gaps.

    The gaps are the last residuals, as many as these starts have unknowns.
    """
    if not gaps:
        return jac
    rows, closed = jac[:-gaps], jac[-gaps:]
    follow = np.linalg.solve(closed[:, nodes], closed[:, ~nodes])
    return rows[:, ~nodes] - rows[:, nodes] @ follow


def open_entries(found: Sensitivity) -> np.ndarray:
    """Which unknowns have a part in a direction that the data do not see."""
    return np.linalg.norm(found.unseen, axis=1) > NEGLIGIBLE


def propagated(
    found: Sensitivity, slopes: Float[np.ndarray, "k p"]
) -> tuple[Float[np.ndarray, "k k"], Float[np.ndarray, " k"]]:
    """Covariance of functions of the unknowns, in the directions that are seen, and their errors.

    Standard errors are infinite where a direction that is not seen takes part; `slopes` are the
    derivatives of the functions.
    """
    covariance = slopes @ found.covariance @ slopes.T
    unknown = np.any(slopes[:, open_entries(found)] != 0, axis=1)
    errors = np.where(unknown, np.inf, np.sqrt(np.maximum(np.diagonal(covariance), 0.0)))
    return covariance, errors
