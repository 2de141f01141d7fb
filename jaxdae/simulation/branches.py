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
from jaxdae.simulation.passages import hermite, Passage

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
        q: coordinates of the critical point, shape `(n,)`.
        t: its time [s].
        strain: `w` of the least singular value `|J w|`, and that value at the least distance.
    """

    time: float
    gap: np.ndarray
    distance: float
    kept: bool | None
    q: np.ndarray
    t: float
    strain: tuple[np.ndarray, float]


def crossing(system, found: Passage, ts, states, scales, rank: int) -> Crossing | None:
    """What a run made of a near-singular position; `None` where there is no critical point by it.

    Args:
        system: the declaration; its velocity constraints take no part.
        found: time of the position.
        ts: times of the rows [s], the start first.
        states: `(q, v, w)` there.
        scales: of the rows of `J`, shape `(m,)`.
        rank: of `J` along the run.
    """
    i = int(np.clip(np.searchsorted(ts, found.time) - 1, 0, max(ts.size - 2, 0)))
    q, speed = _between(found.time, i, ts, states)
    point = _critical(system, found.time, q, speed, scales, rank)
    if point is None:
        return None
    eps = float(np.finfo(states.q.dtype).eps)
    none = abs(point.gap) <= _NO_GAP * eps * max(1.0, float(np.abs(q).max()))
    form = _form(point, rank)
    if form is None:
        return None
    sheets, signs, across, curvature = form
    distance = 0.0 if none else float(np.sqrt(2 * abs(point.gap) / curvature))
    places = np.concatenate([states.q, (speed * (np.asarray(ts) - point.t))[:, None]], axis=1)
    places[:, :-1] -= point.q
    rows = places[:, : across.size] @ signs.directions
    sizes = 0.5 * signs.values * rows**2
    along = np.where(signs.values < 0, -sizes, 0.0).sum(axis=1)
    own = places[:, : across.size] @ across
    clear = 0.5 * curvature * own**2 > _CLEAR * along
    before = [k for k in range(i, max(i - _ROWS, -1), -1) if clear[k]]
    after = [k for k in range(i + 1, min(i + 1 + _ROWS, ts.size)) if clear[k]]
    kept = None
    if not none and sheets == 2 and before and after:
        kept = bool(own[before[0]] * own[after[0]] > 0)
    strain = across[: point.q.size], float(np.sqrt(2 * abs(point.gap) * curvature))
    gap = np.abs(point.gap * point.y / scales)
    return Crossing(found.time, gap, distance, kept, point.q, point.t, strain)


class _Point(NamedTuple):
    """A critical point: coordinates, time, combination of scaled constraints, their gap, slopes."""

    q: np.ndarray
    t: float
    y: np.ndarray
    gap: float
    jac: np.ndarray
    hessian: np.ndarray


def _between(t, i, ts, states) -> tuple[np.ndarray, float]:
    """Coordinates of a run at a time, and the size of its velocities."""
    j = min(i + 1, ts.size - 1)
    h = np.reshape(ts[j] - ts[i], (1, 1, 1))
    s = np.reshape((t - ts[i]) / (ts[j] - ts[i]) if j > i else 0.0, (1, 1, 1))
    ends = lambda x: (x[i][None, None], x[j][None, None])  # noqa: E731
    q, _ = hermite(np, h, s, ends(states.q), ends(states.v))
    return q[0, 0], float(np.linalg.norm(states.v[i])) + float(np.finfo(float).tiny)


def _critical(system, t, q, speed: float, scales, rank: int) -> _Point | None:
    """The critical point next to a state, by Newton's method; time counts by the way made in it."""
    dtype = q.dtype
    call = lambda x, y, g: jax.device_get(  # noqa: E731
        _equations(system, *(jnp.asarray(a, dtype) for a in (scales, speed, x, y, g)))
    )
    x = np.append(q, speed * t)
    jac = np.asarray(call(x, np.zeros(scales.size), 0.0).jac)[:, :-1]
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


class _Equations(NamedTuple):
    """Those of a critical point, with their slopes, and what describes the constraints there."""

    residual: Any
    slopes: Any
    jac: Any
    hessian: Any


@jit
def _equations(system, scales, speed, x, y, g) -> _Equations:
    def phi(x):
        return scales * system.position_constraints(x[-1] / speed, x[:-1])

    def residual(z):
        x, y, g = z[: -scales.size - 1], z[-scales.size - 1 : -1], z[-1]
        slopes = jax.grad(lambda x: y @ phi(x))(x)
        return jnp.concatenate([phi(x) - g * y, slopes, (y @ y - 1)[None]])

    z = jnp.concatenate([x, y, g[None]])
    hessian = jax.hessian(lambda x: y @ phi(x))(x)
    return _Equations(residual(z), jax.jacfwd(residual)(z), jax.jacfwd(phi)(x), hessian)


class _Signs(NamedTuple):
    """Curvatures of the quadratic form along directions that the constraints allow."""

    values: np.ndarray
    directions: np.ndarray


def _form(point: _Point, rank: int):
    """Sheets, curvatures along them, the direction across and its curvature; `None` without."""
    jac, hessian = point.jac, point.hessian
    if not jac[:, -1].any() and not hessian[-1].any():  # nothing depends on time
        jac, hessian = jac[:, :-1], hessian[:-1, :-1]
    allowed = np.linalg.svd(jac)[2][rank - 1 :].T
    values, vectors = np.linalg.eigh(-np.copysign(1.0, point.gap) * allowed.T @ hessian @ allowed)
    if values.size == 0 or not values[-1] > _FLAT * np.abs(values).max():
        return None
    values = np.where(np.abs(values) > _FLAT * np.abs(values).max(), values, 0.0)
    directions = allowed @ vectors
    sheets = 2 if (values > 0).sum() == 1 and (values < 0).any() else 1
    return sheets, _Signs(values, directions), directions[:, -1], float(values[-1])
