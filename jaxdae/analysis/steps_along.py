"""Steps that contract the violation along a motion, for gains that depend on state and time."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.steps import contracting_interval, STEP_GRID, StepLimit, weighted_norm
from jaxdae.reprs import shown
from jaxdae.stability.stability_functions import step_matrix, tableau


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

    def __repr__(self) -> str:
        return shown(self)


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

    steps = STEP_GRID[400:2000:16] / rate
    steps = steps[steps <= ts[-1] - ts[0]]
    values = factor(steps)
    if not (values <= theta).any():
        i = int(np.argmin(values))
        worst = contraction_along(H, at(steps[i]), steps[i], weight=weight, solver=solver)
        raise ValueError(
            f"no step contracts by theta = {theta:.6g} all along the motion: the best is "
            f"{values[i]:.6g}, with a step of {steps[i]:.6g} s, at t = {worst.at:.6g} s. Take "
            "another weight, or change the gains there."
        )
    limit, lower = contracting_interval(factor, steps, values, theta)
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
