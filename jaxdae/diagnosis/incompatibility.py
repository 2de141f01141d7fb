"""Constraints that cannot all be satisfied any more: looked for along a run, said in words.

Constraints may depend on each other at the start, agree there, and contradict each other later. A
run then goes on with a residual that no motion could avoid. That residual is what remains at the
point next to a state that satisfies the constraints best, whatever the formulation and its steps
have made of the state itself.
"""

from typing import NamedTuple

import numpy as np

from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.passages import hermite, resolved, row_scales
from jaxdae.simulation.problem import ROUND_OFF, START_TOLERANCE

# Constraints are compatible next to a state whose least singular value is above this part of the
# largest, and above so many times the distance to the constraints.
_INDEPENDENT, _PER_DISTANCE = 1e-2, 100.0
# Places between two rows.
_PLACES = 16
# Constraints with less than this part of the largest residual take no part.
_PART = 0.1
# Most operations of the search between rows.
_MOST_WORK = 20_000_000


class Incompatibility(NamedTuple):
    """What of the constraints no motion can satisfy.

    Args:
        time: at which it is largest, of those examined [s].
        first: the first of them at which it is more than round-off [s].
        amount: the largest residual that no state near the run avoids there, about.
        residuals: in proportion to those that remain, positions first and then velocities, shape
            `(m + c,)`.
        explained: what round-off and the start explain, of the largest.
    """

    time: float
    first: float
    amount: float
    residuals: np.ndarray
    explained: float


def find_incompatibility(remaining, ts, states, jac, residual) -> Incompatibility | None:
    """Where constraints cannot all be satisfied along a run; `None` where they can be.

    Examined are rows next to which constraints may depend on each other, and places between rows
    that follow the motion.

    Args:
        remaining: `phi (k, m)` and `phi_dot (k, c)` at the points nearest to the constraints, from
            times `(k,)`, coordinates `(k, n)` and velocities there.
        ts: times [s], the start first.
        states: `(q, v, w)` at the rows.
        jac: `J` there, shape `(rows, c, n)`.
        residual: the largest of each row itself, at both levels, shape `(rows,)`.
    """
    ts, scales = np.asarray(ts), row_scales(np, jac)
    distance = np.asarray(residual) * scales.max()
    doubtful = ~_surely_independent(jac * scales, distance)
    size = 1.0 + max(float(np.abs(x).max(initial=0.0)) for x in (states.q, states.v))
    round_off = size * float(np.finfo(states.q.dtype).eps) ** ROUND_OFF
    rows = np.flatnonzero(doubtful & (distance > round_off))
    places = _between(ts, states, np.flatnonzero(doubtful[1:] & doubtful[:-1]), jac.shape)
    if rows.size + places[0].size == 0:
        return None
    rows = np.concatenate([[0], rows])  # the start, for what is allowed there
    every = zip((ts, states.q, states.v), places, strict=True)
    times, q, v = (np.concatenate([a[rows], b]) for a, b in every)
    phi, phi_dot = remaining(times, q, v)
    lengths = 1.0 / scales[:, 0]
    lengths = np.concatenate([lengths[: phi.shape[1]], lengths])
    residuals = np.concatenate([phi, phi_dot], axis=1)
    parts = np.abs(residuals) / lengths
    # A point that is not finite says nothing.
    largest = np.where(np.isfinite(parts).all(axis=1), parts.max(axis=1), 0.0)
    explained = round_off + 2 * min(float(largest[0]), START_TOLERANCE * size)
    over = times[largest > explained]
    if over.size == 0:
        return None
    worst = int(np.argmax(largest))
    first = float(over[np.argmin(np.abs(over - ts[0]))])
    allowed = explained * float(lengths[np.argmax(parts[worst])])
    # The run itself may be nearer than the point that was found.
    own = float(residual[rows[worst]]) if worst < rows.size else np.inf
    amount = min(float(np.abs(residuals[worst]).max()), own)
    return Incompatibility(float(times[worst]), first, amount, residuals[worst], allowed)


def finding_of(system, found: Incompatibility, positions: int) -> Finding:
    """An incompatibility: what remains, when, of which constraints, and what to do.

    Args:
        system: whose constraints they are.
        found: along a run.
        positions: number of position constraints.
    """
    labels, sizes = system.labels(), np.abs(found.residuals)
    number = lambda k: k if k < positions else k - positions  # noqa: E731
    worst = int(np.argmax(sizes))
    involved = sorted({number(k) for k in np.flatnonzero(sizes > _PART * sizes[worst])})
    constraints = tuple(map(labels.constraint, involved))
    names = ", ".join(map(repr, constraints))
    level = "position" if worst < positions else "velocity"
    message = (
        f"the constraints cannot all be satisfied from t = {found.first:.6g} s on: at "
        f"t = {found.time:.6g} s, next to the state of the run, no state leaves less than about "
        f"{found.amount:.3g} of constraint {labels.constraint(number(worst))!r} at {level} level "
        f"({found.explained:.1g} would be explained by round-off and the start); involved: "
        f"{names}. They contradict each other there, and what the run does is a compromise of its "
        "formulation, not a motion under these constraints: correct the constraints, drop one of "
        "those involved, or end the run before."
    )
    return Finding(message, found.amount, found.time, constraints)


def _surely_independent(scaled: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Rows whose Jacobian shows that constraints can be satisfied next to them."""
    if scaled.shape[1] > scaled.shape[2]:
        return np.zeros(len(scaled), bool)
    values = np.linalg.svd(scaled, compute_uv=False)
    return values[:, -1] > np.maximum(_INDEPENDENT, _PER_DISTANCE * distance) * values[:, 0]


def _between(ts, states, intervals, shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, coordinates and velocities at places in intervals that follow the motion."""
    none = ts[:0], states.q[:0], states.v[:0]
    if intervals.size == 0:
        return none
    i = intervals[resolved(np, ts, states.q, states.v)[intervals]]
    _, c, n = shape
    places = min(_PLACES, int(_MOST_WORK / max(1, i.size * c * c * n * 12)))
    if i.size == 0 or places == 0:
        return none
    s = (np.arange(places) + 0.5) / places
    h = (ts[i + 1] - ts[i])[:, None]
    ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
    parts = np.broadcast_to(s[None, :, None], (i.size, places, 1))
    q, v = hermite(np, h[..., None], parts, ends(states.q), ends(states.v))
    flat = lambda x: x.reshape(-1, x.shape[-1]).astype(states.q.dtype)  # noqa: E731
    return (ts[i][:, None] + s * h).reshape(-1).astype(ts.dtype), flat(q), flat(v)
