"""Small films of one run or of several, side by side or over each other: what the gallery shows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from jaxdae.plotting import shapes, style
from jaxdae.plotting.animation import with_palette
from jaxdae.plotting.shapes import Shapes

WIDTH, WIDE, HEIGHT, DPI = 240, 340, 180, 100  # pixels; of side by side the wider
GROUND, FRAMES, DELAY, PAUSE = "#404040", 40, 60, 900  # times in milliseconds


class Track(NamedTuple):
    """One run in one panel.

    Args:
        path: the run where it turns, for the trails.
        moments: the run at the times of the frames.
        color: of links, bodies and trails.
        label: name of the run, or empty.
    """

    path: Shapes
    moments: Shapes
    color: Any
    label: str


def film(
    runs: Any,
    path: str,
    *,
    over: bool = False,
    plane: tuple[int, int] | None = None,
    marks: Any = None,
    until: float | None = None,
) -> None:
    """Write a GIF of a run, or of several by name.

    Args:
        runs: a trajectory, or trajectories by name; in a fan of many, names that begin with an
            underscore are not shown.
        path: the file.
        over: draw several over each other, not side by side; many without the paths of points.
        plane: two axes to project a mechanism in space onto.
        marks: places to mark in all panels, shape `(k, 2)`.
        until: end of the film [s]; that of the longest run by default.
    """
    named = runs if isinstance(runs, Mapping) else {"": runs}
    ends = [shapes.ends(run) for run in named.values()]
    ts = np.linspace(ends[0][0], until or max(x[1] for x in ends), FRAMES)
    colors = style.colors(len(named)) if over else [style.PALETTE[0]] * len(named)
    tracks = []
    for (name, run), (_, end), color in zip(named.items(), ends, colors, strict=True):
        path_of, moments = (_projected(x, plane) for x in (shapes.along(run), _at(run, ts, end)))
        tracks.append(Track(path_of, moments, color, "" if name.startswith("_") else name))
    panels = [tracks] if over else [[x] for x in tracks]
    figure, axes = _axes(panels, marks)
    frames = [_frame(figure, axes, panels, i, t) for i, t in enumerate(ts)]
    images = with_palette(frames, 48)
    durations = [DELAY] * (FRAMES - 1) + [PAUSE]
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True
    )


def _at(run: Any, ts: np.ndarray, end: float) -> Shapes:
    """A run at some times; one that ended earlier stays where it ended."""
    return shapes.along(run, np.minimum(ts, end))


def _projected(found: Shapes, plane: tuple[int, int] | None) -> Shapes:
    return found if plane is None else found.onto(plane)


def _axes(panels: list[list[Track]], marks: Any) -> tuple[Figure, list[Any]]:
    """Empty axes of one scale for all panels."""
    boxes = [np.stack(x.extent()) for tracks in panels for t in tracks for x in (t.path, t.moments)]
    if marks is not None:
        boxes.append(np.asarray(marks))
    corners = np.concatenate(boxes)
    low, high = corners.min(axis=0), corners.max(axis=0)
    room = 0.08 * np.max(high - low)
    width = WIDTH if len(panels) == 1 else WIDE
    figure = Figure(figsize=(width / DPI, HEIGHT / DPI), dpi=DPI)
    FigureCanvasAgg(figure)
    flat, axes = low.size == 2, []
    for i in range(len(panels)):
        place = ((i + 0.02) / len(panels), 0.1, 0.96 / len(panels), 0.8)
        ax: Any = figure.add_axes(place, projection=None if flat else "3d")
        for axis, a, b in zip("xyz", low - room, high + room, strict=False):
            getattr(ax, f"set_{axis}lim")(a, b)
            getattr(ax, f"set_{axis}ticks")([])
        if flat:
            ax.set_aspect("equal")
            ax.axis("off")
        else:
            ax.set_box_aspect(high - low + 2 * room, zoom=1.25)
        if marks is not None:
            ax.plot(*np.asarray(marks).T, ".", color="#909090", markersize=3, zorder=1)
        axes.append(ax)
    return figure, axes


def _frame(figure: Figure, axes: list[Any], panels: Any, i: int, t: float) -> Image.Image:
    drawn = [figure.text(0.03, 0.02, f"t = {t:.3g} s", fontsize=7, color=GROUND)]
    for k, (ax, tracks) in enumerate(zip(axes, panels, strict=True)):
        before = set(ax.get_children())
        for j, track in enumerate(tracks):
            _draw(ax, track, i, t, len(tracks) <= len(style.PALETTE))
            x = (k + 0.03) / len(axes)
            look = {"fontsize": 7, "color": track.color if len(tracks) > 1 else GROUND}
            drawn.append(figure.text(x, 0.93 - 0.075 * j, track.label, **look))
        drawn += [x for x in ax.get_children() if x not in before]
    canvas: Any = figure.canvas
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
    for artist in drawn:
        artist.remove()
    return image


def _draw(ax: Any, track: Track, i: int, t: float, trails: bool) -> None:
    """One mechanism at frame `i`, with the paths of its points so far if wanted."""
    _, now, color, _ = track
    past = track.path.ts <= t
    for name in now.points.trace if trails else ():
        trail = np.concatenate([track.path.places[name][past], now.places[name][i : i + 1]])
        ax.plot(*trail.T, color=color, linewidth=0.7, alpha=0.5)
    ax.plot(*now.ground(i).T, "^", color=GROUND, markersize=4)
    for curve, look in (
        (now.edges(i), {"linewidth": 1.0}),
        (now.lines(i), {"linewidth": 0.7, "linestyle": "--"}),
        (now.links(i), {"linewidth": 1.5}),
        (now.joints(i), {"linestyle": "", "marker": "o", "markersize": 2.5}),
    ):
        if curve.size:
            ax.plot(*curve.T, color=color, **look)
