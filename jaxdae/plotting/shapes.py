"""Points of a system along a run, and the curves that a picture draws through them."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.plotting import readout
from jaxdae.plotting.readout import Moving
from jaxdae.results.stored import points_of
from jaxdae.storage.runs import PLACES, RATES
from jaxdae.systems import Points, System


class NoShapeError(ValueError):
    """A system has no points to draw."""


class Shapes(NamedTuple):
    """What a system looks like at some times.

    Args:
        ts: times [s], shape `(times,)`.
        places: of points by name, each of shape `(times, d)`.
        outlines: closed curves by name, each of shape `(times, corners, d)`.
        points: names of what is joined, traced and fixed; its arrays are those of all times.
    """

    ts: np.ndarray
    places: dict[str, np.ndarray]
    outlines: dict[str, np.ndarray]
    points: Points

    @property
    def dimension(self) -> int:
        """2 in the plane, 3 in space."""
        return next(iter(self.places.values())).shape[-1]

    def onto(self, axes: Sequence[int]) -> "Shapes":
        """The projection onto a plane of two axes."""
        flat = lambda table: {name: x[..., list(axes)] for name, x in table.items()}  # noqa: E731
        return self._replace(places=flat(self.places), outlines=flat(self.outlines))

    def extent(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper corner of the box that holds everything at all times, shape `(d,)`."""
        arrays = [*self.places.values(), *self.outlines.values()]
        every = np.concatenate([x.reshape(-1, self.dimension) for x in arrays])
        return every.min(axis=0), every.max(axis=0)

    def links(self, i: int) -> np.ndarray:
        """Rigid links at time `i`, with NaN between them, shape `(k, d)`."""
        return self._through(i, self.points.links)

    def lines(self, i: int) -> np.ndarray:
        """What else joins points at time `i`, with NaN between them, shape `(k, d)`."""
        return self._through(i, self.points.lines)

    def polygons(self, i: int) -> list[np.ndarray]:
        """Bodies and outlines at time `i`, each closed, of shape `(k, d)`."""
        bodies = [np.stack([self.places[x][i] for x in body]) for body in self.points.bodies]
        curves = [*bodies, *(x[i] for x in self.outlines.values())]
        return [np.concatenate([x, x[:1]]) for x in curves]

    def edges(self, i: int) -> np.ndarray:
        """`polygons` with NaN between them, shape `(k, d)`."""
        return self._joined(self.polygons(i))

    def joints(self, i: int) -> np.ndarray:
        """Points that may move, at time `i`, shape `(k, d)`."""
        return self._chosen(i, [x for x in self.places if x not in self.points.fixed])

    def ground(self, i: int) -> np.ndarray:
        """Fixed points at time `i`, shape `(k, d)`."""
        return self._chosen(i, self.points.fixed)

    def _through(self, i: int, chains: Iterable[Iterable[str]]) -> np.ndarray:
        return self._joined([np.stack([self.places[x][i] for x in chain]) for chain in chains])

    def _chosen(self, i: int, names: Iterable[str]) -> np.ndarray:
        rows = [self.places[x][i] for x in names]
        return np.stack(rows) if rows else np.zeros((0, self.dimension))

    def _joined(self, curves: list[np.ndarray]) -> np.ndarray:
        gap = np.full((1, self.dimension), np.nan)
        parts = [x for curve in curves for x in (gap, curve)]
        return np.concatenate(parts[1:]) if parts else np.zeros((0, self.dimension))


# Compiled once for systems of one kind.
@eqx.filter_jit
def _placed(system: System, ts, q):
    return jax.vmap(system.points)(ts, q)


def along(trajectory: Any, ts: np.ndarray | None = None) -> Shapes:
    """What the system of a run looks like at given times."""
    system, rows = getattr(trajectory, "system", None), _rows(trajectory)
    # What a run read from a file says of the positions of its points.
    stored = getattr(getattr(trajectory, "about", None), "drawing", None)
    stored = stored if system is None else None
    if stored is not None:  # they are in place of coordinates
        flat = lambda name: trajectory.known[name].reshape(len(trajectory.ts), -1)  # noqa: E731
        rows = _rows(SimpleNamespace(ts=trajectory.ts, q=flat(PLACES), v=flat(RATES)))
    if ts is not None:
        first, last = rows.ts[[0, -1]]
        outside = ts[~((ts >= min(first, last)) & (ts <= max(first, last)))]
        if outside.size:
            raise ValueError(
                f"there is no position at t = {outside[0]:.6g} s: the run has rows from "
                f"t = {first:.6g} s to {last:.6g} s."
            )
    moving = readout.finely(rows) if ts is None else readout.at(rows, ts)
    if stored is None:
        points = _points(system, moving)
    else:
        shape = trajectory.known[PLACES].shape[1:]
        points = points_of(moving.q.reshape(moving.ts.size, *shape), stored)
    arrays = lambda table: {x: _finite(x, np.asarray(y), moving.ts) for x, y in table.items()}  # noqa: E731
    return Shapes(moving.ts, arrays(points.places), arrays(points.outlines), points)


def _finite(name: str, positions: np.ndarray, ts: np.ndarray) -> np.ndarray:
    known = np.isfinite(positions).reshape(len(ts), -1).all(axis=1)
    if known.all():
        return positions
    raise ValueError(
        f"the point {name!r} has no finite position at t = {ts[np.argmin(known)]:.6g} s, and "
        f"{np.sum(~known) - 1} more of the {len(ts)} times to be drawn: look at what "
        "points(t, q) computes there."
    )


def joined(one: Shapes, other: Shapes) -> Shapes:
    """The times of both, one after the other."""
    both = lambda x, y: {name: np.concatenate([x[name], y[name]]) for name in x}  # noqa: E731
    return Shapes(
        np.concatenate([one.ts, other.ts]),
        both(one.places, other.places),
        both(one.outlines, other.outlines),
        one.points,
    )


def _rows(trajectory: Any) -> Moving:
    ts = readout.times(trajectory)
    if ts.size == 0:
        raise ValueError("the run failed before its first row: there is no position to draw.")
    rows = readout.moving(trajectory)
    if rows is not None:
        return rows
    raise ValueError(
        "positions between rows need velocities beside the coordinates, and times that only "
        "increase or only decrease."
    )


def ends(trajectory: Any) -> tuple[float, float]:
    """First and last time of a run [s]; raises as `along` does."""
    ts = _rows(trajectory).ts
    return float(ts[0]), float(ts[-1])


def _points(system: Any, moving: Moving) -> Points:
    if system is None:
        raise NoShapeError(
            "the run has no points to draw: its system declared none when it was saved, or an "
            "earlier release saved it. Give it a system, run.with_system(system), or draw the run "
            "that simulate returned."
        )
    name = type(system).__name__
    points = None
    if isinstance(system, System):
        points = _placed(system, jnp.asarray(moving.ts), jnp.asarray(moving.q))
    if points is None:
        raise NoShapeError(
            f"{name} has no shape to draw: its points(t, q) is not declared, or returns None. "
            "Declare a method `points(self, t, q)` that returns jaxdae.Points, such as "
            'jaxdae.Points({"pivot": jnp.zeros(2), "mass": q}, links=(("pivot", "mass"),), '
            'trace=("mass",), fixed=("pivot",)).'
        )
    if not isinstance(points, Points):
        raise TypeError(
            f"{name}.points must return jaxdae.Points, but returned {type(points).__name__}."
        )
    return points
