"""A scene in space for the browser, in which a mechanism moves and which can be turned."""

import contextlib
import html
import io
import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from matplotlib.colors import to_rgb
from scipy.spatial.transform import Rotation

from jaxdae.multibody import Multibody
from jaxdae.multibody.surfaces import Surface
from jaxdae.plotting import animation, readout, shapes
from jaxdae.plotting.mechanism import GROUND, LINK, PATHS
from jaxdae.plotting.shapes import Shapes
from jaxdae.storage.files import output_file, replace_file

# Parts of the diagonal of the box that holds everything: axes of bodies, and points.
_AXES, _POINT = 0.06, 0.008
# From the middle of the box to the eye, in diagonals.
_EYE, _EYE_OF_PLANE = np.array([0.6, -0.85, 0.4]), np.array([0.0, 0.0, 1.1])


class _Drawing(NamedTuple):
    """What is drawn at each time: curves, and of bodies their places and turns.

    Args:
        curves: of points in space; those of a plane are at z = 0.
        places: of origins of bodies by name, each of shape `(times, 3)`.
        turns: quaternions of their axes, the scalar part first, each of shape `(times, 4)`.
    """

    curves: Shapes
    places: dict[str, np.ndarray]
    turns: dict[str, np.ndarray]


def save_scene(
    trajectory: Any,
    path: str | Path,
    *,
    surfaces: Sequence[Surface] = (),
    speed: float | None = None,
    fps: float = 25.0,
    title: str | None = None,
) -> Path:
    """Write a scene in space in which a mechanism moves, to be turned with the mouse.

    The page is one file that needs neither a server nor the network. It has a slider of time, and a
    list of what is drawn, in which each part can be hidden. It is made by viser, which
    `pip install 'jaxdae[viewer]'` brings.

    Example::

        robot = read_mujoco("robot.xml")
        sol = simulate(robot.system, formulation, robot.state, t1=5.0)
        save_scene(sol, "robot.html", surfaces=read_surfaces("robot.xml"))

    Args:
        trajectory: what `jaxdae.simulate` returned, of a system with `points`. Between rows it
            moves on Hermite's cubics through `q` with the slopes `v`. A failed run ends where it
            failed, and the scene says so.
        path: the file, `.html`.
        surfaces: of bodies of a `jaxdae.multibody.Multibody`. Without them there are the axes of
            its bodies, and what joins its points; with them these are hidden at first.
        speed: seconds of motion in a second, 1.0 for real time. By default it is that for runs of 2
            to 20 s, and else what lasts 5 to 12.5 s; the scene says which.
        fps: positions per second, at most 50, rounded so that the time between them is a multiple
            of 0.01 s.
        title: heading.

    Returns:
        The file that was written, of some 1 MB and the surfaces.

    Raises:
        ValueError: for another suffix, a system without points, a batch, a run without rows, a
            surface of a body that is not there, with numbers of corners it has not or a colour
            that is none, a speed or rate that cannot be shown, or more than 2000 positions.
        ModuleNotFoundError: where viser is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a scene is a file .html; got {str(path)!r}.")
    first, last = shapes.ends(trajectory)
    frames = animation.timing(first, last, fps=fps, speed=speed)
    drawing = _drawing(trajectory, frames.ts)
    surfaces = [_checked(x, drawing.places) for x in surfaces]
    texts = _texts(frames, title, readout.failure_time(trajectory))
    with _server() as server:
        shown = _add(server, drawing, surfaces, shapes.along(trajectory))
        recorder = server.get_scene_serializer()
        for i, text in enumerate(texts):
            shown.move(i, text)
            recorder.insert_sleep(frames.delay)
        page = recorder.as_html()
    path = output_file(path, "scene.html")
    head = f"<head><title>{html.escape(title or 'a run of jaxdae')}</title>"
    replace_file(path, page.replace("<head>", head, 1).encode())
    return path


@eqx.filter_jit
def _poses(system: Multibody, q):
    return jax.vmap(system.tree().body_poses)(q)


def _drawing(trajectory: Any, ts: np.ndarray) -> _Drawing:
    curves = shapes.along(trajectory, ts)
    places, turns = {}, {}
    system = getattr(trajectory, "system", None)
    if isinstance(system, Multibody):
        rows = readout.moving(trajectory)
        assert rows is not None  # `along` has drawn them
        poses = _poses(system, readout.at(rows, ts).q)
        for i, body in enumerate(system.bodies):
            places[body.name] = np.asarray(poses.place[:, i], float)
            turn = Rotation.from_matrix(np.asarray(poses.turn[:, i], float))
            turns[body.name] = turn.as_quat(scalar_first=True)
    return _Drawing(_in_space(curves), places, turns)


def _in_space(curves: Shapes) -> Shapes:
    """The same, with z = 0 where it is in a plane."""
    if curves.dimension == 3:
        return curves
    filled = lambda x: np.insert(x, 2, 0.0, axis=-1)  # noqa: E731
    places, outlines = (
        {name: filled(x) for name, x in table.items()} for table in (curves.places, curves.outlines)
    )
    return curves._replace(places=places, outlines=outlines)


def _checked(surface: Surface, bodies: dict[str, Any]) -> Surface:
    vertices, faces = np.asarray(surface.vertices, float), np.asarray(surface.faces)
    what = f"a surface of {surface.body!r}"
    if surface.body is not None and surface.body not in bodies:
        among = ", ".join(map(repr, bodies)) or "none, as the system is no Multibody"
        raise ValueError(f"save_scene: {what}: there is no such body; there are: {among}.")
    if vertices.ndim != 2 or vertices.shape[1:] != (3,) or not np.isfinite(vertices).all():
        raise ValueError(
            f"save_scene: {what} has vertices of shape {vertices.shape}; give finite numbers of "
            "shape (vertices, 3)."
        )
    sound = np.issubdtype(faces.dtype, np.integer) and faces.shape[1:] == (3,) and faces.size > 0
    if not sound or faces.min() < 0 or faces.max() >= len(vertices):
        raise ValueError(
            f"save_scene: {what} has faces that are not numbers of three of its {len(vertices)} "
            f"vertices each, from 0; got {faces.dtype} of shape {faces.shape}"
            + (f", from {faces.min()} to {faces.max()}." if faces.size else ".")
        )
    color = np.asarray(surface.color, float)
    if color.shape != (4,) or not ((color >= 0.0) & (color <= 1.0)).all():
        raise ValueError(
            f"save_scene: {what} has the colour {surface.color}; give red, green, blue and "
            "opacity, each from 0 to 1."
        )
    return surface._replace(vertices=vertices, faces=faces)


def _texts(frames: animation.Timing, title: str | None, failure: float | None) -> list[str]:
    digits = max(0, -math.floor(math.log10(frames.speed * frames.delay) + 1e-9))
    speed = "" if frames.speed == 1.0 else f"  (speed ×{frames.speed:g})"
    heading = f"{title}, " if title else ""
    texts = [f"{heading}t = {t:.{digits}f} s{speed}" for t in frames.ts]
    if failure is not None:
        texts[-1] += f", failed after t = {failure:.4g} s"
    return texts


@contextlib.contextmanager
def _server() -> Iterator[Any]:
    """Viser, which records through a server; nobody connects to it, and it says nothing."""
    try:
        import viser  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a scene needs viser: pip install 'jaxdae[viewer]'.") from error
    with contextlib.redirect_stdout(io.StringIO()):
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    try:
        yield server
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            server.stop()


class _Shown(NamedTuple):
    """What moves in a scene of viser."""

    drawing: _Drawing
    bodies: dict[str, Any]
    curves: dict[str, Any]
    points: Any
    heading: Any

    def move(self, i: int, text: str) -> None:
        """Everything to where it is at time `i`."""
        for name, node in self.bodies.items():
            node.position = self.drawing.places[name][i]
            node.wxyz = self.drawing.turns[name][i]
        for kind, node in self.curves.items():
            node.points = _segments(getattr(self.drawing.curves, kind)(i))
        if self.points is not None:
            self.points.points = self.drawing.curves.joints(i).astype(np.float32)
        self.heading.text = text


def _segments(curve: np.ndarray) -> np.ndarray:
    """Pieces between rows of which none is NaN, shape `(pieces, 2, 3)`."""
    pieces = np.stack([curve[:-1], curve[1:]], axis=1)
    return pieces[np.isfinite(pieces).all(axis=(1, 2))].astype(np.float32)


def _add(server: Any, drawing: _Drawing, surfaces: Sequence[Surface], paths: Shapes) -> _Shown:
    """Everything at the first time."""
    scene, curves = server.scene, drawing.curves
    low, high = _extent(drawing, surfaces)
    middle, size = (low + high) / 2, float(np.linalg.norm(high - low)) or 1.0
    flat = paths.dimension == 2
    scene.set_up_direction("+y" if flat else "+z")
    server.initial_camera.position = middle + size * (_EYE_OF_PLANE if flat else _EYE)
    server.initial_camera.look_at = middle
    # Numbers keep names apart that differ by what viser makes parents of.
    slot = lambda i, name: f"{i} {name}".replace("/", "|")  # noqa: E731
    bodies, plain = {}, not surfaces
    for i, name in enumerate(drawing.places):
        node = f"/bodies/{slot(i, name)}"
        bodies[name] = scene.add_frame(node, show_axes=False)
        sides = {"axes_length": _AXES * size, "axes_radius": 0.05 * _AXES * size}
        scene.add_frame(f"{node}/axes", visible=plain, **sides)
        for k, surface in enumerate(x for x in surfaces if x.body == name):
            _add_surface(scene, f"{node}/surface {k}", surface)
    for k, surface in enumerate(x for x in surfaces if x.body is None):
        _add_surface(scene, f"/ground/surface {k}", surface)
    widths = {"links": (LINK, 4.0), "lines": (LINK, 1.5), "edges": (PATHS[0], 2.0)}
    drawn = {}
    for kind, (color, width) in widths.items():
        pieces = _segments(getattr(curves, kind)(0))
        if len(pieces):
            node = f"/points/{kind}"
            drawn[kind] = _add_lines(scene, node, pieces, color, width, visible=plain)
    points = None
    for kind, color in (("joints", LINK), ("ground", GROUND)):
        places = getattr(curves, kind)(0).astype(np.float32)
        if len(places):
            node = scene.add_point_cloud(
                f"/points/{kind}",
                places,
                _to_255(color),
                point_size=_POINT * size,
                point_shape="circle",
                precision="float32",
                visible=plain,
            )
            points = node if kind == "joints" else points
    trails = _in_space(paths)
    for i, (name, color) in enumerate(zip(paths.points.trace, cycle(PATHS), strict=False)):
        pieces = _segments(trails.places[name])
        if len(pieces):
            _add_lines(scene, f"/paths/{slot(i, name)}", pieces, color, 1.5, visible=True)
    above = np.where(np.eye(3)[1 if flat else 2], high + 0.1 * size, middle)
    heading = scene.add_label("/time", "", position=above, anchor="bottom-center")
    return _Shown(drawing, bodies, drawn, points, heading)


def _extent(drawing: _Drawing, surfaces: Sequence[Surface]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corner of a box that holds everything that moves, at all times."""
    low, high = drawing.curves.extent()
    for surface in surfaces:
        if surface.body is not None:
            places, turns = (x[surface.body] for x in (drawing.places, drawing.turns))
            ends = np.stack([np.min(surface.vertices, axis=0), np.max(surface.vertices, axis=0)])
            corners = np.stack(np.meshgrid(*ends.T), axis=-1).reshape(-1, 3)
            axes = Rotation.from_quat(turns, scalar_first=True).as_matrix()
            found = places[:, None] + np.einsum("tij,cj->tci", axes, corners)
            low = np.minimum(low, found.min(axis=(0, 1)))
            high = np.maximum(high, found.max(axis=(0, 1)))
    return low, high


def _to_255(color: str) -> tuple[int, int, int]:
    """A colour of matplotlib as viser has it."""
    red, green, blue = (round(255 * x) for x in to_rgb(color))
    return red, green, blue


def _add_lines(
    scene: Any, node: str, pieces: np.ndarray, color: str, width: float, *, visible: bool
) -> Any:
    look = {"thickness": width, "thickness_units": "screen", "visible": visible}
    return scene.add_line_segments(node, pieces, colors=_to_255(color), **look)


def _add_surface(scene: Any, node: str, surface: Surface) -> None:
    red, green, blue, opacity = surface.color
    scene.add_mesh_simple(
        node,
        np.asarray(surface.vertices),
        np.asarray(surface.faces),
        color=(red, green, blue),
        opacity=None if opacity == 1.0 else opacity,
        flat_shading=True,
        side="double",
    )
