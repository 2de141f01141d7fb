"""Constraints that depend on each other or contradict each other along a run, between rows too.

Near-singular positions are found by bounds, then a search. Constraints may also agree at the start
alone: a run then goes on with a residual that no motion could avoid, that which remains at the
point next to a state that satisfies the constraints best.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.diagnosis.curves import hermite, resolved
from jaxdae.diagnosis.findings import Finding, NearSingularity
from jaxdae.diagnosis.starts import start_rank
from jaxdae.formulations.base import solves
from jaxdae.simulation.problem import ROUND_OFF, START_TOLERANCE
from jaxdae.systems import constraint_residuals, State
from jaxdae.systems.independence import unsatisfied
from jaxdae.systems.kinematics import coordinate_rate, velocities_of

# Singular values below this part of the largest do not count for the rank of a mechanism.
RANK = 1e-6
# A least singular value below this part of its median is a near-singular position; below the other
# one it is a place at which a run is asked for its branch.
NEAR, AROUND = 1e-2, 0.1
# Places within an interval, and how often the search closes in on the lowest.
_PLACES, _ROUNDS = 16, 4
# How often intervals are halved before, for warnings, to leave out those where bounds suffice.
_HALVINGS = 5
# Rows of a block: a default run is one, and places between rows are few.
BLOCK, _FEW = 256, 64
# In how many intervals values of members of a batch are searched, and those of large mechanisms;
# places and rounds there, enough to find less than a hundredth of what rows a few steps away have.
_INTERVALS, _FEWER = 4, (8, 3)
# Operations up to which warnings search by bounds, and up to which they search at all; the values
# can be had for any size.
MOST_WORK, MOST_SEARCHED = 5_000_000, 500_000_000
# Constraints are compatible next to a state whose least singular value is above this part of the
# largest, and above so many times the distance to the constraints.
_INDEPENDENT, _PER_DISTANCE = 1e-2, 100.0
# Constraints with less than this part of the largest residual take no part.
_PART = 0.1
# Most operations of the search for incompatible constraints between rows.
_MOST_BETWEEN = 20_000_000


def as_numpy(tree):
    """The same with arrays of NumPy: `jax.device_get` for few and small ones, in less time."""
    return jax.tree.map(np.asarray, tree)


def in_blocks(function, size: int, *rows):
    """A compiled function of arrays of rows, in blocks of one shape, as NumPy arrays."""
    leaves, structure = jax.tree.flatten(rows)
    count, parts = len(leaves[0]), []
    for i in range(0, count, size):
        take = np.minimum(np.arange(i, i + size), count - 1)
        parts.append(as_numpy(function(*structure.unflatten([x[take] for x in leaves]))))
    joined = parts[0] if len(parts) == 1 else jax.tree.map(lambda *x: np.concatenate(x), *parts)
    return jax.tree.map(lambda x: x[:count], joined)


def jacobian_at(system, t, q, v):
    """Constraint Jacobian, shape `(c, n)`."""
    return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)


@jit(options=BRIEFLY, interpreted=2)
def _jacobians_block(system, ts, q, v):
    one = lambda t, q, v: jacobian_at(system, t, q, velocities_of(system, t, q, v))  # noqa: E731
    return jax.vmap(one)(ts, q, v)


def row_scales(xp, jac):
    """Inverse of the largest length of each row of `J` along the run, shape `(c, 1)`."""
    lengths = xp.max(xp.sqrt(xp.sum(jac * jac, axis=-1)), axis=0)
    return 1.0 / xp.where(lengths > 0, lengths, 1.0)[:, None]


def curve(xp, ts, q, v, i, s):
    """Times, coordinates and rates at parts `s (k, places)` of intervals `i (k,)` between rows."""
    h = (ts[i + 1] - ts[i])[:, None]
    ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
    return ts[i][:, None] + s * h, *hermite(xp, h[..., None], s[..., None], ends(q), ends(v))


def _close_in(xp, values, ts, q, v, i, search: tuple[int, int] = (_PLACES, _ROUNDS)):
    """The lowest of some values in each of some intervals between rows, and its time."""
    middle, width = 0.5 * xp.ones_like(ts[i]), 0.5
    results: Any = None
    count, rounds = search
    for _ in range(rounds):
        places = xp.linspace(-width, width, count)
        s = xp.clip(middle[:, None] + places[None], 0.0, 1.0)
        t, *state = curve(xp, ts, q, v, i, s)
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        found = values(flat(t), *map(flat, state)).reshape(s.shape)
        best = xp.argmin(found, axis=1)[:, None]
        pick = lambda x, k=best: xp.take_along_axis(x, k, axis=1)[:, 0]  # noqa: E731
        middle, width = pick(s), 2 * width / (count - 1)
        results = (pick(found), pick(t))
    return results


def lower_bounds(xp, values, jac):
    """About the lowest that the values can be between rows, by Weyl's inequality.

    A singular value changes at most by the norm of the change of the matrix, whose path is taken
    for half as long again as its chord.
    """
    change = xp.sqrt(xp.sum((jac[1:] - jac[:-1]) ** 2, axis=(1, 2)))
    return weyl(values[:-1], values[1:], change)


def weyl(one, other, change):
    """The lowest between two values that change at most by one half more than `change`."""
    return 0.5 * (one + other - 1.5 * change)


def _singular_values(jac: np.ndarray) -> np.ndarray:
    """In decreasing order; from the smaller Gram matrix, exact to half the digits."""
    small = jac if jac.shape[1] <= jac.shape[2] else jac.transpose(0, 2, 1)
    squares = np.linalg.eigvalsh(small @ small.transpose(0, 2, 1))
    return np.sqrt(np.maximum(squares, 0.0))[:, ::-1]


def near(singularities: list[NearSingularity], typical: float) -> list[NearSingularity]:
    """Those of some positions at which the Jacobian is nearly singular."""
    return [x for x in singularities if x.value < NEAR * typical]


def rank_along(every: np.ndarray) -> int:
    """Rank of the scaled Jacobians of a run by their singular values, shape `(rows, k)`."""
    # Off the constraints superfluous ones have singular values, too.
    return int((every > RANK * every.max(initial=0.0)).sum(axis=1).max(initial=0))


def estimated_bounds(ts, values):
    """About the lowest that the values can be between rows, by the slopes of intervals next to it.

    Near a singular position the least singular value is proportional to the distance from it.

    Args:
        ts: times [s], shape `(rows,)`.
        values: at the rows.

    Returns:
        For each interval between rows.
    """
    h = np.diff(ts)
    if h.size == 0:
        return h
    slopes = np.pad(np.abs(np.diff(values) / np.where(h == 0, np.inf, h)), 1, mode="edge")
    steepest = np.maximum(slopes[1:-1], np.maximum(slopes[:-2], slopes[2:]))
    return weyl(values[:-1], values[1:], np.abs(h) * steepest)


def _lowest_of_each_fall(bounds, rows, level: float) -> np.ndarray:
    """Of neighbouring intervals that may be below a level that with the lowest bound.

    They are few, those with the lowest bounds; where a row is below the level, none.
    """
    below = np.flatnonzero(bounds < level)
    falls = np.split(below, np.flatnonzero(np.diff(below) > 1) + 1) if below.size else []
    falls = [x for x in falls if min(rows[x].min(), rows[x + 1].min()) >= level]
    lowest = sorted((int(x[np.argmin(bounds[x])]) for x in falls), key=lambda i: bounds[i])
    return np.array(lowest[:_INTERVALS], int)


def find_near_singularities(
    jacobians, ts, states, jac, held=None, part: float = NEAR, *, bounded: bool = True
) -> tuple[list[NearSingularity], float]:
    """Near-singular positions passed, and the median of the least singular value.

    Args:
        jacobians: `J` from times, coordinates and velocities, first axis rows.
        ts: times [s].
        states: `(q, v, w)` at the rows.
        jac: `J` there.
        held: rank that the run held; by default the largest of the rows.
        part: of the median below which the least singular value counts as one.
        bounded: whether bounds by the Jacobians say which intervals are searched, in place of
            estimates by the values at the rows.
    """
    ts, q, v = np.asarray(ts), states.q, states.v
    scales = row_scales(np, jac)
    every = _singular_values(jac * scales)
    rank = rank_along(every) if held is None else int(held)
    rows = every[:, rank - 1]
    # A run may stay at a singular position for most of its time.
    typical = float(np.median(rows[rows >= NEAR * rows.max()]))
    level = part * typical

    def sampled(t, q, v):
        scaled = jacobians(t, q, v) * scales
        return _singular_values(scaled)[:, rank - 1], scaled

    least, times = rows, ts
    if bounded:
        close = np.flatnonzero(lower_bounds(np, rows, jac * scales) < level)
    else:
        close = _lowest_of_each_fall(estimated_bounds(ts, rows), rows, level)
    if close.size:  # mostly there are none
        close = close[resolved(np, ts, q, v)[close]]
        if bounded:
            close = _close_intervals(sampled, (ts, q, v), (rows, jac * scales), close, level)
    if close.size:
        search = (_PLACES, _ROUNDS) if bounded else _FEWER
        between = _close_in(np, lambda *x: sampled(*x)[0], ts, q, v, close, search)
        least, times = (np.concatenate(x) for x in zip((rows, ts), between, strict=True))
    below = np.flatnonzero(least < level)
    return _distinct(
        [NearSingularity(float(times[k]), float(least[k])) for k in below], ts
    ), typical


def _close_intervals(sampled, motion: tuple[Any, Any, Any], at_rows, i, level: float):
    """Those of some intervals between rows in which a singular value may be below a level.

    Args:
        sampled: the value and the scaled Jacobian, from times, coordinates and rates.
        motion: times, coordinates and rates of the rows.
        at_rows: the value and the scaled Jacobian there.
        i: the intervals.
        level: the value that is looked for.
    """
    # Parts of intervals: where they begin and end, values and Jacobians at both ends.
    pieces = (
        np.stack([np.zeros(i.size), np.ones(i.size)]),
        *(np.stack([x[i], x[i + 1]]) for x in at_rows),
    )
    for _ in range(_HALVINGS):
        _, values, there = pieces
        changes = np.sqrt(np.sum((there[1] - there[0]) ** 2, axis=(1, 2)))
        keep = weyl(values[0], values[1], changes) < level
        i, pieces = i[keep], tuple(x[:, keep] for x in pieces)
        if i.size == 0:
            break
        s = 0.5 * (pieces[0][0] + pieces[0][1])
        middle = s, *sampled(*(x[:, 0] for x in curve(np, *motion, i, s[:, None])))
        pieces = tuple(
            np.stack([np.concatenate([x[0], y]), np.concatenate([y, x[1]])])
            for x, y in zip(pieces, middle, strict=True)
        )
        i = np.concatenate([i, i])
    return np.unique(i)


def _distinct(result: list[NearSingularity], ts) -> list[NearSingularity]:
    """Of those in neighbouring intervals the lowest, in order of time."""
    distinct: list[NearSingularity] = []
    gap = 2.0 * float(np.max(np.abs(np.diff(ts)), initial=0.0))
    for one in sorted(result, key=lambda x: x.value):
        if all(abs(one.time - other.time) > gap for other in distinct):
            distinct.append(one)
    return sorted(distinct, key=lambda x: x.time)


def least_singular_value(system, ts, states, held=None):
    """Least of the r-th singular values along a run, for `Trajectory.least_singular_value`.

    Rows that were not reached have been replaced. The rank is `held`, or the largest of the rows.
    """
    jac = jax.vmap(lambda t, s: jacobian_at(system, t, s.q, s.v))(ts, states)
    count, c, n = jac.shape
    if min(c, n) == 0:
        return jnp.asarray(jnp.inf, ts.dtype)
    scales = row_scales(jnp, jac)
    every = jnp.linalg.svd(jac * scales, compute_uv=False)
    rank = jnp.max(jnp.sum(every > RANK * jnp.max(every), axis=1)) if held is None else held
    counted = jnp.arange(every.shape[1]) < rank
    least = lambda s: jnp.min(jnp.where(counted, s, jnp.inf), axis=-1)  # noqa: E731

    def values(t, q, v):
        one = lambda t, q, v: jacobian_at(system, t, q, velocities_of(system, t, q, v))  # noqa: E731
        result = jax.vmap(one)(t, q, v)
        return least(jnp.linalg.svd(result * scales, compute_uv=False))

    rows = least(every)
    if count == 1:
        return rows[0]
    rates = jax.vmap(lambda t, s: coordinate_rate(system, t, s.q, s.v))(ts, states)
    known = resolved(jnp, ts, states.q, rates)
    bounds = jnp.where(known, lower_bounds(jnp, rows, jac * scales), jnp.inf)
    lowest = jnp.argsort(bounds)[:_INTERVALS]
    between, _ = _close_in(jnp, values, ts, states.q, rates, lowest)
    between = jnp.where(known[lowest], between, jnp.inf)
    return jnp.minimum(jnp.min(rows), jnp.min(between))


def search_cost(shape: tuple[int, ...]) -> int:
    """Operations of a search among Jacobians of a shape `(rows, c, n)`, but for a factor."""
    count, c, n = shape
    return count * c * c * n


def near_singularities_along(
    system, formulation, ts, states, jac=None, part: float = NEAR, most: float = MOST_WORK
) -> tuple[list[NearSingularity], float]:
    """Near-singular positions passed, and the median of the least singular value.

    Args:
        system: what was simulated.
        formulation: by which equations.
        ts: times of the rows [s], the start first.
        states: coordinates `q`, and as `v` their rates.
        jac: constraint Jacobians there, where they are known.
        part: of the median below which the least singular value counts as one.
        most: operations of a search by bounds; where more are needed, estimates by the values at
            the rows say where to search, and above `MOST_SEARCHED` nothing is searched.
    """

    def jacobians(t, q, v):
        return in_blocks(lambda *x: _jacobians_block(system, *x), _FEW, t, q, v)

    jac = jacobians(ts, states.q, states.v) if jac is None else jac
    cost = search_cost(jac.shape)
    if not 0 < cost <= max(most, MOST_SEARCHED):
        return [], np.inf
    held = held_by(system, formulation, ts, states)
    return find_near_singularities(jacobians, ts, states, jac, held, part, bounded=cost <= most)


def held_by(system, formulation, ts, states) -> int | None:
    """The rank that a run held, or that of its start where constraints depend on each other."""
    held = next((x.held_rank for x in solves(formulation)), None)
    if held is not None:
        return int(held)
    if formulation.capabilities.independent_constraints:
        return None  # a start where they are not would have been refused
    q = jnp.asarray(states.q[0])
    t = jnp.asarray(ts[0], q.dtype)
    v = velocities_of(system, t, q, jnp.asarray(states.v[0]))
    start = start_rank(system, t, State(q, v))
    return start.rank if start.dependent and start.regular else None


def singularity_finding(
    formulation, passed: list[NearSingularity], typical: float
) -> Finding | None:
    """Near-singular positions that a formulation is not made for; `None` without any."""
    if not passed:
        return None
    least = min(passed, key=lambda x: x.value)
    times = ", ".join(f"{x.time:.6g}" for x in passed[:5]) + (", …" if len(passed) > 5 else "")
    message = (
        f"the run passed {len(passed)} near-singular position(s), at t = {times} s: the least "
        f"singular value of the constraint Jacobian, rows scaled by their largest length, fell to "
        f"{least.value:.3g} at t = {least.time:.6g} s (median {typical:.3g}). There multipliers "
        f"grow without bound, and {type(formulation).__name__} may lose the branch or the energy "
        "without a sign of it in the residuals: use Multipliers(..., solve=SingularityRobust())."
    )
    return Finding(message, least.value, least.time, passable=True, subject="rank")


def incompatibility(system, ts, states, jac, residual) -> Finding | None:
    """Constraints that cannot all be satisfied along a run; `None` where they can be.

    Examined are rows next to which constraints may depend on each other, and places between rows
    that follow the motion. `residual` is the largest of each row itself, at both levels.
    """
    count, c, n = jac.shape
    if not 0 < count * c * c * n <= MOST_WORK:
        return None
    ts, scales = np.asarray(ts), row_scales(np, jac)
    distance = np.asarray(residual) * scales.max()
    doubtful = ~_surely_independent(jac * scales, distance)
    size = 1.0 + max(float(np.abs(x).max(initial=0.0)) for x in (states.q, states.v))
    round_off = size * float(np.finfo(states.q.dtype).eps) ** ROUND_OFF
    rows = np.flatnonzero(doubtful & (distance > round_off))
    places = _between_rows(ts, states, np.flatnonzero(doubtful[1:] & doubtful[:-1]), jac.shape)
    if rows.size + places[0].size == 0:
        return None
    rows = np.concatenate([[0], rows])  # the start, for what is allowed there
    every = zip((ts, states.q, states.v), places, strict=True)
    times, q, v = (np.concatenate([a[rows], b]) for a, b in every)
    remaining = lambda *x: _remaining_block(system, *x)  # noqa: E731
    phi, phi_dot = in_blocks(remaining, BLOCK, times, q, v)
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
    positions, time, sizes = phi.shape[1], float(times[worst]), np.abs(residuals[worst])
    labels, largest = system.labels(), int(np.argmax(sizes))
    number = lambda k: k if k < positions else k - positions  # noqa: E731
    involved = sorted({number(k) for k in np.flatnonzero(sizes > _PART * sizes[largest])})
    constraints = tuple(map(labels.constraint, involved))
    level = "position" if largest < positions else "velocity"
    message = (
        f"the constraints cannot all be satisfied from t = {first:.6g} s on: at t = {time:.6g} s, "
        f"next to the state of the run, no state leaves less than about {amount:.3g} of "
        f"constraint {labels.constraint(number(largest))!r} at {level} level ({allowed:.1g} would "
        "be explained by round-off and the start); involved: "
        f"{', '.join(map(repr, constraints))}. They contradict each other there, and what the run "
        "does is a compromise of its formulation, not a motion under these constraints: correct "
        "the constraints, drop one of those involved, or end the run before."
    )
    return Finding(message, amount, time, constraints, subject="constraints")


@jit(options=BRIEFLY, interpreted=2)
def _remaining_block(system, ts, q, v):
    def one(t, q, v):
        result = unsatisfied(system, t, State(q, velocities_of(system, t, q, v)))
        return result.phi, result.phi_dot

    return jax.vmap(one)(ts, q, v)


def _surely_independent(scaled: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Rows whose Jacobian shows that constraints can be satisfied next to them."""
    if scaled.shape[1] > scaled.shape[2]:
        return np.zeros(len(scaled), bool)
    values = _singular_values(scaled)
    return values[:, -1] > np.maximum(_INDEPENDENT, _PER_DISTANCE * distance) * values[:, 0]


def _between_rows(ts, states, intervals, shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, coordinates and velocities at places in intervals that follow the motion."""
    none = ts[:0], states.q[:0], states.v[:0]
    if intervals.size == 0:
        return none
    i = intervals[resolved(np, ts, states.q, states.v)[intervals]]
    _, c, n = shape
    places = min(_PLACES, int(_MOST_BETWEEN / max(1, i.size * c * c * n * 12)))
    if i.size == 0 or places == 0:
        return none
    s = np.broadcast_to((np.arange(places) + 0.5) / places, (i.size, places))
    t, q, v = curve(np, ts, states.q, states.v, i, s)
    flat = lambda x: x.reshape(-1, x.shape[-1]).astype(states.q.dtype)  # noqa: E731
    return t.reshape(-1).astype(ts.dtype), flat(q), flat(v)
