"""A mechanism on axes of matplotlib, in the plane or in space."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from jaxdae.plotting import readout, style
from jaxdae.plotting.shapes import Shapes

LINK, BODY, GROUND = style.PALETTE[0], style.PALETTE[4], "#404040"
# Of the colours of paths, those that links and bodies have not, nor positions one after the other.
PATHS = [x for x in style.PALETTE if x not in (LINK, BODY, "#009E73")]
_AXES = {"x": 0, "y": 1, "z": 2}
# Of the names of points, and how far beside them they begin [pt].
_SMALL, _BESIDE = 8.5, 6.0
# Names within this part of the picture's size of each other are written together.
_CLOSE = 0.02
# Beyond this part of a unit vector a text stands on that side of its point, else in its middle.
LEANING = 0.38
# Of what a text may stand on, a little is covered.
_HALO = [patheffects.withStroke(linewidth=2.0, foreground="white", alpha=0.85)]
# Room around everything, as a part of the larger side.
_MARGIN = 0.1
# Place of axes in space, which have their labels inside; the legend is beside them.
_IN_SPACE = (0.0, 0.02, 0.76, 0.92)
# Part of them that is left for the box, besides its labels.
_ZOOM = 0.9
# Sides of the axes [inch].
_WIDTH, _HEIGHT = 5.2, 4.4


class Scene(NamedTuple):
    """Axes of equal scale with room for everything that is drawn.

    Args:
        figure: to draw on.
        ax: its only axes, of matplotlib's own two kinds.
        shapes: what is drawn, in the dimension of the axes.
    """

    figure: Figure
    ax: Any
    shapes: Shapes

    def seen(self, places: np.ndarray) -> np.ndarray:
        """Positions `(k, d)` in the coordinates of annotations, `(k, 2)`: in space as projected."""
        if self.shapes.dimension == 2:
            return places
        from mpl_toolkits.mplot3d.proj3d import proj_transform

        x, y, z = places.T
        return np.stack(proj_transform(x, y, z, self.ax.get_proj())[:2], axis=1)

    def plot(self, curve: np.ndarray, *args, **style) -> Any:
        """One line through the rows of `curve`, gaps at NaN."""
        return self.ax.plot(*curve.T, *args, **style)[0]


def new_scene(
    shapes: Shapes, *, plane: str | None, title: str | None, legend: bool = True
) -> Scene:
    """Empty axes for a mechanism.

    Args:
        shapes: at all times that will be drawn.
        plane: two of `"xyz"`, onto which a mechanism in space is projected; `None` for all it has.
        title: heading.
        legend: leave room for one beside the axes.

    Raises:
        ValueError: for another plane.
    """
    letters = "xyz"[: shapes.dimension]
    if plane is not None:
        if len(plane) != 2 or len({*plane} & {*letters}) != 2:
            raise ValueError(
                f"plane={plane!r} is not a pair of the axes {', '.join(letters)}; give one such as "
                f"{letters[:2]!r}, or None for no projection."
            )
        shapes, letters = shapes.onto([_AXES[x] for x in plane]), plane
    flat = shapes.dimension == 2
    low, high = shapes.extent()
    room = _MARGIN * (float(np.max(high - low)) or 1.0)
    low, high = low - room, high + room
    figure = Figure(
        figsize=_figure_size(high - low, legend) if flat else (7.6 if legend else 5.8, 5.4)
    )
    if flat:
        figure.set_layout_engine("tight")
        ax: Any = figure.add_subplot()
    else:
        left, bottom, part, top = _IN_SPACE
        ax = figure.add_axes((left, bottom, part if legend else 0.98, top), projection="3d")
    for name, a, b in zip(letters, low, high, strict=True):
        axis = "xyz"[letters.index(name)]
        getattr(ax, f"set_{axis}lim")(a, b)
        getattr(ax, f"set_{axis}label")(readout.with_unit(name, shapes.points.unit))
        getattr(ax, f"{axis}axis").set_major_locator(style.few_ticks())
        if not flat:
            getattr(ax, f"{axis}axis").labelpad = 8.0  # beside the numbers of narrow boxes
    if flat:
        ax.set_aspect("equal", adjustable="box")
    else:
        ax.set_box_aspect(high - low, zoom=_ZOOM)
    ax.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    if flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
    if title:
        ax.set_title(title)
    return Scene(figure, ax, shapes)


def _figure_size(sides: np.ndarray, legend: bool) -> tuple[float, float]:
    """With axes as wide and high as the sides, within limits, and room for a legend."""
    scale = min(_WIDTH / sides[0], _HEIGHT / sides[1])
    width, height = np.maximum(scale * sides, 1.2)
    return float(width) + (2.6 if legend else 1.0), float(height) + 1.0


def draw_position(
    scene: Scene, i: int, *, alpha: float = 1.0, color: Any = None, label: str | None = None
) -> None:
    """Bodies, links and joints at time `i`; the ground is drawn by `draw_ground`.

    Args:
        scene: to draw on.
        i: number of the time.
        alpha: opacity.
        color: of everything, instead of one for links and one for bodies.
        label: for the legend.
    """
    shapes = scene.shapes
    link, body = (LINK, BODY) if color is None else (color, color)
    if shapes.dimension == 2:
        for corners in shapes.polygons(i):
            scene.ax.add_patch(Polygon(corners, facecolor=body, alpha=0.25 * alpha, zorder=1.5))
    edges, links, joints = shapes.edges(i), shapes.links(i), shapes.joints(i)
    if edges.size:
        scene.plot(edges, color=body, alpha=alpha, linewidth=1.2)
    if shapes.points.lines:
        scene.plot(shapes.lines(i), "--", color=link, alpha=alpha, linewidth=0.8)
    if links.size:
        scene.plot(links, color=link, alpha=alpha, linewidth=2.0, label=label)
        label = None
    if joints.size:
        scene.plot(joints, "o", color=link, alpha=alpha, markersize=4.0, label=label)


def draw_ground(scene: Scene) -> None:
    """Fixed points, which are where they are at all times."""
    ground = scene.shapes.ground(0)
    if ground.size:
        scene.plot(ground, "^", color=GROUND, markersize=8.0, zorder=3)


def draw_names(scene: Scene, i: int) -> None:
    """Names of points beside them at time `i`, away from what joins them; not those with a `_`.

    Args:
        scene: to draw on.
        i: number of the time.
    """
    for place, names in named_places(scene.shapes, i):
        x, y = free_side(scene, i, place, names)
        scene.ax.annotate(
            ", ".join(names),
            tuple(scene.seen(place[None])[0]),
            xytext=(_BESIDE * x, _BESIDE * y),
            textcoords="offset points",
            ha="left" if x > LEANING else "right" if x < -LEANING else "center",
            va="bottom" if y > LEANING else "top" if y < -LEANING else "center",
            annotation_clip=False,
            fontsize=_SMALL,
            color=GROUND,
            zorder=4,
            path_effects=_HALO,
            parse_math=False,
        )


def named_places(shapes: Shapes, i: int) -> list[tuple[np.ndarray, list[str]]]:
    """Places at time `i`, each with the names of all points there."""
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


def free_side(scene: Scene, i: int, place: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The middle of the widest angle between what joins points of one place, a unit vector."""
    points = scene.shapes.points
    closed = [(*body, body[0]) for body in points.bodies]
    joined = [x for chain in (*points.links, *points.lines, *closed) for x in pairwise(chain)]
    others = [b if a in names else a for a, b in joined if (a in names) != (b in names)]
    if not others:
        return np.sqrt([0.5, 0.5])
    ends = np.stack([scene.shapes.places[x][i] for x in others])
    x, y = (scene.seen(ends) - scene.seen(place[None])).T
    angles = np.sort(np.arctan2(y, x))
    gaps = np.diff(np.append(angles, angles[0] + 2.0 * np.pi))
    middle = angles[np.argmax(gaps)] + 0.5 * gaps.max()
    return np.array([np.cos(middle), np.sin(middle)])


def mark_failure(scene: Scene, time: float | None) -> None:
    """Of a failed run, when it failed, in a corner."""
    if time is None:
        return
    text = scene.ax.text2D if scene.shapes.dimension == 3 else scene.ax.text
    text(
        0.01,
        0.99,
        f"failed after t = {time:.4g} s",
        transform=scene.ax.transAxes,
        color=style.FAILURE,
        fontsize="small",
        va="top",
    )


def add_legend(scene: Scene) -> None:
    """Beside the axes, where it hides nothing."""
    if not scene.ax.get_legend_handles_labels()[1]:
        return
    look: Any = {"loc": "upper left", "frameon": False, "fontsize": "small"}
    if scene.shapes.dimension == 2:
        legend = scene.ax.legend(bbox_to_anchor=(1.02, 1.0), **look)
    else:
        legend = scene.figure.legend(bbox_to_anchor=(0.78, 0.9), **look)
    for text in legend.get_texts():
        text.set_parse_math(False)
