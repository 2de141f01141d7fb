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
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxdae.analysis.lyapunov import lyapunov_certificate
from jaxdae.control.stabilizers import AbstractServoStabilizer
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.formulations.stabilization import AbstractStabilization, perturbation_block
from jaxdae.reprs import shown
from jaxdae.stability.stability_functions import (
    amplification,
    is_multistep,
    step_matrix,
    tableau,
)
from jaxdae.tables import root_text

# Steps tried, relative to the inverse of each rate: from almost none to far beyond any explicit
# method's region. Logarithmic, so that the first crossing is found to 1 %, then bisected.
_STEP_GRID = np.geomspace(1e-7, 1e5, 2800)
_BISECTIONS = 60
# Distances along the imaginary axis in steps: below the first no method of order 8 or less departs
# from 1 by more than round-off, above the last every explicit method has left its region.
_AXIS = np.geomspace(1e-3, 1e2, 4000)
# Damping, as a fraction of the frequency, below which round-off hides where a method begins to
# amplify: such a root counts as undamped.
_LIGHT = 1e-6
# Above the round-off of a stability function near 1, of the order of its number of stages.
_VISIBLE = 1e-12


def perturbation_matrix(stabilization, m: int | None = None, r: int | None = None) -> np.ndarray:
    """`H` of the constraint perturbation equations `dy/dt = H y`, `y = (phi, dphi/dt, g)`.

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
    m, r = _counts(stabilization, m, r)
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
            "one time and state to another. Give the matrix at the state that matters, or take "
            "step_limit_along."
        )
    return H


def _finite(H: np.ndarray) -> np.ndarray:
    if not np.isfinite(H).all():
        raise ValueError("the constraint perturbation equations have entries that are not finite.")
    return H


def _counts(stabilization, m: int | None, r: int | None) -> tuple[int, int]:
    """Numbers of constraints: those given, or those that the shapes of the gains tell."""
    declares = isinstance(stabilization, AbstractStabilization)
    positions, velocities = stabilization.counts() if declares else (None, None)
    positions = 1 if positions is None else positions
    return positions if m is None else m, (velocities or 0) if r is None else r


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

    Roots have negative real parts.
    """
    roots = np.asarray(roots, complex)
    limits = _first_exits(lambda h, z: amplification(solver, h * z), roots)
    i = int(np.argmin(limits))
    root = complex(roots[i]) if np.isfinite(limits[i]) else None
    return _spectral(float(limits[i]), root)


def _spectral(limit: float, root: complex | None) -> StepLimit:
    return StepLimit(limit, 0.0, "spectral", 1.0, None, root)


def _first_exits(factor: Callable, roots: np.ndarray) -> np.ndarray:
    """The first step of each root at which `factor(h, root)` exceeds 1; infinite without one."""
    # All roots at once: a certificate has hundreds, and calls cost more than numbers.
    steps = _STEP_GRID / np.abs(roots)[:, None]
    bad = factor(steps, roots[:, None]) > 1 + 8 * np.finfo(float).eps
    some, first = np.flatnonzero(bad.any(axis=1)), bad.argmax(axis=1)
    limits = np.full(len(roots), np.inf)
    if some.size:
        low, high = steps[some, np.maximum(first[some] - 1, 0)], steps[some, first[some]]
        limits[some] = _bisect(lambda h: factor(h, roots[some]), low, high, 1.0)
    return limits


def _in_norm(H, roots, solver, theta, weight) -> StepLimit:
    if is_multistep(solver):
        raise ValueError("the Lyapunov-norm version is for one-step methods; use 'spectral'.")
    weight = balanced_weight(H) if weight is None else lyapunov_certificate(H=H, weight=weight).m

    def factor(h):
        return np.array(
            [weighted_norm(step_matrix(H, x, solver), weight) for x in np.atleast_1d(h)]
        )

    steps = _STEP_GRID[::8] / np.abs(roots).max()
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} in the Lyapunov norm: the best is "
            f"{values[i]:.6g}, at a step of {steps[i]:.6g} s. Ask for less, or change the gains."
        )
    limit, lower = _contracting_interval(factor, steps, values, theta)
    return StepLimit(limit, lower, "Lyapunov norm", theta, weight, None)


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


def step_limit_along(H: Callable, ts, *, weight, solver=None, theta: float = 1.0) -> StepLimit:
    """The largest step that contracts the violation at every sample of a motion.

    For gains that depend on state and time, where the spectrum of `H` at single states proves
    nothing: one norm that every step makes smaller does [Mukharlyamov2019, section 4].

    Args:
        H: `H(t)`, shape `(p, p)`, traceable; for gains that depend on the state, through the
            motion: of a run with dense output `sol` for example
            `lambda t: formulation.perturbation_matrix(system, t, sol.evaluate(t))`.
        ts: sampled times [s], shape `(times,)`; of each step size those are taken from which a step
            ends before the last of them.
        weight: `P` of the norm, SPD, shape `(p, p)`.
        solver: a Runge-Kutta solver, whose own stages sample `H`; by default the formula of
            `two_stage_matrix`, with the exact `dH/dt`.
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

    steps = _STEP_GRID[400:2000:16] / rate
    steps = steps[steps <= ts[-1] - ts[0]]
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        times = at(steps[i])
        worst = times[np.argmax(_norms_along(H, times, steps[i], weight, solver))]
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} all along the motion: the best is "
            f"{values[i]:.6g}, with a step of {steps[i]:.6g} s, at t = {worst:.6g} s. Take "
            "another weight, or change the gains there."
        )
    limit, lower = _contracting_interval(factor, steps, values, theta)
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


def _contracting_interval(factor: Callable, steps, values, theta: float) -> tuple[float, float]:
    """Ends `(largest, smallest)` of the first interval of steps with `factor <= theta`."""
    first = int(np.flatnonzero(values <= theta)[0])
    bad = np.flatnonzero((values > theta) & (np.arange(len(steps)) > first))
    limit = _bisect(factor, steps[bad[0] - 1], steps[bad[0]], theta) if bad.size else np.inf
    lower = 0.0
    if first:
        lower = _bisect(lambda h: 2 * theta - factor(h), steps[first - 1], steps[first], theta)
    return float(limit), float(lower)


def _bisect(factor: Callable, low, high, theta: float):
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


def clean(roots, tolerances) -> NDArray[np.complex128]:
    """Roots with real and imaginary parts below their uncertainty set to zero."""
    roots = np.asarray(roots, np.complex128)
    real = np.where(np.abs(roots.real) <= tolerances, 0.0, roots.real)
    return real + 1j * np.where(np.abs(roots.imag) <= tolerances, 0.0, roots.imag)


def root_limit(solver, roots) -> StepLimit:
    """The largest step for which a method damps what decays and does not amplify what swings.

    Roots, from `clean`, with positive real parts are left out: their motion grows whatever the
    step. Zero roots set no limit. A damping ratio below 1e-6 counts as none. The limit is 0 where
    the method amplifies an undamped oscillation however small the step is.
    """
    roots = np.asarray(roots, np.complex128)
    damped = roots.real < -_LIGHT * np.abs(roots.imag)
    swinging = (roots.real <= 0) & ~damped
    results = [_of_decaying(solver, roots[damped]), _of_swinging(solver, roots[swinging])]
    return min(results, key=lambda x: x.limit)


def growth(solver, roots, h: float) -> float:
    """Largest factor by which a step of size `h` multiplies a part that does not grow itself."""
    roots = np.asarray(roots, np.complex128)
    kept = roots[(roots.real <= 0) & (roots != 0)]
    return float(np.max(amplification(solver, h * kept), initial=0.0))


def _of_decaying(solver, roots) -> StepLimit:
    kept = _distinct(roots[roots.imag >= 0])
    if not kept.size:
        return _spectral(np.inf, None)
    return spectral_limit(kept, solver)


def _of_swinging(solver, roots) -> StepLimit:
    fastest = np.abs(roots.imag).max(initial=0.0)
    if fastest == 0:
        return _spectral(np.inf, None)
    reach = imaginary_reach(solver)
    return _spectral(reach / fastest, 1j * fastest if np.isfinite(reach) else None)


def imaginary_reach(solver) -> float:
    """Length of the imaginary axis, from 0, on which a method does not amplify; 0 to infinity.

    The first visible departure of the factor from 1 decides between methods that amplify at every
    step (Euler, Heun, Adams-Bashforth of two steps) and those that do not.
    """
    excess = amplification(solver, 1j * _AXIS) - 1
    visible = np.flatnonzero(np.abs(excess) > _VISIBLE)
    beyond = np.flatnonzero(excess > _VISIBLE)
    if not beyond.size:
        return np.inf
    if beyond[0] == visible[0]:
        return 0.0
    low, high = _AXIS[beyond[0] - 1 : beyond[0] + 1]
    return float(_bisect(lambda y: amplification(solver, 1j * y), low, high, 1.0))


def _distinct(roots):
    """Roots that differ by more than nine digits."""
    scale = np.abs(roots).max(initial=0.0) or 1.0
    return roots[np.unique(np.round(roots / scale, 9), return_index=True)[1]]
