r"""Roots that a method damps best, over a range of steps.

With `z = h s` for a root `s` of the constraint perturbation equations, a step of size `theta h`
multiplies its mode by `R(theta z)`. Over the steps in `[h / margin, h]` the worst factor is

    W(z) = max |R(theta z)|,    1 / margin <= theta <= 1

and `z` is admissible where `|R(theta z)| <= 1` for all `0 < theta <= 1`: steps below those of the
range do no harm then. A pair of roots has the worse of its two factors, and `R(conj(z))` is
`conj(R(z))`, so that the best pair is `(z, conj(z))` at the least `W` of the left half-plane, or
twice the same number where that is real. Along a ray both maxima are running ones: a grid in polar
coordinates that is geometric in `|z|` has them all at once. Its best cells are then refined.
"""

from typing import NamedTuple

import numpy as np

from jaxdae.stability.stability_functions import AdamsBashforth, amplification

# Roots beyond this many inverse steps are not looked for: every explicit method of diffrax is
# unstable there, and those that are stable gain nothing that round-off would not take back.
REACH = 10.0
# More than round-off of a factor of one, near the origin.
_ROUND_OFF = 1e-12


class _Effort(NamedTuple):
    """How a minimum is looked for.

    Args:
        reach: largest `|z|`.
        angles: of the first grid.
        radii: of the first grid.
        starts: its local minima that are refined.
        zooms: grids of each, every one 0.6 times the size of the last.
        samples: of the range of steps.
    """

    reach: float
    angles: int
    radii: int
    starts: int
    zooms: int
    samples: int


def _effort(solver) -> _Effort:
    """Multistep methods cost an eigenvalue problem for each value, and their regions shrink."""
    if isinstance(solver, AdamsBashforth):
        return _Effort(3.0 * 0.5 ** (solver.steps - 1), 24, 61, 2, 25, 9)
    return _Effort(REACH, 91, 241, 6, 40, 33)


def worst_damping(solver, z, margin: float, samples: int = 65) -> np.ndarray:
    """`W(z)`, infinite where `z` is not admissible.

    Args:
        solver: a Runge-Kutta solver, or `AdamsBashforth`.
        z: step times root, of any shape.
        margin: largest step over smallest, at least 1.
        samples: steps of the range that are tried, and as many below it.

    Returns:
        Of the shape of `z`.
    """
    z = np.asarray(z, complex)
    within = np.geomspace(1.0 / margin, 1.0, samples) if margin > 1 else np.ones(1)
    below = np.linspace(0.0, 1.0 / margin, samples, endpoint=False)[1:]
    worst = amplification(solver, z[..., None] * within).max(axis=-1)
    inside = amplification(solver, z[..., None] * below).max(axis=-1)
    return np.where(np.maximum(worst, inside) <= 1 + _ROUND_OFF, worst, np.inf)


def best_damping(solver, margin: float, *, real: bool = False) -> complex:
    """The least `W(z)` of the left half-plane, or of the negative real axis.

    Args:
        solver: as for `worst_damping`.
        margin: likewise.
        real: whether for real roots only.

    Returns:
        Step times root, in the upper left quarter-plane.

    Raises:
        ValueError: for a method that damps no root.
    """
    effort = _effort(solver)
    angles = np.linspace(np.pi / 2, np.pi, effort.angles)[-1 if real else 0 :]
    log_r = np.log(np.geomspace(effort.reach / 500, effort.reach, effort.radii))
    z = np.exp(log_r + 1j * angles[:, None])
    starts = _lowest_cells(_on_grid(amplification(solver, z), log_r, margin), effort.starts)
    found = [_refined(solver, margin, (log_r, angles), cell, effort) for cell in starts]
    if not found:
        raise ValueError(f"{type(solver).__name__} damps no root: no gains suit it.")
    if not real:  # minima on the axis are sharp
        found.append(best_damping(solver, margin, real=True))
    return min(found, key=lambda z: float(worst_damping(solver, z, margin)))


def _on_grid(factors, log_r, margin: float) -> np.ndarray:
    """`W` at the points of a grid from factors there, shape `(angles, radii)`."""
    worst = factors.copy()
    steps = int(np.ceil(np.log(margin) / (log_r[1] - log_r[0])))
    for k in range(1, min(steps, factors.shape[1] - 1) + 1):
        worst[:, k:] = np.maximum(worst[:, k:], factors[:, :-k])
    admissible = np.maximum.accumulate(factors, axis=1) <= 1 + _ROUND_OFF
    return np.where(admissible, worst, np.inf)


def _lowest_cells(worst, count: int) -> list[tuple[int, int]]:
    """Local minima of a grid, the lowest first, as indices of radius and angle."""
    padded = np.pad(worst, 1, constant_values=np.inf)
    rows, columns = worst.shape
    around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    lowest = np.isfinite(worst) & (worst <= np.min(around, axis=0))
    cells = np.argwhere(lowest)
    order = np.argsort(worst[lowest], kind="stable")[:count]
    return [(int(j), int(i)) for i, j in cells[order]]


def _refined(solver, margin, grid, cell, effort: _Effort) -> complex:
    """The minimum of a cell, by ever smaller grids about the best point so far."""
    log_r, angles = grid
    turn = angles[1] - angles[0] if angles.size > 1 else 0.0
    half = np.array([log_r[1] - log_r[0], turn])
    centre = np.array([log_r[cell[0]], angles[cell[1]]])
    offsets = np.linspace(-1.0, 1.0, 7)
    for _ in range(effort.zooms):
        r = np.minimum(centre[0] + half[0] * offsets, log_r[-1])
        turned = np.clip(centre[1] + half[1] * (offsets if turn else np.zeros(1)), *angles[[0, -1]])
        z = np.exp(r + 1j * turned[:, None])
        worst = worst_damping(solver, z, margin, effort.samples)
        i, j = np.unravel_index(np.argmin(worst), worst.shape)
        centre, half = np.array([r[j], turned[i]]), 0.6 * half
    z = np.exp(centre[0] + 1j * centre[1])
    return complex(z.real, 0.0 if abs(z.imag) < 1e-6 * abs(z) else z.imag)
