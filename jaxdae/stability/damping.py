r"""Roots of the constraint perturbation equations that suit a method, searched for everywhere.

With `z = h s` for a root `s`, a step of size `theta h` multiplies its mode by `R(theta z)`. Over
the steps in `[h / margin, h]` the worst factor is

    W(z) = max |R(theta z)|,    1 / margin <= theta <= 1

and `z` is admissible where `|R(theta z)| <= 1` for all `0 < theta <= 1`: steps below those of the
range do no harm then. A pair of roots has the worse of its two factors, and `R(conj(z))` is
`conj(R(z))`, so that the best pair is `(z, conj(z))` at the least `W` of the left half-plane, or
twice the same number where that is real. The search is on a grid in polar coordinates, geometric in
`|z|`, whose best cells are then refined.
"""

import numpy as np

from jaxdae.stability.stability_functions import amplification, is_multistep

# Roots beyond this many inverse steps are not looked for: every explicit method of diffrax is
# unstable there, and those that are stable gain nothing that round-off would not take back.
REACH = 10.0
# More than round-off of a factor of one, near the origin.
_ROUND_OFF = 1e-12


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
    """The least `W(z)` of the left half-plane, or of the negative real axis."""
    multistep = is_multistep(solver)
    if multistep:  # each value costs an eigenvalue problem, and regions shrink with the steps
        largest = 3.0 * 0.5 ** (solver.steps - 1)
        least, rows, columns, cells, zooms, samples = largest / 100, 24, 41, 2, 24, 9
    else:
        largest = REACH
        least, rows, columns, cells, zooms, samples = REACH / 500, 61, 121, 5, 36, 33

    def cost(z):
        return worst_damping(solver, z, margin, samples)

    # The axis by itself: minima on it are sharp.
    angles = [np.array([np.pi])] + [np.linspace(np.pi / 2, np.pi, rows)] * (not real)
    log_r, found = np.log(np.geomspace(least, largest, columns)), []
    for grid in angles:
        worst = cost(np.exp(log_r + 1j * grid[:, None]))
        found += [_refined(cost, log_r, grid, cell, zooms) for cell in _lowest_cells(worst, cells)]
    best = min(found, key=lambda z: float(cost(z)), default=complex(-least))
    if not np.isfinite(cost(best)):
        raise ValueError(f"{type(solver).__name__} damps no root: no gains suit it.")
    return _polished(solver, best, margin) if margin > 1 and not real and not multistep else best


def _polished(solver, z: complex, margin: float) -> complex:
    """The same minimum of a maximum, where several steps have the same factor, to more digits.

    Least `t` with `|R(theta z)|^2 <= t` for all steps, by sequential quadratic programming: at a
    kink grids come to rest before they are there.
    """
    # Imported here: it takes longer than the rest of the package, which does not need it.
    from scipy.optimize import minimize

    within = np.geomspace(1.0 / margin, 1.0, 129)

    def slack(x):
        return x[2] - amplification(solver, np.exp(x[0] + 1j * x[1]) * within) ** 2

    start = np.array([np.log(abs(z)), np.angle(z), float(worst_damping(solver, z, margin)) ** 2])
    found = minimize(
        lambda x: x[2],
        start,
        jac=lambda x: np.array([0.0, 0.0, 1.0]),  # noqa: ARG005
        method="SLSQP",
        bounds=[(start[0] - 0.3, np.log(REACH)), (np.pi / 2, np.pi), (0.0, None)],
        constraints={"type": "ineq", "fun": slack},
        options={"maxiter": 50, "ftol": 1e-12},
    )
    better = complex(np.exp(found.x[0] + 1j * found.x[1]))
    worst = worst_damping(solver, np.array([z, better]), margin, 513)
    return better if worst[1] < worst[0] and better.imag > 1e-6 * abs(better) else z


def _lowest_cells(worst, count: int) -> list[tuple[int, int]]:
    """Local minima of a grid, the lowest first, as indices of radius and angle."""
    padded = np.pad(worst, 1, constant_values=np.inf)
    rows, columns = worst.shape
    around = [padded[i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    lowest = np.isfinite(worst) & (worst <= np.min(around, axis=0))
    cells = np.argwhere(lowest)
    order = np.argsort(worst[lowest], kind="stable")[:count]
    return [(int(j), int(i)) for i, j in cells[order]]


def _refined(cost, log_r, angles, cell, zooms: int) -> complex:
    """The minimum of a cell, by ever smaller grids about the best point so far."""
    turn = angles[1] - angles[0] if angles.size > 1 else 0.0
    half = np.array([log_r[1] - log_r[0], turn])
    centre = np.array([log_r[cell[0]], angles[cell[1]]])
    offsets = np.linspace(-1.0, 1.0, 7)
    for _ in range(zooms):
        r = np.minimum(centre[0] + half[0] * offsets, log_r[-1])
        turned = np.clip(centre[1] + half[1] * (offsets if turn else np.zeros(1)), *angles[[0, -1]])
        worst = cost(np.exp(r + 1j * turned[:, None]))
        i, j = np.unravel_index(np.argmin(worst), worst.shape)
        centre, half = np.array([r[j], turned[i]]), 0.6 * half
    z = np.exp(centre[0] + 1j * centre[1])
    return complex(z.real, 0.0 if abs(z.imag) < 1e-6 * abs(z) else z.imag)
