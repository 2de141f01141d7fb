"""A run between its rows: Hermite's cubics through `q` with the slopes `v`."""

from typing import Any, NamedTuple

import numpy as np

from jaxdae.diagnosis import passages
from jaxdae.plotting import readout

# Of more rows than this the straight lines between them are shorter than a picture shows.
MANY_ROWS = 1000
_POINTS_BETWEEN_ROWS = 8


class Moving(NamedTuple):
    """Coordinates and velocities of a run at times of one's own.

    Args:
        ts: times [s], shape `(times,)`, increasing, or decreasing where it runs backwards.
        q: coordinates, shape `(times, n)`.
        v: velocities, shape `(times, n)`.
    """

    ts: np.ndarray
    q: np.ndarray
    v: np.ndarray


def rows_of(trajectory: Any) -> Moving | None:
    """The finished rows, one at each time; `None` without velocities, or where times turn."""
    ts, q = readout.times(trajectory), readout.rows(trajectory, trajectory.q)
    v = getattr(trajectory, "coordinate_rates", getattr(trajectory, "v", None))
    v = None if v is None else readout.rows(trajectory, v)
    if v is None or v.shape != q.shape:
        return None
    once = np.append(np.diff(ts) != 0.0, True)[: ts.size]
    return Moving(ts[once], q[once], v[once]) if in_order(ts[once]) else None


def in_order(ts: np.ndarray) -> bool:
    """Whether times only increase, or only decrease."""
    steps = np.diff(ts)
    return bool((steps > 0.0).all() or (steps < 0.0).all())


def at(rows: Moving, ts: np.ndarray) -> Moving:
    """The run at given times, which lie between its first row and its last.

    The velocities are the derivatives of the cubics, and pass through those of the rows.
    """
    if rows.ts.size == 1:
        return Moving(ts, *(np.repeat(x, ts.size, axis=0) for x in rows[1:]))
    way = 1.0 if rows.ts[-1] > rows.ts[0] else -1.0
    i = np.searchsorted(way * rows.ts, way * ts, side="right") - 1
    i = np.clip(i, 0, rows.ts.size - 2)
    steps = rows.ts[i + 1] - rows.ts[i]
    parts = ((ts - rows.ts[i]) / steps)[:, None, None]
    ends = lambda x: (x[i][:, None], x[i + 1][:, None])  # noqa: E731
    q, v = passages.hermite(np, steps[:, None, None], parts, ends(rows.q), ends(rows.v))
    return Moving(ts, q[:, 0], v[:, 0])


def fine_size(rows: int) -> int:
    """How many times `finely` gives of so many rows."""
    return (rows - 1) * _POINTS_BETWEEN_ROWS + 1 if 1 < rows <= MANY_ROWS else rows


def finely(rows: Moving) -> Moving:
    """Few rows with times between them, so that straight lines show the cubics; many as they are.

    Rows stay as they are, to the last bit.
    """
    if not 1 < rows.ts.size <= MANY_ROWS:
        return rows
    parts = np.arange(_POINTS_BETWEEN_ROWS) / _POINTS_BETWEEN_ROWS
    fine = (rows.ts[:-1, None] + parts * np.diff(rows.ts)[:, None]).ravel()
    found = at(rows, np.append(fine, rows.ts[-1]))
    for x, row in zip(found, rows, strict=True):
        x[::_POINTS_BETWEEN_ROWS] = row
    return found
