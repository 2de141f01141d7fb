r"""Branches of configurations that nearly meet, and whether a run stayed on its own.

A singular position is a critical point of the constraints, `y^T J = 0`, with `phi = 0`. With
`phi = g y` there instead, the constraints miss it by the gap `g`: next to it the configurations are

    z^T H z / 2 = -g,        J z = 0,        H = d^2 (y^T phi) / dq^2,

a hyperboloid. Where it has two sheets no motion leads from one to the other, however near they are.
A run that changes its sheet has not resolved the position.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.diagnosis.failure import declared
from jaxdae.diagnosis.findings import Finding, NearSingularity
from jaxdae.diagnosis.singularities import curve
from jaxdae.formulations.base import solves
from jaxdae.linalg.saddle_point import SingularityRobust
from jaxdae.systems import State
from jaxdae.systems.kinematics import at_rest

# Steps of Newton's method, and the change after which it has converged.
_STEPS, _CONVERGED = 12, 1e-9
# Equations of the critical point below this part of the largest depend on the others.
_DEPENDENT = 1e-9
# A gap below so many machine epsilons, beside coordinates of size one, is none.
_NO_GAP = 8
# Directions with less than this part of the largest curvature have none.
_FLAT = 1e-6
# A row shows its sheet where this part of the curvature across outweighs that along.
_CLEAR = 0.5
# Reactions fade by less than 1e-4 where the least relative singular value is so many dampings.
_FADED = 5
# How many rows from the position on each side are asked for their sheet.
_ROWS = 12


class Crossing(NamedTuple):
    """What a run made of a near-singular position.

    Args:
        time: nearest to it [s].
        gap: changes of the constraints with which it would be singular, in their units, shape
            `(m,)`.
        distance: of the configurations to it, in units of the coordinates; zero where it is a
            singular position to round-off.
        kept: whether the run stayed on its sheet; `None` where there is one sheet only, or rows do
            not show it.
        nearest: time [s] and coordinates of the configuration that is nearest to it.
        rank: of the Jacobian of the position constraints along the run.
    """

    time: float
    gap: np.ndarray
    distance: float
    kept: bool | None
    nearest: tuple[float, np.ndarray]
    rank: int


def crossing(system, found: NearSingularity, ts, states, scales, rank: int) -> Crossing | None:
    """What a run made of a near-singular position; `None` where there is no critical point by it.

    Velocity constraints take no part: `scales`, of the rows of `J`, and the rank along the run are
    those of the position constraints.
    """
    i = int(np.clip(np.searchsorted(ts, found.time) - 1, 0, ts.size - 2))
    part = np.reshape((found.time - ts[i]) / (ts[i + 1] - ts[i]), (1, 1))
    q = curve(np, ts, states.q, states.v, np.array([i]), part)[1][0, 0]
    speed = float(np.linalg.norm(states.v[i])) or 1.0
    point = _critical(system, found.time, q, speed, scales, rank)
    if point is None:
        return None
    form = _form(point, rank)
    if form is None:
        return None
    curvatures, directions = form
    eps = float(np.finfo(states.q.dtype).eps)
    none = abs(point.gap) <= _NO_GAP * eps * max(1.0, float(np.abs(q).max()))
    distance = 0.0 if none else float(np.sqrt(2 * abs(point.gap) / curvatures[-1]))
    ways = np.append(states.q - point.q, speed * (np.asarray(ts) - point.t)[:, None], axis=1)
    parts = ways[:, : len(directions)] @ directions
    weights = curvatures * parts**2
    clear = weights[:, -1] > _CLEAR * np.where(curvatures < 0, -weights, 0.0).sum(axis=1)
    # The time may be that of a row, and the sheets may be nearest on either side of it.
    first, last = max(i - 1, 0), min(i + 2, ts.size - 1)
    before = [k for k in range(first, max(first - _ROWS, -1), -1) if clear[k]]
    after = [k for k in range(last, min(last + _ROWS, ts.size)) if clear[k]]
    kept = None
    # Configurations are in two sheets, apart in the direction of the last.
    two_sheets = (curvatures > 0).sum() == 1 and (curvatures < 0).any()
    if not none and two_sheets and before and after:
        kept = bool(parts[before[0], -1] * parts[after[0], -1] > 0)
    nearest = point.q + distance * directions[: point.q.size, -1]
    gap = np.abs(point.gap * point.y / scales)
    return Crossing(found.time, gap, distance, kept, (point.t, nearest), rank)


def other_branch(system, formulation, found: Crossing) -> Finding:
    """A run that left the branch of its motion: when, how near the branches are, what to do."""
    name, gap = _gap(system, found)
    message = (
        f"the run changed to another branch of the configurations at t = {found.time:.6g} s, to "
        f"which no motion leads: it passed a near-singular position at the distance "
        f"{found.distance:.3g} in the coordinates ({gap}), nearer than "
        f"{type(formulation).__name__} resolves with these steps. {_remedy(formulation)}; or, if "
        "the constraints are meant to be singular there, give them parameters with which they are."
    )
    return Finding(message, found.distance, found.time, (name,), subject="rank")


def faded_reactions(system, formulation, found: Crossing) -> Finding | None:
    """A near-singular position at which damping fades the reactions; `None` where it does not."""
    t, q = found.nearest
    damping = _damping(formulation, q.dtype)
    if damping is None:
        return None
    q = jnp.asarray(q)
    rest = State(q, at_rest(system, t, q))
    mass, jac, *_ = declared(system, t, rest)
    jac = jac[: found.gap.size]
    try:
        response = jac @ np.linalg.solve(mass, jac.T)
    except np.linalg.LinAlgError:
        return None
    ratio = np.linalg.eigvalsh(response)[-found.rank] / np.diagonal(response).max()
    least = float(np.sqrt(max(ratio, 0.0)))
    if least > _FADED * damping:
        return None
    name, gap = _gap(system, found)
    message = (
        f"the run passed a near-singular position at t = {found.time:.6g} s at the distance "
        f"{found.distance:.3g} in the coordinates ({gap}). The least "
        f"relative singular value {least:.2g} of the constraints there is not above "
        f"{_FADED:g} times the damping {damping:.2g}, below which their reactions fade: the motion "
        f"after it may be wrong. {_remedy(formulation)}."
    )
    return Finding(message, least, found.time, (name,), subject="rank")


def _gap(system, found: Crossing) -> tuple[str, str]:
    """Name of the constraint that misses the position by most, and by how much, in words."""
    k, labels = int(np.argmax(found.gap)), system.labels()
    unit = labels.constraint_units[k] if k < len(labels.constraint_units) else ""
    name, change = labels.constraint(k), f"{found.gap[k]:.3g}" + (f" {unit}" if unit else "")
    return name, f"it would be singular if constraint {name!r} changed by {change}"


def _damping(formulation, dtype) -> float | None:
    """That of a solve for singular positions."""
    for solve in solves(formulation):
        if isinstance(solve, SingularityRobust):
            return solve.damping_in(dtype)
    return None


def _remedy(formulation) -> str:
    if _damping(formulation, np.float64) is not None:
        return (
            "Take adaptive steps, a tighter tolerance and a smaller damping, or Multipliers "
            "without SingularityRobust()"
        )
    if formulation.capabilities.weight is not None:
        return "Take a larger alpha, or Multipliers with adaptive steps"
    return "Take adaptive steps and a tighter tolerance, or smaller steps"


class _Point(NamedTuple):
    """A critical point: coordinates, time, combination of scaled constraints, their gap, slopes."""

    q: np.ndarray
    t: float
    y: np.ndarray
    gap: float
    jac: np.ndarray
    hessian: np.ndarray


def _critical(system, t, q, speed: float, scales, rank: int) -> _Point | None:
    """The critical point next to a state, by Newton's method; time counts by the way made in it."""
    dtype = q.dtype
    call = lambda x, y, g: jax.device_get(  # noqa: E731
        _equations(system, *(jnp.asarray(a, dtype) for a in (scales, speed, x, y, g)))
    )
    x = np.append(q, speed * t)
    jac = np.asarray(call(x, np.zeros(scales.size), 0.0).jac)[:, :-1]
    if not np.isfinite(jac).all():
        return None
    y = np.linalg.svd(jac)[0][:, rank - 1]
    g = 0.0
    change = np.inf
    for _ in range(_STEPS):
        now = call(x, y, g)
        if not (np.isfinite(now.residual).all() and np.isfinite(now.slopes).all()):
            return None
        step = np.linalg.lstsq(now.slopes, -now.residual, rcond=_DEPENDENT)[0]
        change = float(np.abs(step).max())
        x, y, g = x + step[: x.size], y + step[x.size : -1], g + float(step[-1])
        if change <= max(_CONVERGED, 10 * float(np.finfo(dtype).eps)) * (1 + np.abs(x).max()):
            break
    else:
        return None
    now = call(x, y, g)
    digits = float(np.finfo(dtype).eps) ** 0.5
    if float(np.abs(now.residual).max()) > digits * (1 + np.abs(x).max()):
        return None
    return _Point(x[:-1], float(x[-1]) / speed, y, g, now.jac, now.hessian)


class _CriticalPoint(NamedTuple):
    """Those of a critical point, with their slopes, and what describes the constraints there."""

    residual: Any
    slopes: Any
    jac: Any
    hessian: Any


@jit
def _equations(system, scales, speed, x, y, g) -> _CriticalPoint:
    def phi(x):
        return scales * system.position_constraints(x[-1] / speed, x[:-1])

    def residual(z):
        x, y, g = z[: -scales.size - 1], z[-scales.size - 1 : -1], z[-1]
        slopes = jax.grad(lambda x: y @ phi(x))(x)
        return jnp.concatenate([phi(x) - g * y, slopes, (y @ y - 1)[None]])

    z = jnp.concatenate([x, y, g[None]])
    hessian = jax.hessian(lambda x: y @ phi(x))(x)
    return _CriticalPoint(residual(z), jax.jacfwd(residual)(z), jax.jacfwd(phi)(x), hessian)


def _form(point: _Point, rank: int) -> tuple[np.ndarray, np.ndarray] | None:
    """The quadratic form of a critical point; `None` where it allows no configurations.

    Its curvatures, rising, signed so that configurations have a positive sum; and unit vectors in
    the directions that the constraints allow, of coordinates and, where it matters, time.
    """
    jac, hessian = point.jac, point.hessian
    if not jac[:, -1].any() and not hessian[-1].any():  # nothing depends on time
        jac, hessian = jac[:, :-1], hessian[:-1, :-1]
    allowed = np.linalg.svd(jac)[2][rank - 1 :].T
    if allowed.shape[1] == 0:
        return None
    values, vectors = np.linalg.eigh(-np.copysign(1.0, point.gap) * allowed.T @ hessian @ allowed)
    least = _FLAT * np.abs(values).max()
    if not values[-1] > least:
        return None
    return np.where(np.abs(values) > least, values, 0.0), allowed @ vectors
