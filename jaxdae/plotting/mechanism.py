"""Mechanisms on axes of matplotlib: one position, positions at several times, paths of points."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps, patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from jaxdae.plotting import readout, style
from jaxdae.plotting.shapes import along, joined, Shapes

LINK, BODY, GROUND = style.PALETTE[0], style.PALETTE[4], "#404040"
# Of the colours of paths, those that links and bodies have not, nor positions one after the other.
PATHS = [x for x in style.PALETTE if x not in (LINK, BODY, "#009E73")]
# Of the names of points, and how far beside them they begin [pt].
_SMALL, _BESIDE = 8.5, 6.0
# Names within this part of the picture's size of each other are written together.
_CLOSE = 0.02
# Beyond this part of a unit vector a text stands on that side of its point, else in its middle.
_LEANING = 0.38
# Of what a text may stand on, a little is covered.
_HALO = [patheffects.withStroke(linewidth=2.0, foreground="white", alpha=0.85)]
# Room around everything, as a part of the larger side.
_MARGIN = 0.1
# Part of them that is left for the box, besides its labels.
_ZOOM = 0.9
# Sides of the axes [inch].
_WIDTH, _HEIGHT = 5.2, 4.4
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
    paths = along(trajectory)
    moments = along(trajectory, _moments(paths.ts, times))
    # One box around both: straight lines between rows may pass beside positions.
    both = joined(paths, moments)
    drawn = Scene(both, plane=plane, title=title)
    first, count = paths.ts.size, moments.ts.size
    _draw_paths(drawn, paths.points.trace, slice(0, first), linewidth=0.8, alpha=0.6)
    drawn.draw_ground()
    last = first + count - 1
    shown = np.linspace(0, count - 1, count if count <= _MANY else _SOME).astype(int)
    for i, color in enumerate(_colors(count)):
        label = f"t = {moments.ts[i]:.4g} s" if i in shown else None
        drawn.draw_position(first + i, color=color, label=label)
    if names:
        drawn.draw_names(last)
    drawn.mark_failure(readout.failure_time(trajectory))
    drawn.add_legend()
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
    found = along(trajectory)
    chosen = _chosen(found, points)
    drawn = Scene(found, plane=plane, title=title)
    drawn.draw_ground()
    drawn.draw_position(-1, alpha=0.2)
    _draw_paths(drawn, chosen, slice(None), linewidth=1.4, ends=True)
    drawn.mark_failure(readout.failure_time(trajectory))
    drawn.add_legend()
    return drawn.figure


def _chosen(found: Shapes, points: Sequence[str] | str | None) -> tuple[str, ...]:
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


class Scene:
    """Axes of equal scale with room for everything that is drawn at any time."""

    def __init__(
        self, shapes: Shapes, *, plane: str | None, title: str | None = None, legend: bool = True
    ):
        letters = "xyz"[: shapes.dimension]
        if plane is not None:
            if len(plane) != 2 or len({*plane} & {*letters}) != 2:
                raise ValueError(
                    f"plane={plane!r} is not a pair of the axes {', '.join(letters)}; give one "
                    f"such as {letters[:2]!r}, or None for no projection."
                )
            shapes, letters = shapes.onto(["xyz".index(x) for x in plane]), plane
        self.shapes, self.flat = shapes, shapes.dimension == 2
        low, high = shapes.extent()
        room = _MARGIN * (float(np.max(high - low)) or 1.0)
        low, high = low - room, high + room
        if self.flat:
            # Axes as wide and high as the sides, within limits.
            scale = min(_WIDTH / (high - low)[0], _HEIGHT / (high - low)[1])
            width, height = np.maximum(scale * (high - low), 1.2).tolist()
            size = (width + (2.6 if legend else 1.0), height + 1.0)
            self.figure = Figure(figsize=size, layout="tight")
            self.ax: Any = self.figure.add_subplot()
            self.ax.set_aspect("equal", adjustable="box")
            self.ax.spines[["top", "right"]].set_visible(False)
            self.ax.set_axisbelow(True)
        else:
            self.figure = Figure(figsize=(7.6 if legend else 5.8, 5.4))
            # Axes in space have their labels inside; the legend is beside them.
            place = (0.0, 0.02, 0.76 if legend else 0.98, 0.92)
            self.ax = self.figure.add_axes(place, projection="3d")
            self.ax.set_box_aspect(high - low, zoom=_ZOOM)
        for axis, name, a, b in zip("xyz", letters, low, high, strict=False):
            label = {
                f"{axis}lim": (a, b),
                f"{axis}label": readout.with_unit(name, shapes.points.unit),
            }
            self.ax.set(**label)
            ticks = getattr(self.ax, f"{axis}axis")
            ticks.set_major_locator(MaxNLocator(6, steps=(1, 2, 5, 10)))  # axes may be narrow
            if not self.flat:
                ticks.labelpad = 8.0  # beside the numbers of narrow boxes
        self.ax.grid(visible=True, color="#DDDDDD", linewidth=0.6)
        if title:
            self.ax.set_title(title)

    def seen(self, places: np.ndarray) -> np.ndarray:
        """Positions `(k, d)` in the coordinates of annotations, `(k, 2)`: in space as projected."""
        if self.flat:
            return places
        from mpl_toolkits.mplot3d.proj3d import proj_transform

        x, y, z = places.T
        return np.stack(proj_transform(x, y, z, self.ax.get_proj())[:2], axis=1)

    def plot(self, curve: np.ndarray, *args, **style) -> None:
        """One line through the rows of `curve`, gaps at NaN."""
        if curve.size:
            self.ax.plot(*curve.T, *args, **style)

    def draw_position(
        self, i: int, *, alpha: float = 1.0, color: Any = None, label: str | None = None
    ) -> None:
        """Bodies, links and joints at time `i`; the ground is drawn by `draw_ground`."""
        shapes, look = self.shapes, {"alpha": alpha}
        link, body = (LINK, BODY) if color is None else (color, color)
        if self.flat:
            for corners in shapes.polygons(i):
                patch = Polygon(corners, facecolor=body, alpha=0.25 * alpha, zorder=1.5)
                self.ax.add_patch(patch)
        links = shapes.links(i)
        self.plot(shapes.edges(i), color=body, linewidth=1.2, **look)
        self.plot(shapes.lines(i), "--", color=link, linewidth=0.8, **look)
        self.plot(links, color=link, linewidth=2.0, label=label, **look)
        label = None if links.size else label
        self.plot(shapes.joints(i), "o", color=link, markersize=4.0, label=label, **look)

    def draw_ground(self) -> None:
        """Fixed points, which are where they are at all times."""
        self.plot(self.shapes.ground(0), "^", color=GROUND, markersize=8.0, zorder=3)

    def draw_names(self, i: int) -> None:
        """Names of points beside them at time `i`, away from what joins them."""
        for place, names in named_places(self.shapes, i):
            x, y = _free_side(self.shapes, i, place, names, self.seen)
            self.ax.annotate(
                ", ".join(names),
                tuple(self.seen(place[None])[0]),
                xytext=(_BESIDE * x, _BESIDE * y),
                textcoords="offset points",
                ha=_side(x, "right", "center", "left"),
                va=_side(y, "top", "center", "bottom"),
                annotation_clip=False,
                fontsize=_SMALL,
                color=GROUND,
                zorder=4,
                path_effects=_HALO,
                parse_math=False,
            )

    def mark_failure(self, time: float | None) -> None:
        """Of a failed run, when it failed, in a corner."""
        if time is not None:
            text = self.ax.text if self.flat else self.ax.text2D
            look = {"color": style.FAILURE, "fontsize": "small", "va": "top"}
            said = f"failed after t = {time:.4g} s"
            text(0.01, 0.99, said, transform=self.ax.transAxes, **look)

    def add_legend(self) -> None:
        """Beside the axes, where it hides nothing."""
        if not self.ax.get_legend_handles_labels()[1]:
            return
        owner, place = (self.ax, (1.02, 1.0)) if self.flat else (self.figure, (0.78, 0.9))
        look = {"loc": "upper left", "frameon": False, "fontsize": "small"}
        for text in owner.legend(bbox_to_anchor=place, **look).get_texts():
            text.set_parse_math(False)


def named_places(shapes: Shapes, i: int) -> list[tuple[np.ndarray, list[str]]]:
    """Places at time `i`, each with the names of all points there; not those with a `_`."""
    found: list[tuple[np.ndarray, list[str]]] = []
    low, high = shapes.extent()
    close = _CLOSE * float(np.linalg.norm(high - low))
    for name, rows in shapes.places.items():
        if name.startswith("_"):
            continue
        near = [names for place, names in found if np.linalg.norm(place - rows[i]) < close]
        if near:
            near[0].append(name)
        else:
            found.append((rows[i], [name]))
    return found


def _free_side(
    shapes: Shapes,
    i: int,
    place: np.ndarray,
    names: Sequence[str],
    seen: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """The middle of the widest angle between what joins points of one place, a unit vector."""
    points = shapes.points
    closed = [(*body, body[0]) for body in points.bodies]
    joined = [x for chain in (*points.links, *points.lines, *closed) for x in pairwise(chain)]
    others = [b if a in names else a for a, b in joined if (a in names) != (b in names)]
    if not others:
        return np.sqrt([0.5, 0.5])
    ends = np.stack([shapes.places[x][i] for x in others])
    x, y = (seen(ends) - seen(place[None])).T
    angles = np.sort(np.arctan2(y, x))
    gaps = np.diff(np.append(angles, angles[0] + 2.0 * np.pi))
    middle = angles[np.argmax(gaps)] + 0.5 * gaps.max()
    return np.array([np.cos(middle), np.sin(middle)])


def _side(part: float, below: str, middle: str, above: str) -> str:
    """On which side of its point a text stands, by a part of a unit vector."""
    return above if part > _LEANING else below if part < -_LEANING else middle


def _draw_paths(
    drawn: Scene, names: Sequence[str], rows: slice, *, ends: bool = False, **look
) -> None:
    """Paths of named points, one colour each, with a mark where each starts and ends."""
    for i, name in enumerate(names):
        color = PATHS[i % len(PATHS)]
        path = drawn.shapes.places[name][rows]
        drawn.plot(path, color=color, label=f"path of {name}", **look)
        if ends:
            drawn.plot(path[:1], "o", color=color, markerfacecolor="white", zorder=3)
            drawn.plot(path[-1:], "o", color=color, zorder=3)
