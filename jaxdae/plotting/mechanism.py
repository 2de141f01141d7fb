"""Mechanisms in motion on one picture: positions at several times, paths of points."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxdae.plotting import readout, scene, shapes

# Of positions from the first to the last: ever darker, on paper without colours as well.
_RAMP, _FIRST, _LAST = "YlGnBu", 0.3, 1.0
# Of more positions than these, some are in the legend.
_MANY, _SOME = 9, 5


def plot_mechanism(
    trajectory: Any,
    *,
    times: int | ArrayLike = 7,
    names: bool = True,
    plane: str | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the positions of a mechanism at several times over each other, early ones light.

    Example::

        plot_mechanism(sol, times=[0.0, 0.5, 1.0])

    Args:
        trajectory: what `jaxdae.simulate` returned, of a system with `points`. Between rows it is
            drawn by Hermite's cubics through `q` with the slopes `v`. A failed run ends where it
            failed, and the picture says so.
        times: how many positions, from the start to the end; or their times [s].
        names: write the names of the points at the last of them, but for names that begin with an
            underscore.
        plane: two of `"xyz"`, onto which a mechanism in space is projected; by default it is drawn
            in perspective.
        title: heading.

    Returns:
        The figure. Both axes have one scale; triangles are the ground, thin lines the paths of the
        points that `jaxdae.Points.trace` names.

    Raises:
        ValueError: for a system without points, a batch, a run without rows, times outside of the
            run, or another plane.
        TypeError: where `points` does not return `jaxdae.Points`.
    """
    paths = shapes.along(trajectory)
    moments = shapes.along(trajectory, _moments(paths.ts, times))
    # One box around both: straight lines between rows may pass beside positions.
    both = shapes.joined(paths, moments)
    drawn = scene.new_scene(both, plane=plane, title=title)
    first, count = paths.ts.size, moments.ts.size
    _draw_paths(drawn, paths.points.trace, slice(0, first), linewidth=0.8, alpha=0.6)
    scene.draw_ground(drawn)
    last = first + count - 1
    shown = np.linspace(0, count - 1, count if count <= _MANY else _SOME).astype(int)
    for i, color in enumerate(_colors(count)):
        label = f"t = {moments.ts[i]:.4g} s" if i in shown else None
        scene.draw_position(drawn, first + i, color=color, label=label)
    if names:
        scene.draw_names(drawn, last)
    scene.mark_failure(drawn, readout.failure_time(trajectory))
    scene.add_legend(drawn)
    return drawn.figure


def _colors(count: int) -> list[Any]:
    """From light to dark; a single position in the usual two."""
    if count == 1:
        return [None]
    return [*colormaps[_RAMP](np.linspace(_FIRST, _LAST, count))]


def _moments(ts: np.ndarray, times: int | ArrayLike) -> np.ndarray:
    moments = np.asarray(times)
    if moments.ndim == 0:
        if not np.issubdtype(moments.dtype, np.integer) or moments < 1:
            raise ValueError(
                f"times={times!r} must be a number of positions, 1 or more, or their times [s]; "
                "for one position at a time give a list, [0.5]."
            )
        return np.linspace(ts[0], ts[-1], int(moments)) if moments > 1 else ts[-1:]
    if moments.ndim != 1 or moments.size == 0:
        raise ValueError(f"times must be one list of times [s]; got shape {moments.shape}.")
    moments = np.sort(moments.astype(ts.dtype))
    return moments if ts[-1] >= ts[0] else moments[::-1]


def plot_path(
    trajectory: Any,
    *,
    points: Sequence[str] | str | None = None,
    plane: str | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the paths of points of a mechanism, their starts open and their ends filled.

    Args:
        trajectory: what `jaxdae.simulate` returned, of a system with `points`. Between few rows
            paths are those of Hermite's cubics through `q` with the slopes `v`. A failed run ends
            where it failed.
        points: names of points; those that `jaxdae.Points.trace` names by default.
        plane: two of `"xyz"`, onto which a mechanism in space is projected.
        title: heading.

    Returns:
        The figure; the mechanism is drawn faintly at the end of the run.

    Raises:
        ValueError: as `plot_mechanism`; for a name that no point has, or where there is no path to
            draw.
        TypeError: where `points` does not return `jaxdae.Points`.
    """
    found = shapes.along(trajectory)
    chosen = _chosen(found, points)
    drawn = scene.new_scene(found, plane=plane, title=title)
    scene.draw_ground(drawn)
    scene.draw_position(drawn, -1, alpha=0.2)
    _draw_paths(drawn, chosen, slice(None), linewidth=1.4, ends=True)
    scene.mark_failure(drawn, readout.failure_time(trajectory))
    scene.add_legend(drawn)
    return drawn.figure


def _chosen(found: shapes.Shapes, points: Sequence[str] | str | None) -> tuple[str, ...]:
    names = found.points.trace if points is None else points
    names = (names,) if isinstance(names, str) else tuple(names)
    unknown = [x for x in names if x not in found.places]
    if unknown:
        raise ValueError(
            f"no point is called {', '.join(map(repr, unknown))}; there are: "
            f"{', '.join(found.places)}."
        )
    if not names:
        raise ValueError(
            "there is no path to draw: give points=…, or name points in jaxdae.Points(…, "
            f"trace=…). There are: {', '.join(found.places)}."
        )
    return names


def _draw_paths(
    drawn: scene.Scene, names: Sequence[str], rows: slice, *, ends: bool = False, **look
) -> None:
    """Paths of named points, one colour each, with a mark where each starts and ends."""
    for i, name in enumerate(names):
        color = scene.PATHS[i % len(scene.PATHS)]
        path = drawn.shapes.places[name][rows]
        drawn.plot(path, color=color, label=f"path of {name}", **look)
        if ends:
            drawn.plot(path[:1], "o", color=color, markerfacecolor="white", zorder=3)
            drawn.plot(path[-1:], "o", color=color, zorder=3)
