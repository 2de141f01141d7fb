"""What a picture needs to know of a run: its finished rows, curves between them, failure, names."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdae.diagnosis import curves
from jaxdae.results.naming import (
    common_unit as common_unit,
    label_field as label_field,
    per_second as per_second,
)

_SUPERSCRIPTS = str.maketrans({"2": "²", "3": "³"})
# A run that blew up is drawn up to here: beyond, squares of constraint residuals overflow.
BLOWN_UP = 1e30
# Of more rows than this the straight lines between them are shorter than a picture shows.
MANY_ROWS = 1000
_POINTS_BETWEEN_ROWS = 8


def check_quantities(quantities: Sequence[str], known: Iterable[str]) -> None:
    """Refuse quantities that cannot be drawn, or none."""
    unknown = [quantity for quantity in quantities if quantity not in known]
    if unknown or not quantities:
        raise ValueError(
            f"cannot draw the quantities {', '.join(map(repr, unknown)) or '()'}; "
            f"choose from {', '.join(map(repr, known))}"
        )


def named(trajectories: Any) -> dict[str, Any]:
    """One trajectory, or a mapping from names to trajectories, as a mapping."""
    if not isinstance(trajectories, Mapping):
        return {"": trajectories}
    if not trajectories:
        raise ValueError("there is nothing to draw: the mapping of trajectories is empty")
    return dict(trajectories)


def times(trajectory: Any) -> np.ndarray:
    """Times [s] of the rows that belong to the run, shape `(rows,)`."""
    ts = np.asarray(trajectory.ts)
    if ts.ndim != 1:
        raise ValueError(
            f"one trajectory is drawn at a time, but ts has shape {ts.shape}; "
            f"pick one of the batch first, trajectory[{', '.join('0' * (ts.ndim - 1))}], or draw "
            "all of it with plot_batch"
        )
    return ts[: finished_rows(trajectory)]


def velocities_are_rates(trajectory: Any) -> bool:
    """Whether velocities are rates of coordinates, as by default."""
    return getattr(trajectory, "velocities_are_rates", True)


def finished(ts: Any, *states: Any) -> np.ndarray:
    """Whether rows are finite, and all before them, shape of `ts`."""
    alive = np.isfinite(ts)
    for x in states:
        alive &= (np.abs(x) < BLOWN_UP).all(axis=-1)
    return np.logical_and.accumulate(alive, axis=-1)


def finished_rows(trajectory: Any) -> int:
    """Number of leading rows with a finite time and finite coordinates."""
    if not hasattr(trajectory, "q"):  # differential-algebraic equations
        return int(finished(np.asarray(trajectory.ts), flat(trajectory, trajectory.y)).sum())
    q = np.asarray(trajectory.q)
    return int(finished(trajectory.ts, q, np.asarray(getattr(trajectory, "v", q))).sum())


def flat(trajectory: Any, tree: Any) -> np.ndarray:
    """Rows of the arrays of a pytree side by side, shape `(times, k)`."""
    import jax  # which stored runs of systems need not

    count = np.size(trajectory.ts)
    leaves = [np.asarray(x).reshape(count, -1) for x in jax.tree.leaves(tree)]
    return np.concatenate([np.zeros((count, 0)), *leaves], axis=1)


def rows(trajectory: Any, values: Any) -> np.ndarray:
    """The finished rows of `values`, with time first and everything else in one axis."""
    values = np.asarray(values)[: finished_rows(trajectory)]
    return values[:, None] if values.ndim == 1 else values


def failure_time(trajectory: Any) -> float | None:
    """Last finished time [s] of a failed run, or `None` for a run that succeeded.

    A run counts as failed when it says so, or when a row with a finite time is not finite itself.
    """
    ts = np.asarray(trajectory.ts)
    count = finished_rows(trajectory)
    broken = count < ts.size and bool(np.isfinite(ts[count]))
    if bool(np.all(trajectory.success)) and not broken:
        return None
    return float(ts[count - 1]) if count else float("nan")


def get_labels(trajectory: Any, labels: Any = None) -> Any:
    """The given labels, else those of the trajectory or of its system, else `None`."""
    labels = getattr(trajectory, "labels", None) if labels is None else labels
    system = getattr(trajectory, "system", None)
    return system.labels() if labels is None and system is not None else labels


def with_unit(name: str, unit: str) -> str:
    """`name [unit]` with `m^2` as `m²`, or the name alone when the unit is not known."""
    for digit in "23":
        unit = unit.replace(f"^{digit}", digit.translate(_SUPERSCRIPTS))
    return f"{name} [{unit}]" if unit else name


class Moving(NamedTuple):
    """Coordinates and velocities of a run at times of one's own.

    Between rows a run is on Hermite's cubics through `q` with the slopes `v`.

    Args:
        ts: times [s], shape `(times,)`, increasing, or decreasing where it runs backwards.
        q: coordinates, shape `(times, n)`.
        v: velocities, shape `(times, n)`.
    """

    ts: np.ndarray
    q: np.ndarray
    v: np.ndarray


def moving(trajectory: Any) -> Moving | None:
    """The finished rows, one at each time; `None` without velocities, or where times turn."""
    ts, q = times(trajectory), rows(trajectory, trajectory.q)
    v = getattr(trajectory, "coordinate_rates", getattr(trajectory, "v", None))
    v = None if v is None else rows(trajectory, v)
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
    q, v = curves.hermite(np, steps[:, None, None], parts, ends(rows.q), ends(rows.v))
    return Moving(ts, q[:, 0], v[:, 0])


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
