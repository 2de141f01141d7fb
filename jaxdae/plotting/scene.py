"""A mechanism on axes of matplotlib, in the plane or in space."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from jaxdae.plotting import names, readout, style
from jaxdae.plotting.shapes import Shapes

LINK, BODY, GROUND = style.PALETTE[0], style.PALETTE[4], "#404040"
# Of the colours of paths, those that links and bodies have not, nor positions one after the other.
PATHS = [x for x in style.PALETTE if x not in (LINK, BODY, "#009E73")]
_AXES = {"x": 0, "y": 1, "z": 2}
# Of the names of points [pt].
_SMALL = 8.5
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

    def projected(self, place: np.ndarray) -> tuple[float, float]:
        """A position in the coordinates of annotations: of axes in space, as they are seen."""
        x, y = self._in_the_plane(place[None])[0]
        return float(x), float(y)

    def _in_the_plane(self, places: np.ndarray) -> np.ndarray:
        if self.shapes.dimension == 2:
            return places
        from mpl_toolkits.mplot3d.proj3d import proj_transform

        x, y, z = places.T
        return np.stack(proj_transform(x, y, z, self.ax.get_proj())[:2], axis=1)

    def on_paper(self, places: np.ndarray) -> np.ndarray:
        """Where positions of shape `(k, d)` are on paper, shape `(k, 2)` [pt]."""
        if self.shapes.dimension == 2:
            return places * _points_per_unit(self.sides)
        self.ax.apply_aspect()
        seen = self.ax.transData.transform(self._in_the_plane(places))
        return seen * 72.0 / self.figure.get_dpi()

    @property
    def sides(self) -> np.ndarray:
        """Of axes in the plane, shape `(2,)`."""
        return np.ptp([self.ax.get_xlim(), self.ax.get_ylim()], axis=1)

    @property
    def corners(self) -> tuple[np.ndarray, np.ndarray]:
        """Lower left and upper right corner of the axes on paper [pt]."""
        if self.shapes.dimension == 2:
            low, high = np.array([self.ax.get_xlim(), self.ax.get_ylim()]).T
            return self.on_paper(low), self.on_paper(high)
        self.ax.apply_aspect()
        return tuple(np.array(self.ax.bbox.get_points()) * 72.0 / self.figure.get_dpi())

    def plot(self, curve: np.ndarray, *args, **style) -> Any:
        """One line through the rows of `curve`, gaps at NaN."""
        return self.ax.plot(*curve.T, *args, **style)[0]

    @property
    def diagonal(self) -> float:
        """Size of the picture [m]."""
        low, high = self.shapes.extent()
        return float(np.linalg.norm(high - low)) or 1.0


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


def _points_per_unit(sides: np.ndarray) -> float:
    """Scale of axes in the plane as `_figure_size` makes room for them [pt/m]."""
    return 72.0 * min(_WIDTH / sides[0], _HEIGHT / sides[1])


def _figure_size(sides: np.ndarray, legend: bool) -> tuple[float, float]:
    """With axes as wide and high as the sides, within limits, and room for a legend."""
    scale = _points_per_unit(sides) / 72.0
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


def draw_names(
    scene: Scene,
    i: int,
    *,
    before: Mapping[str, np.ndarray] | None = None,
    others: Sequence[int] = (),
) -> dict[str, np.ndarray]:
    """Names of points beside them at time `i`, those of one place together.

    Args:
        scene: to draw on.
        i: number of the time.
        before: what this gave for the frame before.
        others: numbers of further times that are drawn.

    Returns:
        The side of each text, a unit vector.
    """
    found = names.arranged(scene, i, _SMALL, before or {}, others)
    for name in found:
        scene.ax.annotate(
            name.text,
            scene.projected(name.place),
            xytext=tuple(name.offset),
            textcoords="offset points",
            ha="center",
            va="center",
            annotation_clip=False,
            fontsize=_SMALL,
            color=GROUND,
            zorder=4,
            path_effects=_HALO,
            parse_math=False,
        )
    return {name.text: name.direction for name in found}


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
