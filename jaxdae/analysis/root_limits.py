"""The largest step of a method for a set of roots, critical ones included."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdae.analysis.steps import bisect, spectral_limit
from jaxdae.reprs import shown
from jaxdae.stability.stability_functions import amplification

# Distances along the imaginary axis in steps: below the first no method of order 8 or less departs
# from 1 by more than round-off, above the last every explicit method has left its region.
_AXIS = np.geomspace(1e-3, 1e2, 4000)
# Damping, as a fraction of the frequency, below which round-off hides where a method begins to
# amplify: such a root counts as undamped.
_LIGHT = 1e-6
# Above the round-off of a stability function near 1, of the order of its number of stages.
_VISIBLE = 1e-12


class RootLimit(NamedTuple):
    """The largest step for a set of roots.

    Args:
        limit: [s]; infinite where every step will do, 0 where none will, because the method
            amplifies an undamped oscillation however small the step is.
        root: the root that sets it, `None` where nothing does.
    """

    limit: float
    root: complex | None

    def __repr__(self) -> str:
        return shown(self)


def clean(roots, tolerances) -> NDArray[np.complex128]:
    """Roots with real and imaginary parts below their uncertainty set to zero.

    Args:
        roots: shape `(s,)`.
        tolerances: uncertainty of each, shape `(s,)`.
    """
    roots = np.asarray(roots, np.complex128)
    real = np.where(np.abs(roots.real) <= tolerances, 0.0, roots.real)
    return real + 1j * np.where(np.abs(roots.imag) <= tolerances, 0.0, roots.imag)


def root_limit(solver, roots) -> RootLimit:
    """The largest step for which a method damps what decays and does not amplify what swings.

    Roots with positive real parts are left out: their motion grows whatever the step. Zero roots
    set no limit. A damping ratio below 1e-6 counts as none.

    Args:
        solver: see `amplification`.
        roots: from `clean`, shape `(s,)`.

    Returns:
        `RootLimit`.
    """
    roots = np.asarray(roots, np.complex128)
    damped = roots.real < -_LIGHT * np.abs(roots.imag)
    swinging = (roots.real <= 0) & ~damped
    results = [_of_decaying(solver, roots[damped]), _of_swinging(solver, roots[swinging])]
    return min(results, key=lambda x: x.limit)


def growth(solver, roots, h: float) -> float:
    """Largest factor by which one step of size `h` multiplies a part that does not grow itself.

    Args:
        solver: see `amplification`.
        roots: from `clean`, shape `(s,)`.
        h: step [s].

    Returns:
        The factor; 0 without such roots.
    """
    roots = np.asarray(roots, np.complex128)
    kept = roots[(roots.real <= 0) & (roots != 0)]
    return float(np.max(amplification(solver, h * kept), initial=0.0))


def _of_decaying(solver, roots) -> RootLimit:
    kept = _distinct(roots[roots.imag >= 0])
    if not kept.size:
        return RootLimit(np.inf, None)
    result = spectral_limit(kept, solver)
    return RootLimit(result.limit, result.root)


def _of_swinging(solver, roots) -> RootLimit:
    fastest = np.abs(roots.imag).max(initial=0.0)
    if fastest == 0:
        return RootLimit(np.inf, None)
    reach = imaginary_reach(solver)
    return RootLimit(reach / fastest, 1j * fastest if np.isfinite(reach) else None)


def imaginary_reach(solver) -> float:
    """Length of the imaginary axis, from 0, on which a method does not amplify.

    The first visible departure of the factor from 1 decides between methods that amplify at every
    step (Euler, Heun, Adams-Bashforth of two steps) and those that do not.

    Args:
        solver: see `amplification`.

    Returns:
        The length; 0 and infinity are possible.
    """
    excess = amplification(solver, 1j * _AXIS) - 1
    visible = np.flatnonzero(np.abs(excess) > _VISIBLE)
    beyond = np.flatnonzero(excess > _VISIBLE)
    if not beyond.size:
        return np.inf
    if beyond[0] == visible[0]:
        return 0.0
    low, high = _AXIS[beyond[0] - 1 : beyond[0] + 1]
    return float(bisect(lambda y: amplification(solver, 1j * y), low, high, 1.0))


def _distinct(roots):
    """Roots that differ by more than nine digits."""
    scale = np.abs(roots).max(initial=0.0) or 1.0
    return roots[np.unique(np.round(roots / scale, 9), return_index=True)[1]]
