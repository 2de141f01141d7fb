"""What a picture needs to know of a trajectory: its finished rows, its failure, its names."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxdae.results.tables import (
    common_unit as common_unit,
    label_field as label_field,
    per_second as per_second,
)

_SUPERSCRIPTS = str.maketrans({"2": "²", "3": "³"})


# A run that blew up is drawn up to here: beyond, squares of constraint residuals overflow.
BLOWN_UP = 1e30


def named(trajectories: Any) -> dict[str, Any]:
    """One trajectory, or a mapping from names to trajectories, as a mapping.

    Raises:
        ValueError: when the mapping is empty.
    """
    if not isinstance(trajectories, Mapping):
        return {"": trajectories}
    if not trajectories:
        raise ValueError("there is nothing to draw: the mapping of trajectories is empty")
    return dict(trajectories)


def times(trajectory: Any) -> np.ndarray:
    """Times [s] of the rows that belong to the run, shape `(rows,)`.

    Raises:
        ValueError: when the trajectory is a batch.
    """
    ts = np.asarray(trajectory.ts)
    if ts.ndim != 1:
        raise ValueError(
            f"one trajectory is drawn at a time, but ts has shape {ts.shape}; "
            f"pick one of the batch first, trajectory[{', '.join('0' * (ts.ndim - 1))}]"
            f"{_failed_member(trajectory)}, or draw all of it with plot_batch"
        )
    return ts[: finished_rows(trajectory)]


def _failed_member(trajectory: Any) -> str:
    """Which member of a batch failed first, if any did."""
    lost = np.argwhere(~np.asarray(getattr(trajectory, "success", True)))
    if lost.shape[-1:] in ((), (0,)) or not len(lost):
        return ""
    times = np.asarray(trajectory.final_time)[tuple(lost.T)]
    place = ", ".join(str(int(i)) for i in lost[np.argmin(times)])
    return f" (the one that failed first is trajectory[{place}])"


def velocities_are_rates(trajectory: Any) -> bool:
    """Whether velocities are rates of coordinates, as by default."""
    return getattr(trajectory, "velocities_are_rates", True)


def own_velocities(count: int) -> tuple[list[str], list[str]]:
    """Names of velocities that are not rates of coordinates, and units, of which none is known."""
    return [f"v{i + 1}" for i in range(count)], [""] * count


def finished_rows(trajectory: Any) -> int:
    """Number of leading rows with a finite time and finite coordinates."""
    ts, q = np.asarray(trajectory.ts), np.asarray(trajectory.q)
    alive = np.isfinite(ts)
    for x in (q, np.asarray(getattr(trajectory, "v", q))):
        alive &= (np.abs(x) < BLOWN_UP).all(axis=-1)
    return int(np.logical_and.accumulate(alive).sum())


def rows(trajectory: Any, values: Any) -> np.ndarray:
    """The finished rows of `values`, with time first and everything else in one axis."""
    values = np.asarray(values)[: finished_rows(trajectory)]
    return values[:, None] if values.ndim == 1 else values


def failure_time(trajectory: Any) -> float | None:
    """Last finished time [s] of a failed run, or `None` for a run that succeeded.

    A run counts as failed when it says so, or when a row with a finite time is not finite itself.
    """
    ts = np.asarray(trajectory.ts)
    finished = finished_rows(trajectory)
    broken = finished < ts.size and bool(np.isfinite(ts[finished]))
    if bool(np.all(trajectory.success)) and not broken:
        return None
    return float(ts[finished - 1]) if finished else float("nan")


def get_labels(trajectory: Any, labels: Any = None) -> Any:
    """The given labels, else those of the trajectory or of its system, else `None`."""
    labels = getattr(trajectory, "labels", None) if labels is None else labels
    system = getattr(trajectory, "system", None)
    return system.labels() if labels is None and system is not None else labels


def unit_text(unit: str) -> str:
    """A unit as it is printed: `m^2` becomes `m²`."""
    for digit in "23":
        unit = unit.replace(f"^{digit}", digit.translate(_SUPERSCRIPTS))
    return unit


def with_unit(name: str, unit: str) -> str:
    """`name [unit]`, or the name alone when the unit is not known."""
    return f"{name} [{unit_text(unit)}]" if unit else name
