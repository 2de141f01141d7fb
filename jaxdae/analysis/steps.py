r"""The largest step for which a method keeps the constraint violation bounded.

Stabilized constraints obey `dy/dt = H y` (the constraint perturbation equations). A method of step
`h` multiplies `y` by `R(hH)`. Asymptotic stability of the equation is not enough: `R(hH)` has to
contract [Mukharlyamov2019, section 4]. Two versions:

- *spectral*: the spectral radius of `R(hH)` is below 1. Necessary and sufficient for constant `H`.
- *Lyapunov norm*: `|R(hH)|_P <= theta < 1` in the norm `|y|_P^2 = y^T P y` of a Lyapunov
  function. Sufficient, for gains that vary too, and with the remainder of the method below
  `(1 - theta) eps` it keeps `|y|_P <= eps`.

The plain 2-norm will not do: for the companion matrix `H = [[0, 1], [-K_P, -K_D]]` the norm of
`I + hH` exceeds 1 for every step, because its first row is `(1, h)`.
"""

from collections.abc import Callable
from typing import NamedTuple

import diffrax
import numpy as np

from jaxdae.analysis.lyapunov import lyapunov_certificate
from jaxdae.analysis.perturbation import perturbation_matrix
from jaxdae.reprs import shown
from jaxdae.stability.stability_functions import amplification, is_multistep, step_matrix
from jaxdae.tables import root_text

# Steps tried, relative to the inverse of each rate: from almost none to far beyond any explicit
# method's region. Logarithmic, so that the first crossing is found to 1 %, then bisected.
STEP_GRID = np.geomspace(1e-7, 1e5, 2800)
_BISECTIONS = 60


class StepLimit(NamedTuple):
    """Steps that contract the violation.

    Args:
        limit: the largest step [s], infinite where every step will do.
        lower: the smallest step [s] that contracts by `theta`; 0 for `theta = 1`.
        version: "spectral", "Lyapunov norm", or the latter along a motion.
        theta: the contraction asked for.
        weight: `P` of the norm, `(p, p)`, or `None`.
        root: the eigenvalue of `H` that sets the spectral limit, or `None`.
    """

    limit: float
    lower: float
    version: str
    theta: float
    weight: np.ndarray | None
    root: complex | None

    def __repr__(self) -> str:
        return shown(self)


def step_limit(
    stabilization,
    solver,
    *,
    version: str = "spectral",
    theta: float = 1.0,
    weight=None,
    m: int | None = None,
    r: int | None = None,
) -> StepLimit:
    """The largest step of a method that contracts the violation, and every step below it.

    Below the spectral limit violations vanish in the end. Before, they may grow by as much as the
    modes of `H` are dependent, which is most where roots coincide (`HurwitzGains.repeated`): a
    nonlinear run can then break somewhat below the limit. Below the Lyapunov limit nothing grows.

    Args:
        stabilization: see `perturbation_matrix`; constant gains.
        solver: a Runge-Kutta solver of diffrax or one of `jaxdae.solvers`, by its coefficients, or
            `AdamsBashforth(steps)` (spectral version, by the root condition).
        version: "spectral" or "lyapunov" (see the module's summary).
        theta: contraction asked for in each step, in `(0, 1]`; below 1 only for "lyapunov", where
            very small steps do not contract that much: see `StepLimit.lower`.
        weight: `P` of the norm; by default `balanced_weight`. `modal_weight` gives a sharper norm
            where the roots are apart.
        m: number of position constraints, if the gains do not tell.
        r: number of velocity constraints, likewise.

    Returns:
        `StepLimit`.

    Raises:
        TypeError: for a solver in the place of the stabilization.
        ValueError: for an `H` that is not Hurwitz, a contraction that no step reaches, or a solver
            without a stability function; with the numbers.
    """
    if isinstance(stabilization, diffrax.AbstractSolver):
        raise TypeError(
            f"step_limit: {type(stabilization).__name__} is a solver and comes second: "
            "step_limit(stabilization, solver)."
        )
    H = perturbation_matrix(stabilization, m, r)
    roots = np.linalg.eigvals(H)
    worst = roots[np.argmax(roots.real)]
    if worst.real >= 0:
        raise ValueError(
            f"the constraint perturbation equations are not asymptotically stable: their root "
            f"{root_text(worst)} has no negative real part, so that no step contracts. Change the "
            "gains."
        )
    if version == "spectral":
        if theta != 1.0:
            raise ValueError("theta below 1 is for version='lyapunov'; the spectral radius is <1.")
        return spectral_limit(roots, solver)
    if version != "lyapunov":
        raise ValueError(f"version must be 'spectral' or 'lyapunov'; got {version!r}.")
    return _in_norm(H, roots, solver, theta, weight)


def spectral_limit(roots, solver) -> StepLimit:
    """The largest step that contracts modes of given roots, and every step below it.

    Args:
        roots: complex, with negative real parts [1/s], shape `(p,)`.
        solver: as for `step_limit`.

    Returns:
        `StepLimit`.
    """
    roots = np.asarray(roots, complex)
    limits = _first_exits(lambda h, z: amplification(solver, h * z), roots)
    i = int(np.argmin(limits))
    root = complex(roots[i]) if np.isfinite(limits[i]) else None
    return StepLimit(float(limits[i]), 0.0, "spectral", 1.0, None, root)


def _first_exits(factor: Callable, roots: np.ndarray) -> np.ndarray:
    """The first step of each root at which `factor(h, root)` exceeds 1; infinite without one."""
    # All roots at once: a certificate has hundreds, and calls cost more than numbers.
    steps = STEP_GRID / np.abs(roots)[:, None]
    bad = factor(steps, roots[:, None]) > 1 + 8 * np.finfo(float).eps
    some, first = np.flatnonzero(bad.any(axis=1)), bad.argmax(axis=1)
    limits = np.full(len(roots), np.inf)
    if some.size:
        low, high = steps[some, np.maximum(first[some] - 1, 0)], steps[some, first[some]]
        limits[some] = bisect(lambda h: factor(h, roots[some]), low, high, 1.0)
    return limits


def _in_norm(H, roots, solver, theta, weight) -> StepLimit:
    if is_multistep(solver):
        raise ValueError("the Lyapunov-norm version is for one-step methods; use 'spectral'.")
    weight = balanced_weight(H) if weight is None else lyapunov_certificate(H=H, weight=weight).m

    def factor(h):
        return np.array(
            [weighted_norm(step_matrix(H, x, solver), weight) for x in np.atleast_1d(h)]
        )

    steps = STEP_GRID[::8] / np.abs(roots).max()
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} in the Lyapunov norm: the best is "
            f"{values[i]:.6g}, at a step of {steps[i]:.6g} s. Ask for less, or change the gains."
        )
    limit, lower = contracting_interval(factor, steps, values, theta)
    return StepLimit(limit, lower, "Lyapunov norm", theta, weight, None)


def contracting_interval(factor: Callable, steps, values, theta: float) -> tuple[float, float]:
    """Ends `(largest, smallest)` of the first interval of steps with `factor <= theta`.

    Args:
        factor: contraction of steps, array in and out.
        steps: increasing [s].
        values: `factor` of them.
        theta: the contraction asked for; one of `values` is not above it.
    """
    first = int(np.flatnonzero(values <= theta)[0])
    bad = np.flatnonzero((values > theta) & (np.arange(len(steps)) > first))
    limit = bisect(factor, steps[bad[0] - 1], steps[bad[0]], theta) if bad.size else np.inf
    lower = 0.0
    if first:
        lower = bisect(lambda h: 2 * theta - factor(h), steps[first - 1], steps[first], theta)
    return float(limit), float(lower)


def bisect(factor: Callable, low, high, theta: float):
    """Where `factor` crosses `theta` upwards between two numbers, or many pairs, to round-off."""
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        beyond = np.reshape(factor(middle), np.shape(middle)) > theta
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return low


def weighted_norm(matrix, weight) -> float:
    """Operator norm of `matrix` in `|y|^2 = y^T weight y`.

    Args:
        matrix: shape `(p, p)`.
        weight: SPD, shape `(p, p)`.

    Returns:
        The norm.
    """
    factor = np.linalg.cholesky(weight)
    # |R|_P = |L^T R L^-T|_2 with P = L L^T.
    return float(np.linalg.norm(np.linalg.solve(factor, (factor.T @ matrix).T), 2))


def balanced_weight(H) -> np.ndarray:
    """Lyapunov weight of `H` in units in which its rows and columns are of even size.

    With `D` the diagonal similarity that balances `H`, and `m` the weight of `lyapunov_certificate`
    for `D^-1 H D`, it is `D^-1 m D^-1`. A root of 100 1/s makes the third derivative a million
    times larger than the residual; without the scaling the norm would be blind to the one or the
    other.

    Args:
        H: Hurwitz matrix, shape `(p, p)`.

    Returns:
        SPD, shape `(p, p)`.

    Raises:
        ValueError: for an `H` that is not Hurwitz.
    """
    # Imported here: it takes longer than the rest of the package, which does not need it.
    from scipy.linalg import matrix_balance

    H = np.asarray(H, np.float64)
    balanced, (scale, _) = matrix_balance(H, permute=False, separate=True)
    return lyapunov_certificate(H=balanced).m / np.outer(scale, scale)


def modal_weight(H) -> np.ndarray:
    """`P` of the norm in which `|R(hH)|_P` is the spectral radius: that of the modes of `H`.

    Args:
        H: constant, with simple roots, shape `(p, p)`.

    Returns:
        SPD, shape `(p, p)`.

    Raises:
        ValueError: for roots that (nearly) coincide, as those of critical damping do.
    """
    H = np.asarray(H, np.float64)
    _, vectors = np.linalg.eig(H)
    condition = np.linalg.cond(vectors)
    if not condition < 1e6:
        raise ValueError(
            f"the modes of H are dependent (condition {condition:.3g}): two roots coincide. Use "
            "the m of lyapunov_certificate(H=H)."
        )
    # Modes come in conjugate pairs, so that the product is real.
    weight = np.linalg.inv(np.real(vectors @ vectors.conj().T))
    return (weight + weight.T) / 2
