"""How many extrema of a motion fall between the rows of a run, where they are too few for it."""

from typing import NamedTuple

import numpy as np

from jaxdae.diagnosis import passages
from jaxdae.plotting.between_rows import finely, Moving

# Rows on either side by which the frequency of an interval is judged.
_AROUND = 8
# Fewer missed than this are not pointed out: the estimate is a mean.
_FEWEST = 3


class Missed(NamedTuple):
    """What rows do not show of a coordinate.

    Args:
        coordinate: its place.
        seen: extrema of the coordinate in the curves drawn through the rows.
        expected: about how many the motion has.
    """

    coordinate: int
    seen: int
    expected: int


def sparse(rows: Moving) -> np.ndarray:
    """Which intervals between rows are too long for a cubic, shape `(times - 1,)`."""
    return ~np.atleast_1d(passages.resolved(np, *rows)) if rows.ts.size > 1 else np.zeros(0, bool)


def missed_extrema(rows: Moving, a: np.ndarray) -> Missed | None:
    """The coordinate of which most extrema are missed; `None` where rows show the motion.

    Where rows lie too far apart for a cubic, velocities pass zero about
    `h / pi mean|a| / mean|v|` times in an interval `h`: of sines, and of normal noise, whose means
    have the ratio of its deviations [Rice1945, section 3.3]. Means are over the rows around it.
    Intervals that resolve the motion are counted as they are drawn.

    Args:
        rows: of a run.
        a: accelerations there, shape `(times, n)`.
    """
    long = sparse(rows)
    if not long.any() or not np.isfinite(a).all():
        return None
    seen = _crossings(rows)
    change, speed = (_around(np.abs(x))[:-1] for x in (a, rows.v))
    rates = change / np.where(speed > 0.0, speed, np.inf)
    rice = np.abs(np.diff(rows.ts))[:, None] * rates / np.pi
    expected = np.where(long[:, None], np.maximum(rice, seen), seen).sum(axis=0)
    found = seen.sum(axis=0)
    i = int(np.argmax(expected - found))
    result = Missed(i, int(found[i]), round(float(expected[i])))
    return result if result.expected - result.seen >= _FEWEST else None


def _crossings(rows: Moving) -> np.ndarray:
    """Changes of sign of the velocities within each interval as it is drawn, `(times - 1, n)`."""
    fine = finely(rows)
    changes = np.diff(np.signbit(fine.v), axis=0).astype(int)
    return changes.reshape(rows.ts.size - 1, -1, rows.v.shape[1]).sum(axis=1)


def _around(x: np.ndarray) -> np.ndarray:
    """Running means over rows."""
    sums = np.concatenate([np.zeros_like(x[:1]), np.cumsum(x, axis=0)])
    i = np.arange(x.shape[0])
    low, high = np.maximum(i - _AROUND, 0), np.minimum(i + _AROUND + 1, x.shape[0])
    return (sums[high] - sums[low]) / (high - low)[:, None]
