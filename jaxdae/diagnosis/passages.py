"""Near-singular positions that a run passed, between its rows as well: bounds, then a search."""

from typing import Any, NamedTuple

import numpy as np

# Singular values below this part of the largest do not count for the rank of a mechanism.
RANK = 1e-6
# A least singular value below this part of its median is a near-singular position; below the other
# one it is a place at which a run is asked for its branch.
NEAR, AROUND = 1e-2, 0.1
# Places within an interval, and how often the search closes in on the lowest.
_PLACES, _ROUNDS = 16, 4
# How often intervals are halved before, for warnings, to leave out those where bounds suffice.
_HALVINGS = 5
# What trapezoids of the velocities may miss of a change: about 1 rad of an oscillation in a row.
_RESOLVED = 0.1


class Passage(NamedTuple):
    """A near-singular position that a run passed.

    Args:
        time: [s].
        value: least singular value met, rows scaled by their largest lengths along the run.
    """

    time: float
    value: float


def row_scales(xp, jac):
    """Inverse of the largest length of each row of `J` along the run, shape `(c, 1)`."""
    lengths = xp.max(xp.sqrt(xp.sum(jac * jac, axis=-1)), axis=0)
    return 1.0 / xp.where(lengths > 0, lengths, 1.0)[:, None]


def hermite(xp, h, s, q, v):
    """Cubic Hermite interpolation of `q`, and its rate, at a part `s` of steps `h`.

    Args:
        xp: `numpy` or `jax.numpy`.
        h: steps, shape `(k, 1, 1)`.
        s: parts of them, shape `(k, places, 1)`.
        q: coordinates at both ends, each `(k, 1, n)`.
        v: velocities there.
    """
    (q0, q1), (v0, v1) = q, v
    position = (
        (1 + 2 * s) * (1 - s) ** 2 * q0
        + s * (1 - s) ** 2 * h * v0
        + s**2 * (3 - 2 * s) * q1
        + s**2 * (s - 1) * h * v1
    )
    step = xp.where(h == 0, 1.0, h)
    rate = 6 * s * (s - 1) * (q0 - q1) / step + (1 - s) * (1 - 3 * s) * v0 + s * (3 * s - 2) * v1
    return position, rate


class Search(NamedTuple):
    """What the search for the least singular value between rows works on.

    Args:
        xp: `numpy` or `jax.numpy`.
        values: least singular values from times, coordinates and velocities, first axis rows.
        ts: times of the rows.
        q: coordinates there.
        v: velocities there.
    """

    xp: Any
    values: Any
    ts: Any
    q: Any
    v: Any


def close_in(search: Search, intervals):
    """The lowest least singular value in each of some intervals between rows, and its time."""
    xp, i = search.xp, intervals
    h = search.ts[i + 1] - search.ts[i]
    ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
    middle, width = 0.5 * xp.ones_like(h), 0.5
    results: Any = None
    for _ in range(_ROUNDS):
        places = xp.linspace(-width, width, _PLACES)
        s = xp.clip(middle[:, None] + places[None], 0.0, 1.0)
        q, v = hermite(xp, h[:, None, None], s[..., None], ends(search.q), ends(search.v))
        t = search.ts[i][:, None] + s * h[:, None]
        flat = lambda x: x.reshape(-1, *x.shape[2:])  # noqa: E731
        values = search.values(flat(t), flat(q), flat(v)).reshape(s.shape)
        best = xp.argmin(values, axis=1)[:, None]
        pick = lambda x, k=best: xp.take_along_axis(x, k, axis=1)[:, 0]  # noqa: E731
        middle, width = pick(s), 2 * width / (_PLACES - 1)
        results = (pick(values), pick(t))
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


def resolved(xp, ts, q, v):
    """Which intervals are short enough for the Hermite curve to follow the motion.

    There the trapezoidal rule on the velocities nearly gives the change of the coordinates.
    """
    h = (ts[1:] - ts[:-1])[:, None]
    largest = lambda x: xp.max(xp.abs(x), axis=1)  # noqa: E731
    missed = largest(q[1:] - q[:-1] - 0.5 * h * (v[1:] + v[:-1]))
    return missed <= _RESOLVED * xp.maximum(largest(h * v[1:]), largest(h * v[:-1]))


def _singular_values(jac: np.ndarray) -> np.ndarray:
    """In decreasing order; from the smaller Gram matrix, exact to half the digits."""
    small = jac if jac.shape[1] <= jac.shape[2] else jac.transpose(0, 2, 1)
    squares = np.linalg.eigvalsh(small @ small.transpose(0, 2, 1))
    return np.sqrt(np.maximum(squares, 0.0))[:, ::-1]


def near(passages: list[Passage], typical: float) -> list[Passage]:
    """Those of some positions at which the Jacobian is nearly singular."""
    return [x for x in passages if x.value < NEAR * typical]


def rank_along(every: np.ndarray) -> int:
    """Rank of the scaled Jacobians of a run by their singular values, shape `(rows, k)`."""
    # Off the constraints superfluous ones have singular values, too.
    return int((every > RANK * every.max(initial=0.0)).sum(axis=1).max(initial=0))


def find_passages(
    jacobians, ts, states, jac, held=None, part: float = NEAR
) -> tuple[list[Passage], float]:
    """Near-singular positions passed, and the median of the least singular value.

    Args:
        jacobians: `J` from times, coordinates and velocities, first axis rows.
        ts: times [s].
        states: `(q, v, w)` at the rows.
        jac: `J` there.
        held: rank that the run held; by default the largest of the rows.
        part: of the median below which the least singular value counts as one.
    """
    ts = np.asarray(ts)
    scales = row_scales(np, jac)
    every = _singular_values(jac * scales)
    rank = rank_along(every) if held is None else int(held)
    rows, typical = every[:, rank - 1], float(np.median(every[:, rank - 1]))
    level = part * typical

    def sampled(t, q, v):
        scaled = jacobians(t, q, v) * scales
        return _singular_values(scaled)[:, rank - 1], scaled

    results = [Passage(float(t), float(x)) for t, x in zip(ts, rows, strict=True) if x < level]
    pieces = _Pieces.from_end_to_end(
        np.flatnonzero(resolved(np, ts, states.q, states.v)), rows, jac * scales
    )
    for _ in range(_HALVINGS):
        pieces = pieces.halved(ts, states, sampled, level)
    close = np.unique(pieces.intervals)
    if close.size:
        values = lambda *x: sampled(*x)[0]  # noqa: E731
        least, times = close_in(Search(np, values, ts, states.q, states.v), close)
        results += [
            Passage(float(t), float(x)) for x, t in zip(least, times, strict=True) if x < level
        ]
    return _distinct(results, ts), typical


class _Pieces(NamedTuple):
    """Parts of intervals between rows in which a near-singular position may be.

    Args:
        intervals: numbers of the rows before them, shape `(k,)`.
        parts: both ends, as parts of the intervals, shape `(2, k)`.
        values: least singular values there, shape `(2, k)`.
        jac: scaled `J` there, shape `(2, k, c, n)`.
    """

    intervals: np.ndarray
    parts: np.ndarray
    values: np.ndarray
    jac: np.ndarray

    @classmethod
    def from_end_to_end(cls, i, values, jac) -> "_Pieces":
        """Intervals from end to end."""
        parts = np.stack([np.zeros(i.size), np.ones(i.size)])
        return cls(i, parts, np.stack([values[i], values[i + 1]]), np.stack([jac[i], jac[i + 1]]))

    def halved(self, ts, states, sampled, level: float) -> "_Pieces":
        """Both halves of those that may go below a level."""
        changes = np.sqrt(np.sum((self.jac[1] - self.jac[0]) ** 2, axis=(1, 2)))
        keep = weyl(self.values[0], self.values[1], changes) < level
        i, parts, values, jac = self.intervals[keep], *(x[:, keep] for x in self[1:])
        if i.size == 0:
            return _Pieces(i, parts, values, jac)
        s = 0.5 * (parts[0] + parts[1])
        ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
        h = (ts[i + 1] - ts[i])[:, None, None]
        q, v = hermite(np, h, s[:, None, None], ends(states.q), ends(states.v))
        least, middle = sampled(ts[i] + s * (ts[i + 1] - ts[i]), q[:, 0], v[:, 0])
        split = lambda x, y: np.stack(  # noqa: E731
            [np.concatenate([x[0], y]), np.concatenate([y, x[1]])]
        )
        result = split(parts, s), split(values, least), split(jac, middle)
        return _Pieces(np.concatenate([i, i]), *result)


def _distinct(result: list[Passage], ts) -> list[Passage]:
    """Of those in neighbouring intervals the lowest, in order of time."""
    distinct: list[Passage] = []
    gap = 2.0 * float(np.max(np.abs(np.diff(ts)), initial=0.0))
    for one in sorted(result, key=lambda x: x.value):
        if all(abs(one.time - other.time) > gap for other in distinct):
            distinct.append(one)
    return sorted(distinct, key=lambda x: x.time)
