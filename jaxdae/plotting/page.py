"""A page of a run for the browser: the mechanism moves, and its time is that of the plots."""

import html
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.colors import to_hex

from jaxdae.files import output_file, replace_file
from jaxdae.plotting import animation, histories, readout, scene, shapes, style
from jaxdae.plotting.shapes import Shapes

# Times that the slider stops at: a film of 5 to 20 s.
_FRAMES = 151
_QUANTITIES = ("q", "v", "u", "w")
# Heights of the page, of one panel at least [pixels].
_HEIGHT, _PANEL = 560, 150
# Of many panels the mechanism stands beside the first.
_BESIDE = 3
# Where mechanisms in space are seen from, so that numbers of their axes are in the picture.
_EYE = {"x": 1.5, "y": 1.5, "z": 1.1}
_LINK, _BODY, _GROUND = style.PALETTE[0], style.PALETTE[4], "#404040"

# A click into a plot goes to the time that was clicked.
_SCRIPT = """
const page = document.getElementById('{plot_id}'), times = %s;
page.on('plotly_click', event => {
  const t = event.points[0].x;
  if (typeof t !== 'number' || !event.points[0].data.meta) return;
  let near = 0;
  times.forEach((x, i) => { if (Math.abs(x - t) < Math.abs(times[near] - t)) near = i; });
  Plotly.animate(page, [String(near)], {mode: 'immediate', frame: {duration: 0, redraw: true}});
});
"""


def _curve(points: np.ndarray) -> dict[str, np.ndarray]:
    """Columns by the names of axes."""
    return dict(zip("xyz", points.T, strict=False))


class _Moving:
    """The curves of a mechanism that move, with names beside links at all times of the slider.

    Args:
        drawn: at these times.
    """

    def __init__(self, drawn: Shapes):
        self.shown = [x for x in drawn.places if not x.startswith("_")]
        paper = scene.new_scene(drawn, plane=None, title=None)
        self.curves = [self._at(paper, i) for i in range(drawn.ts.size)]

    def _at(self, paper: scene.Scene, i: int) -> list[dict[str, Any]]:
        drawn = paper.shapes
        marks = (
            np.stack([drawn.places[x][i] for x in self.shown]) if self.shown else (drawn.joints(i))
        )
        # Those of one place are written once, beside the first of them.
        texts, sides = dict.fromkeys(self.shown, ""), dict.fromkeys(self.shown, "top center")
        for place, names in scene.named_places(drawn, i):
            texts[names[0]] = ", ".join(names)
            sides[names[0]] = _side(scene.free_side(paper, i, place, names))
        # In space, plotly clips what is written on other sides, and the reader turns the picture.
        side = [*sides.values()] if drawn.dimension == 2 else "top center"
        named = _curve(marks) | {"text": [*texts.values()], "textposition": side}
        return [_curve(x) for x in (drawn.edges(i), drawn.lines(i), drawn.links(i))] + [named]


def _side(direction: np.ndarray) -> str:
    """The nearest of the eight sides on which plotly writes."""
    x, y = direction
    aside = scene.LEANING
    across = "right" if x > aside else "left" if x < -aside else "center"
    up = "top" if y > aside else "bottom" if y < -aside else "middle"
    return f"{up} {across}"


class _Parts(NamedTuple):
    """What the page is made of, as plotly has it.

    Args:
        go: `plotly.graph_objects`.
        figure: with its axes.
        drawn: the mechanism at the times of the slider, `None` for a system without points.
        paths: the same at all rows and between them.
        moving: its curves at the times of the slider.
        ts: these times [s].
    """

    go: Any
    figure: Any
    drawn: Shapes | None
    paths: Shapes | None
    moving: _Moving | None
    ts: np.ndarray


def save_page(
    trajectory: Any, path: str | Path, *, labels: Any = None, title: str | None = None
) -> Path:
    """Write a page on which a mechanism moves beside its histories, with one slider for both.

    The page is one file that needs neither a server nor the network. A click into a plot goes to
    that time; plots can be enlarged, and mechanisms in space turned. It is made by plotly, which
    `pip install 'jaxdae[page]'` brings.

    Args:
        trajectory: what `jaxdae.simulate` returned. Of a system without `points` there are its
            histories alone. A failed run ends where it failed, and the page says so.
        path: the file, `.html`.
        labels: names and units (`jaxdae.Labels`); those of `trajectory.system` when not given.
        title: heading.

    Returns:
        The file that was written, of some 5 MB, most of it plotly.

    Raises:
        ValueError: for another suffix, a batch, or a run without rows.
        ModuleNotFoundError: where plotly is not installed.
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"a page is a file .html; got {str(path)!r}.")
    go, subplots = _plotly()
    first, last = shapes.ends(trajectory)
    ts = np.linspace(first, last, _FRAMES if last != first else 1)
    drawn = shapes.along(trajectory, ts) if _has_points(trajectory) else None
    panels = _panels(trajectory, readout.get_labels(trajectory, labels))
    paths = None if drawn is None else shapes.along(trajectory)
    curves = None if drawn is None else _Moving(drawn)
    parts = _Parts(go, _empty(subplots, drawn, panels), drawn, paths, curves, ts)
    moving = _draw_mechanism(parts) + _draw_panels(parts, panels)
    _add_frames(parts, moving, panels)
    _lay_out(parts, len(panels), title, readout.failure_time(trajectory), abs(last - first))
    text = parts.figure.to_html(
        include_plotlyjs=True,
        auto_play=False,
        post_script=_SCRIPT % [round(float(t), 12) for t in ts],
        config={"responsive": True, "displaylogo": False},
    )
    path = output_file(path, "run.html")
    replace_file(path, _with_title(text, title).encode())
    return path


def _plotly() -> tuple[Any, Any]:
    try:
        import plotly.graph_objects as go  # pyright: ignore[reportMissingImports]
        from plotly import subplots  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a page needs plotly: pip install 'jaxdae[page]'.") from error
    return go, subplots


def _has_points(trajectory: Any) -> bool:
    try:
        shapes.along(trajectory, np.asarray([shapes.ends(trajectory)[0]]))
    except shapes.NoShapeError:
        return False
    return True


def _panels(trajectory: Any, labels: Any) -> list[Any]:
    """Histories with something in them, one for each quantity and unit."""
    found = []
    for quantity in _QUANTITIES:
        values = getattr(trajectory, quantity, None)
        if values is not None and np.asarray(values).shape[-1]:
            found += histories.panels_of(trajectory, labels, quantity)
    return found


def _empty(subplots: Any, drawn: Shapes | None, panels: list[Any]) -> Any:
    rows = len(panels)
    kind = {
        "type": "xy" if drawn is None or drawn.dimension == 2 else "scene",
        "rowspan": min(rows, _BESIDE),
    }
    plots = [[{"type": "xy"}] for _ in panels]
    specs = [[kind if i == 0 else None, *plot] for i, plot in enumerate(plots)]
    return subplots.make_subplots(
        rows=rows,
        cols=1 if drawn is None else 2,
        specs=plots if drawn is None else specs,
        horizontal_spacing=0.1,
        vertical_spacing=0.1 / max(rows - 1, 1),
    )


def _draw_mechanism(parts: _Parts) -> list[int]:
    """Paths, ground and the mechanism at its start; the places of what moves among the curves."""
    if parts.drawn is None or parts.paths is None or parts.moving is None:
        return []
    drawn, go = parts.drawn, parts.go
    kind = go.Scatter if drawn.dimension == 2 else go.Scatter3d
    add = lambda **look: parts.figure.add_trace(kind(**look), row=1, col=1)  # noqa: E731
    for i, name in enumerate(drawn.points.trace):
        color = style.PALETTE[1 + i % (len(style.PALETTE) - 1)]
        line = {"color": color, "width": 1.0}
        add(
            **_curve(parts.paths.places[name]),
            mode="lines",
            line=line,
            opacity=0.6,
            name=f"path of {name}",
        )
    add(
        **_curve(drawn.ground(0)),
        mode="markers",
        marker={"color": _GROUND, "size": 10, "symbol": "triangle-up"}
        if drawn.dimension == 2
        else {"color": _GROUND, "size": 5, "symbol": "diamond"},
        name="ground",
    )
    wide = {"color": _LINK, "width": 4.0 if drawn.dimension == 2 else 6.0}
    looks = (
        {"mode": "lines", "line": {"color": _BODY, "width": 2.0}, "name": "bodies"}
        | ({"fill": "toself"} if drawn.dimension == 2 else {}),
        {"mode": "lines", "line": {"color": _LINK, "width": 1.0, "dash": "dash"}, "name": "lines"},
        {"mode": "lines", "line": wide, "name": "links"},
        {
            "mode": "markers+text",
            "marker": {"color": _LINK, "size": 6 if drawn.dimension == 2 else 3},
            "name": "points",
        },
    )
    before = len(parts.figure.data)
    for look, curve in zip(looks, parts.moving.curves[0], strict=True):
        add(**look, **curve, showlegend=False)
    return [*range(before, len(parts.figure.data))]


def _draw_panels(parts: _Parts, panels: list[Any]) -> list[int]:
    """Histories, and the lines that show the time of the slider."""
    figure, go = parts.figure, parts.go
    col = 1 if parts.drawn is None else 2
    cursors = []
    for row, panel in enumerate(panels, start=1):
        colors = style.colors(len(panel.names))
        for name, color, column in zip(panel.names, colors, panel.columns.T, strict=True):
            line = {"color": to_hex(color), "width": 1.5}
            curve = {"x": panel.ts, "y": column}
            look = {"mode": "lines", "line": line, "name": name, "legend": f"legend{row + 1}"}
            figure.add_trace(go.Scatter(**curve, **look, meta="history"), row=row, col=col)
        limits = style.limits_of_round_off(panel.columns)
        figure.update_yaxes(title_text=panel.heading, range=limits, row=row, col=col)
        top = next(figure.select_yaxes(row=row, col=col)).domain[1]
        place = {"x": 1.01, "y": top, "xanchor": "left", "yanchor": "top"}
        figure.update_layout({f"legend{row + 1}": place})
        last = row == len(panels)
        figure.update_xaxes(title_text="time t [s]" if last else None, row=row, col=col)
    for row, panel in enumerate(panels, start=1):
        look = {"mode": "lines", "line": {"color": style.QUIET, "width": 1.0}, "hoverinfo": "skip"}
        cursor = go.Scatter(**_cursor(panel, parts.ts[0]), **look, showlegend=False)
        figure.add_trace(cursor, row=row, col=col)
        cursors.append(len(figure.data) - 1)
    return cursors


def _cursor(panel: Any, t: float) -> dict[str, list[float]]:
    low, high = float(panel.columns.min()), float(panel.columns.max())
    return {"x": [float(t)] * 2, "y": [low, high]}


def _add_frames(parts: _Parts, moving: list[int], panels: list[Any]) -> None:
    """One frame for each stop of the slider: what moves, and the cursors."""
    go, drawn = parts.go, parts.drawn
    frames = []
    for i, t in enumerate(parts.ts):
        curves = []
        if drawn is not None and parts.moving is not None:
            curves = [_of(go, drawn, x) for x in parts.moving.curves[i]]
        curves += [go.Scatter(**_cursor(panel, t)) for panel in panels]
        frames.append(go.Frame(data=curves, traces=moving, name=str(i)))
    parts.figure.frames = frames


def _of(go: Any, drawn: Shapes, curve: dict[str, np.ndarray]) -> Any:
    return (go.Scatter if drawn.dimension == 2 else go.Scatter3d)(**curve)


def _lay_out(
    parts: _Parts, panels: int, title: str | None, failure: float | None, length: float
) -> None:
    speed = animation.simple_speed(length)
    delay = 1000.0 * length / speed / max(len(parts.ts) - 1, 1)
    said = [title or "", "" if speed == 1.0 else f"played at speed ×{speed:g}"]
    said.append("" if failure is None else f"failed after t = {failure:.4g} s")
    parts.figure.update_layout(
        template="plotly_white",
        title={"text": ", ".join(x for x in said if x)},
        height=max(_HEIGHT, _PANEL * panels + 160),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        sliders=[_slider(parts.ts)],
        updatemenus=[_buttons(delay)],
    )
    if parts.drawn is not None:
        _scale(parts.figure, parts.drawn)


def _scale(figure: Any, drawn: Shapes) -> None:
    """One scale on all axes of the mechanism, with room for everything at all times."""
    low, high = drawn.extent()
    room = 0.1 * (float(np.max(high - low)) or 1.0)
    axes = {}
    for name, a, b in zip("xyz", low - room, high + room, strict=False):
        label = readout.with_unit(name, drawn.points.unit)
        axes[f"{name}axis"] = {"title": {"text": label}, "range": [float(a), float(b)]}
    if drawn.dimension == 3:
        figure.update_scenes(**axes, aspectmode="data", camera={"eye": _EYE})
        return
    figure.update_xaxes(**axes["xaxis"], constrain="domain", row=1, col=1)
    figure.update_yaxes(
        **axes["yaxis"],
        scaleanchor="x",
        scaleratio=1.0,
        constrain="domain",
        constraintoward="top",
        row=1,
        col=1,
    )


def _animated(frames: list[str] | None, duration: float) -> dict[str, Any]:
    still = {"mode": "immediate", "transition": {"duration": 0}}
    frame = {"duration": duration, "redraw": True}
    return {"method": "animate", "args": [frames, still | {"frame": frame, "fromcurrent": True}]}


def _slider(ts: np.ndarray) -> dict[str, Any]:
    step = abs(ts[-1] - ts[0]) / max(ts.size - 1, 1)
    digits = max(0, -math.floor(math.log10(step))) if step > 0.0 else 3
    steps = [{"label": f"{t:.{digits}f}", **_animated([str(i)], 0.0)} for i, t in enumerate(ts)]
    value = {"prefix": "t = ", "suffix": " s", "xanchor": "center"}
    return {"steps": steps, "currentvalue": value, "x": 0.2, "len": 0.8, "pad": {"t": 50}}


def _buttons(delay: float) -> dict[str, Any]:
    play = {"label": "play", **_animated(None, delay)}
    # A list with one name that is none stops what plays.
    pause = {"label": "pause", **_animated([None], 0.0)}  # pyright: ignore[reportArgumentType]
    place = {"x": 0.0, "y": 0.0, "xanchor": "left", "yanchor": "top", "pad": {"t": 60}}
    return {"type": "buttons", "direction": "left", "buttons": [play, pause], **place}


def _with_title(page: str, title: str | None) -> str:
    head = f"<head><title>{html.escape(title or 'a run of jaxdae')}</title>"
    return page.replace("<head>", head, 1)
