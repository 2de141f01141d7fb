"""How far the stability region of an explicit method reaches in the directions of roots."""

import jax
import numpy as np

from jaxdae.memory import Memory
from jaxdae.stability.stability_functions import amplification

# A step that multiplies by more lets errors grow visibly in some tens of steps. Less, next to the
# imaginary axis, is what many methods do to vibrations however short their steps are.
_VISIBLE = 1.01
_SIZES = np.geomspace(1e-2, 1e3, 1000)
# Directions in the left half-plane, from the imaginary axis to the negative real one.
_ANGLES = np.linspace(np.pi / 2, np.pi, 33)
_KNOWN = Memory(32)


def reach(solver, roots) -> np.ndarray:
    """The largest `|h root|` up to which a method does not visibly amplify."""
    leaves, structure = jax.tree.flatten(solver)
    each = _KNOWN.get((structure, *leaves), solver, lambda: _in_directions(solver))
    roots = np.asarray(roots, complex)
    angles = np.abs(np.angle(np.minimum(np.real(roots), 0.0) + 1j * np.imag(roots)))
    with np.errstate(divide="ignore"):
        return 1 / np.interp(angles, _ANGLES, 1 / each)


def _in_directions(solver) -> np.ndarray:
    bad = amplification(solver, np.exp(1j * _ANGLES)[:, None] * _SIZES) > _VISIBLE
    return np.where(bad.any(axis=1), _SIZES[bad.argmax(axis=1)], np.inf)
