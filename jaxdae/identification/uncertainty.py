"""What the data say of the parameters: covariance, and what they leave open, in words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from jaxdae.tuning.linearization import triangle

# Sensitivities are exact to round-off, which fixed steps multiply; below this part of the largest
# (of columns of length one) a singular value is zero.
ROUND_OFF = {8: 1e-9, 4: 1e-4}
# Parts of a direction below this do not belong to it.
_NEGLIGIBLE = 1e-3
# An unknown with this part of the largest derivative of several residuals is seen by them.
_PART, _ROWS = 1e-4, 3


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


class Uncertainty(NamedTuple):
    """How far numbers are known.

    Args:
        covariance: in the directions that are seen, shape `(k, k)`.
        errors: standard errors, infinite where a direction that is not seen takes part, `(k,)`.
    """

    covariance: Float[np.ndarray, "k k"]
    errors: Float[np.ndarray, " k"]


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
    """Derivatives by what is left when starts of later intervals follow from closed gaps.

    Args:
        jac: derivatives of all residuals, the gaps last.
        nodes: which unknowns are such starts; as many as there are gaps.
        gaps: number of the gaps.
    """
    if not gaps:
        return jac
    rows, closed = jac[:-gaps], jac[-gaps:]
    follow = np.linalg.solve(closed[:, nodes], closed[:, ~nodes])
    return rows[:, ~nodes] - rows[:, nodes] @ follow


def open_entries(found: Sensitivity) -> np.ndarray:
    """Which unknowns have a part in a direction that the data do not see."""
    return np.linalg.norm(found.unseen, axis=1) > _NEGLIGIBLE


def propagated(found: Sensitivity, slopes: Float[np.ndarray, "k p"]) -> Uncertainty:
    """Covariance and standard errors of functions of the unknowns.

    Args:
        found: of the unknowns.
        slopes: derivatives of the functions by the unknowns.
    """
    covariance = slopes @ found.covariance @ slopes.T
    unknown = np.any(slopes[:, open_entries(found)] != 0, axis=1)
    errors = np.where(unknown, np.inf, np.sqrt(np.maximum(np.diagonal(covariance), 0.0)))
    return Uncertainty(covariance, errors)


def drowned(jac: Float[np.ndarray, "residuals p"], units: np.ndarray) -> Bool[np.ndarray, " p"]:
    """Which unknowns change some residuals in proportion, but by round-off of the largest.

    A channel whose noise level is a millionth of another's makes residuals a million times as
    large: what it does not see counts as nothing beside it, though another channel sees it.

    Args:
        jac: derivatives of the residuals by the unknowns.
        units: what changes of the unknowns are small against.
    """
    effects = np.abs(np.asarray(jac, float)) * units
    rows = effects.max(axis=1, initial=0.0)
    # Weights come last: small rows have all digits, but where samples do not depend on anything.
    clear = rows > np.finfo(jac.dtype).eps ** 1.5 * rows.max(initial=0.0)
    parts = effects[clear] / rows[clear, None]
    return np.sum(parts > _PART, axis=0) >= _ROWS


def open_directions(
    found: Sensitivity,
    names: Sequence[str],
    scales: np.ndarray,
    beside: Mapping[int, str] | None = None,
) -> list[str]:
    """Each direction that no channel sees, in words, with as few unknowns in it as possible.

    Args:
        found: of the unknowns.
        names: of the unknowns; the logarithm of one is called `log …`.
        scales: size of one unit of each unknown; one for those without unit.
        beside: why an unknown is not seen although some samples depend on it, by its number.
    """
    if not found.unseen.shape[1]:
        return []
    # In relative changes: those of the columns of length one depend on the noise.
    seen = found.sizes > 0
    moves = found.unseen / np.where(seen, found.sizes, 1.0)[:, None] / scales[:, None]
    return [_in_words(x, names, scales, beside or {}) for x in _sparse(moves).T]


def _sparse(basis: np.ndarray) -> np.ndarray:
    """A basis of the same space whose vectors have few entries: that of reduced echelon form."""
    rows, places = basis.T / np.abs(basis).max(), []
    for i in range(rows.shape[0]):
        row, place = np.unravel_index(np.argmax(np.abs(rows[i:])), rows[i:].shape)
        rows[[i, i + row]] = rows[[i + row, i]]
        rows[i] /= rows[i, place]
        others = np.arange(rows.shape[0]) != i
        rows[others] -= rows[others, place][:, None] * rows[i]
        places.append(place)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T


def _in_words(
    direction: np.ndarray, names: Sequence[str], scales: np.ndarray, beside: Mapping[int, str]
) -> str:
    used = [int(i) for i in np.flatnonzero(np.abs(direction) > _NEGLIGIBLE)]
    direction = direction * np.sign(direction[used[0]])
    if len(used) == 1 and used[0] in beside:
        return f"{names[used[0]].removeprefix('log ')} {beside[used[0]]}"
    if len(used) == 1:
        return f"no channel sees {names[used[0]].removeprefix('log ')}"
    terms = " ".join(f"{_part(direction[i])} {_unit(names[i], scales[i])}" for i in used)
    together = [names[i].removeprefix("log ") for i in used]
    logs = all(names[i].startswith("log ") for i in used)
    pair = direction[used] / np.abs(direction[used]).max()
    how = "only in a combination"
    if logs and len(used) == 2 and np.allclose(np.abs(pair), 1.0, atol=1e-3):
        how = "only as their ratio" if pair[0] * pair[1] > 0 else "only as their product"
    elif logs and np.allclose(pair, 1.0, atol=1e-3):
        how = "only as their ratios"
    listed = f"{', '.join(together[:-1])} and {together[-1]}"
    return f"{listed} enter {how}: the direction {terms} changes no channel"


def _part(value: float) -> str:
    """With a sign and two decimals, or as many as it has one digit in."""
    return f"{value:+.2f}" if abs(value) >= 0.01 else f"{value:+.1g}"


def _unit(name: str, scale: float) -> str:
    return name if scale == 1.0 else f"{name}/{scale:.3g}"
