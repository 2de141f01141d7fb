"""A mechanism on axes of matplotlib, in the plane or in space."""

from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Polygon

from jaxdae.plotting import readout, style
from jaxdae.plotting.shapes import Shapes

LINK, BODY, GROUND = style.PALETTE[0], style.PALETTE[4], "#404040"
# Of the colours of paths, those that links and bodies have not.
PATHS = [x for x in style.PALETTE if x not in (LINK, BODY)]
_AXES = {"x": 0, "y": 1, "z": 2}
# Names within this part of the picture's size of each other would cover each other.
_CLOSE = 0.02
# Room around everything, as a part of the larger side.
_MARGIN = 0.1
# Names nearer than this to the sides of the picture are written inwards, as parts of its width.
_NEAR_SIDE = 0.18
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
    names = "xyz"[: shapes.dimension]
    if plane is not None:
        if len(plane) != 2 or len({*plane} & {*names}) != 2:
            raise ValueError(
                f"plane={plane!r} is not a pair of the axes {', '.join(names)}; give one such as "
                f"{names[:2]!r}, or None for no projection."
            )
        shapes, names = shapes.onto([_AXES[x] for x in plane]), plane
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
    for name, a, b in zip(names, low, high, strict=True):
        axis = "xyz"[names.index(name)]
        getattr(ax, f"set_{axis}lim")(a, b)
        getattr(ax, f"set_{axis}label")(readout.with_unit(name, shapes.points.unit))
        getattr(ax, f"{axis}axis").set_major_locator(style.few_ticks())
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


def draw_position(scene: Scene, i: int, *, alpha: float = 1.0, label: str | None = None) -> None:
    """Bodies, links and joints at time `i`; the ground is drawn by `draw_ground`."""
    shapes = scene.shapes
    if shapes.dimension == 2:
        for corners in shapes.polygons(i):
            scene.ax.add_patch(Polygon(corners, facecolor=BODY, alpha=0.25 * alpha, zorder=1.5))
    edges, links, joints = shapes.edges(i), shapes.links(i), shapes.joints(i)
    if edges.size:
        scene.plot(edges, color=BODY, alpha=alpha, linewidth=1.2)
    if shapes.points.lines:
        scene.plot(shapes.lines(i), "--", color=LINK, alpha=alpha, linewidth=0.8)
    if links.size:
        scene.plot(links, color=LINK, alpha=alpha, linewidth=2.0, label=label)
        label = None
    if joints.size:
        scene.plot(joints, "o", color=LINK, alpha=alpha, markersize=4.0, label=label)


def draw_ground(scene: Scene) -> None:
    """Fixed points, which are where they are at all times."""
    ground = scene.shapes.ground(0)
    if ground.size:
        scene.plot(ground, "^", color=GROUND, markersize=8.0, zorder=3)


def draw_names(scene: Scene, i: int) -> list[Any]:
    """Names of points beside them at time `i`, those of one place together."""
    texts = []
    for place, direction, names in _named_places(scene, i):
        texts.append(_write(scene, place, direction, ", ".join(names)))
    return texts


def _named_places(scene: Scene, i: int):
    """Places with names, and where beside them there is room."""
    found: list[tuple[np.ndarray, np.ndarray, list[str]]] = []
    for name, rows in scene.shapes.places.items():
        if name.startswith("_"):
            continue
        near = [x for x in found if np.linalg.norm(x[0] - rows[i]) < _CLOSE * scene.diagonal]
        if near:
            near[0][2].append(name)
        else:
            found.append((rows[i], _aside(scene.shapes, name, i), [name]))
    return found


def _aside(shapes: Shapes, name: str, i: int) -> np.ndarray:
    """Direction from a point away from what it is joined to, shape `(d,)`."""
    chains = (*shapes.points.links, *shapes.points.bodies)
    joined = [shapes.places[x][i] for chain in chains if name in chain for x in chain if x != name]
    place = shapes.places[name][i]
    away = place - np.mean(joined, axis=0) if joined else np.zeros_like(place)
    size = np.linalg.norm(away)
    upwards = np.ones_like(place) / np.sqrt(place.size)
    return away / size if size > 0.0 else upwards


def _write(scene: Scene, place: np.ndarray, direction: np.ndarray, text: str) -> Any:
    look = {"fontsize": "small", "color": GROUND, "zorder": 4}
    if place.size == 3:
        return scene.ax.text(*(place + 0.03 * scene.diagonal * direction), text, **look)
    right, up = _inwards(scene, place, direction)
    return scene.ax.annotate(
        text,
        place,
        xytext=(9 * right, 9 * up),
        textcoords="offset points",
        ha="left" if right > 0.4 else "right" if right < -0.4 else "center",
        va="bottom" if up > 0.4 else "top" if up < -0.4 else "center",
        **look,
    )


def _inwards(scene: Scene, place: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The direction, but away from a side of the picture that is near."""
    low, high = scene.ax.get_xlim()
    part = (place[0] - low) / (high - low)
    if part < _NEAR_SIDE:
        return np.array([0.8, 0.6 if direction[1] >= 0.0 else -0.6])
    if part > 1.0 - _NEAR_SIDE:
        return np.array([-0.8, 0.6 if direction[1] >= 0.0 else -0.6])
    return direction


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
        scene.ax.legend(bbox_to_anchor=(1.02, 1.0), **look)
    else:
        scene.figure.legend(bbox_to_anchor=(0.78, 0.9), **look)
