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

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.lyapunov import linear_certificate
from jaxdae.control.stabilizers import AbstractServoStabilizer
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.formulations.stabilization import (
    AbstractStabilization,
    Baumgarte,
    LinearStabilization,
    perturbation_block,
)
from jaxdae.solvers.stability_functions import (
    AdamsBashforth,
    amplification,
    step_matrix,
    tableau,
)

# Steps tried, relative to the inverse of each rate: from almost none to far beyond any explicit
# method's region. Logarithmic, so that the first crossing is found to 1 %, then bisected.
_GRID = np.geomspace(1e-7, 1e5, 2800)
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


def perturbation_matrix(stabilization, m: int | None = None, r: int | None = None) -> np.ndarray:
    """`H` of the constraint perturbation equations `dy/dt = H y`, `y = (f, df/dt, g)`.

    Args:
        stabilization: `Baumgarte`, `LinearStabilization`, any callable stabilization that is linear
            in the residuals, or the matrix itself.
        m: number of position constraints; by default that of the gains, 1 for scalars.
        r: number of velocity constraints; by default that of the gains, 0 without any.

    Returns:
        Shape `(2m+r, 2m+r)`.

    Raises:
        ValueError: for gains that depend on time or state, or a stabilization of servo-constraints.
    """
    if isinstance(stabilization, AbstractServoStabilizer):
        raise ValueError(
            f"{type(stabilization).__name__} stabilizes servo-constraints, whose matrix depends on "
            "their relative degrees: give ServoConstraint.perturbation_matrix(t, q, v, w)."
        )
    if isinstance(stabilization, AbstractFormulation):
        raise ValueError(
            f"{type(stabilization).__name__} is a formulation: give its stabilization, or the "
            "matrix that its perturbation_matrix(system, t, state) returns."
        )
    if not callable(stabilization):
        return _finite(np.asarray(stabilization, np.float64))
    if m is None and isinstance(stabilization, Baumgarte) and stabilization.K_D is None:
        m = 0  # velocity constraints alone
    m = _count(stabilization, ("K_D", "K_P", "K10", "K11"), 1) if m is None else m
    r = _count(stabilization, ("Gamma", "K22"), 0) if r is None else r
    if isinstance(stabilization, AbstractStabilization):
        stabilization.check(m, r)

    def matrix(t, y):
        law: Callable = stabilization
        return np.asarray(perturbation_block(law, t, y, y, y, m), np.float64)

    zero = jnp.zeros(2 * m + r)
    H = _finite(matrix(0.0, zero))
    if isinstance(stabilization, AbstractStabilization):
        return H
    # A user's own: the same at another time and state, and far from zero, or it has no one matrix.
    probe = jnp.cos(1.0 + jnp.arange(zero.size, dtype=zero.dtype))
    away = np.abs(matrix(0.7, probe) - H).max(initial=0.0)
    if away > 1e-6 * np.abs(H).max(initial=0.0):
        raise ValueError(
            f"the stabilization has no constant matrix: its derivatives differ by {away:.3g} from "
            "one time and state to another. Give the matrix at the state that matters, or the "
            "samples along a motion to contraction_along."
        )
    return H


def _finite(H: np.ndarray) -> np.ndarray:
    if not np.isfinite(H).all():
        raise ValueError("the constraint perturbation equations have entries that are not finite.")
    return H


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
        solver: a Runge-Kutta solver of diffrax or `jaxdae.solvers`, by its own tableau, or
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
        ValueError: for an `H` that is not Hurwitz, a contraction that no step reaches, or a solver
            without a tableau; with the numbers.
    """
    H = perturbation_matrix(stabilization, m, r)
    roots = np.linalg.eigvals(H)
    worst = roots[np.argmax(roots.real)]
    if worst.real >= 0:
        raise ValueError(
            f"the constraint perturbation equations are not asymptotically stable: their root "
            f"{worst:.6g} has no negative real part, so that no step contracts. Change the gains."
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
    limits = np.array([_first_exit(lambda h, z=z: amplification(solver, h * z), z) for z in roots])
    i = int(np.argmin(limits))
    root = complex(roots[i]) if np.isfinite(limits[i]) else None
    return StepLimit(float(limits[i]), 0.0, "spectral", 1.0, None, root)


def _first_exit(factor: Callable, root) -> float:
    """The first step at which `factor(h)` exceeds 1."""
    steps = _GRID / abs(root)
    bad = np.flatnonzero(factor(steps) > 1 + 8 * np.finfo(float).eps)
    if not bad.size:
        return np.inf
    return _bisect(factor, steps[max(bad[0] - 1, 0)], steps[bad[0]], 1.0)


def _in_norm(H, roots, solver, theta, weight) -> StepLimit:
    if isinstance(solver, AdamsBashforth):
        raise ValueError("the Lyapunov-norm version is for one-step methods; use 'spectral'.")
    weight = balanced_weight(H) if weight is None else linear_certificate(H, weight).m

    def factor(h):
        return np.array(
            [weighted_norm(step_matrix(H, x, solver), weight) for x in np.atleast_1d(h)]
        )

    steps = _GRID[::8] / np.abs(roots).max()
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} in the Lyapunov norm: the best is "
            f"{values[i]:.6g}, at a step of {steps[i]:.6g} s. Ask for less, or change the gains."
        )
    limit, lower = _interval(factor, steps, values, theta)
    return StepLimit(limit, lower, "Lyapunov norm", theta, weight, None)


def _interval(factor, steps, values, theta) -> tuple[float, float]:
    """Ends `(largest, smallest)` of the first interval of steps with `factor <= theta`."""
    first = int(np.flatnonzero(values <= theta)[0])
    bad = np.flatnonzero((values > theta) & (np.arange(len(steps)) > first))
    limit = _bisect(factor, steps[bad[0] - 1], steps[bad[0]], theta) if bad.size else np.inf
    lower = 0.0
    if first:
        lower = _bisect(lambda h: 2 * theta - factor(h), steps[first - 1], steps[first], theta)
    return float(limit), float(lower)


def _bisect(factor, low, high, theta) -> float:
    """Where `factor` crosses `theta` upwards."""
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        beyond = bool(np.ravel(factor(middle))[0] > theta)
        low, high = (low, middle) if beyond else (middle, high)
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

    With `D` the diagonal similarity that balances `H`, and `m` the weight of `linear_certificate`
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
    return linear_certificate(balanced).m / np.outer(scale, scale)


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
            "the weight of linear_certificate(H)."
        )
    # Modes come in conjugate pairs, so that the product is real.
    weight = np.linalg.inv(np.real(vectors @ vectors.conj().T))
    return (weight + weight.T) / 2


def two_stage_matrix(H, dH_dt, h: float) -> np.ndarray:
    """`I + h H + h^2 (H^2 + dH/dt) / 2`: two-stage methods of order 2 with gains that vary.

    The condition of [Mukharlyamov2019, section 4]: its norm at most `theta < 1`. It is the step
    matrix of every two-stage method of order 2 up to terms of order `h^3`.

    Args:
        H: shape `(p, p)`.
        dH_dt: rate of `H` along the motion, shape `(p, p)`.
        h: step [s].

    Returns:
        Shape `(p, p)`.
    """
    H, dH_dt = np.asarray(H, float), np.asarray(dH_dt, float)
    return np.eye(len(H)) + h * H + 0.5 * h**2 * (H @ H + dH_dt)


class Contraction(NamedTuple):
    """Contraction of the violation along a motion.

    Args:
        ts: times, shape `(times,)`.
        norms: norm of the step matrix at each, shape `(times,)`.
        worst: the largest.
        at: its time [s].
        contracting: whether it is at most `theta`.
    """

    ts: np.ndarray
    norms: np.ndarray
    worst: float
    at: float
    contracting: bool


def contraction_along(H: Callable, ts, h: float, *, weight, solver=None, theta: float = 1.0):
    """Norms of the step matrices at samples of a motion, for gains that depend on state and time.

    Args:
        H: `H(t)`, shape `(p, p)`, traceable; for gains that depend on the state, through the motion
            (an interpolation of the trajectory).
        ts: sampled times [s], shape `(times,)`.
        h: step [s].
        weight: `P` of the norm, SPD, shape `(p, p)`.
        solver: a Runge-Kutta solver, whose own stages sample `H`; by default the formula of
            `two_stage_matrix`, with the exact `dH/dt`.
        theta: contraction asked for.

    Returns:
        `Contraction`.
    """
    ts = np.asarray(ts, np.float64)
    norms = _norms_along(jax.jit(H), ts, h, weight, solver)
    i = int(np.argmax(norms))
    return Contraction(ts, norms, float(norms[i]), float(ts[i]), bool(norms[i] <= theta))


def step_limit_along(H: Callable, ts, *, weight, solver=None, theta: float = 1.0) -> StepLimit:
    """The largest step that contracts the violation at every sample of a motion.

    For gains that depend on state and time, where the spectrum of `H` at single states proves
    nothing: one norm that every step makes smaller does [Mukharlyamov2019, section 4].

    Args:
        H: as for `contraction_along`; of a run with dense output `sol` for example
            `lambda t: formulation.perturbation_matrix(system, t, sol.evaluate(t))`.
        ts: sampled times [s], shape `(times,)`; of each step size those are taken from which a step
            ends before the last of them.
        weight: `P` of the norm, SPD, shape `(p, p)`.
        solver: as for `contraction_along`.
        theta: contraction asked for in each step, in `(0, 1]`; very small steps do not contract by
            less than 1: see `StepLimit.lower`.

    Returns:
        `StepLimit`; infinite if every step that fits contracts.

    Raises:
        ValueError: when no step contracts at all samples, with the best one and the time at fault.
    """
    H, ts = jax.jit(H), np.asarray(ts, np.float64)
    if ts.ndim != 1 or ts.size < 2 or not (np.diff(ts) > 0).all():
        raise ValueError("step_limit_along needs two sampled times or more, in increasing order.")
    if not 0 < theta <= 1:
        raise ValueError(f"theta must be in (0, 1]; got {theta}.")
    rate = max(np.abs(np.linalg.eigvals(sample)).max() for sample in _samples(H, ts))
    if not rate > 0:
        raise ValueError("all roots of H are zero along the motion: no step contracts.")

    def at(h):
        return ts[ts + h <= ts[-1]]

    def factor(h):
        steps = np.atleast_1d(h)
        return np.array([_norms_along(H, at(x), x, weight, solver).max() for x in steps])

    steps = _GRID[400:2000:16] / rate
    steps = steps[steps <= ts[-1] - ts[0]]
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        worst = contraction_along(H, at(steps[i]), steps[i], weight=weight, solver=solver)
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} along the whole motion: the best is "
            f"{values[i]:.6g}, with a step of {steps[i]:.6g} s, at t = {worst.at:.6g} s. Take "
            "another weight, or change the gains there."
        )
    limit, lower = _interval(factor, steps, values, theta)
    return StepLimit(limit, lower, "Lyapunov norm along a motion", theta, weight, None)


def _norms_along(H, ts, h: float, weight, solver) -> np.ndarray:
    """Norm of the step matrix at each sample."""
    if solver is None:
        rates = _samples(lambda t: jax.jvp(H, (t,), (jnp.ones_like(t),))[1], ts)
        pairs = zip(_samples(H, ts), rates, strict=True)
        matrices = (two_stage_matrix(sample, rate, h) for sample, rate in pairs)
    else:
        nodes = tableau(solver)[2]
        stages = [_samples(H, ts + c * h) for c in nodes]
        at = dict(zip(nodes.tolist(), stages, strict=True))
        matrices = (step_matrix(lambda c, i=i: at[c][i], h, solver) for i in range(ts.size))
    return np.array([weighted_norm(matrix, weight) for matrix in matrices])


def _samples(H, ts) -> np.ndarray:
    return np.asarray(jax.vmap(H)(jnp.asarray(ts)), np.float64)


def _count(stabilization, names, default: int) -> int:
    """Number of constraints that the shapes of the gains tell."""
    if not isinstance(stabilization, Baumgarte | LinearStabilization):
        return default
    gains = [getattr(stabilization, name, None) for name in names]
    sizes = [np.shape(gain)[0] if np.ndim(gain) else 1 for gain in gains if gain is not None]
    return max(sizes, default=default)
