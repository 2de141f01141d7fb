"""A page of a run for the browser: the mechanism moves, and its time is that of the plots."""

import html
import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from jaxdae.plotting import animation, histories, readout, shapes, style
from jaxdae.plotting.mechanism import BODY, GROUND, LINK, named_places, PATHS
from jaxdae.plotting.shapes import Shapes
from jaxdae.storage.files import output_file, replace_file

# Times that the slider stops at: a film of 5 to 20 s.
_FRAMES = 151
_QUANTITIES = ("q", "v", "u", "w")
# Heights of the page, of one panel at least [pixels].
_HEIGHT, _PANEL = 560, 150
# Of many panels the mechanism stands beside the first.
_BESIDE = 3
# Where mechanisms in space are seen from, so that numbers of their axes are in the picture.
_EYE = {"x": 1.5, "y": 1.5, "z": 1.1}

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
    try:
        import plotly.graph_objects as go  # pyright: ignore[reportMissingImports]
        from plotly import subplots  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("a page needs plotly: pip install 'jaxdae[page]'.") from error
    first, last = shapes.ends(trajectory)
    ts = np.linspace(first, last, _FRAMES if last != first else 1)
    panels = _panels(trajectory, readout.get_labels(trajectory, labels))
    try:
        drawn, paths = shapes.along(trajectory, ts), shapes.along(trajectory)
    except shapes.NoShapeError:
        drawn = paths = None
    figure = _empty(subplots, drawn, len(panels))
    kind = go.Scatter if drawn is None or drawn.dimension == 2 else go.Scatter3d
    moving = [] if drawn is None else [_mechanism_at(drawn, i) for i in range(ts.size)]
    if drawn is not None and paths is not None:
        for curve in [*_still(drawn, paths), *moving[0]]:
            figure.add_trace(kind(**curve), row=1, col=1)
        _scale(figure, drawn)
    column, first_moving = (1, 0) if drawn is None else (2, len(figure.data) - len(moving[0]))
    _draw_panels(go, figure, panels, column)
    cursors = [[_cursor(panel, t) for panel in panels] for t in ts]
    for row, cursor in enumerate(cursors[0], start=1):
        figure.add_trace(go.Scatter(**cursor), row=row, col=column)
    count = len(figure.data)
    traces = [*range(first_moving, first_moving + 4)] if moving else []
    traces += range(count - len(panels), count)
    figure.frames = [
        go.Frame(
            data=[kind(**_places(x)) for x in (moving[i] if moving else ())]
            + [go.Scatter(**_places(x)) for x in cursors[i]],
            traces=traces,
            name=str(i),
        )
        for i in range(ts.size)
    ]
    _lay_out(figure, ts, len(panels), title, readout.failure_time(trajectory))
    text = figure.to_html(
        include_plotlyjs=True,
        auto_play=False,
        post_script=_SCRIPT % [round(float(t), 12) for t in ts],
        config={"responsive": True, "displaylogo": False},
    )
    path = output_file(path, "run.html")
    head = f"<head><title>{html.escape(title or 'a run of jaxdae')}</title>"
    replace_file(path, text.replace("<head>", head, 1).encode())
    return path


def _panels(trajectory: Any, labels: Any) -> list[Any]:
    """Histories with something in them, one for each quantity and unit."""
    found = []
    for quantity in _QUANTITIES:
        values = getattr(trajectory, quantity, None)
        if values is not None and np.asarray(values).shape[-1]:
            found += histories.panels_of(trajectory, labels, quantity)
    return found


def _empty(subplots: Any, drawn: Shapes | None, rows: int) -> Any:
    """A figure with axes for the mechanism, beside the first panels, and for each panel."""
    specs: list[list[Any]] = [[{"type": "xy"}] for _ in range(rows)]
    if drawn is not None:
        kind = "xy" if drawn.dimension == 2 else "scene"
        specs = [[None, *panel] for panel in specs]
        specs[0][0] = {"type": kind, "rowspan": min(rows, _BESIDE)}
    return subplots.make_subplots(
        rows=rows,
        cols=len(specs[0]),
        specs=specs,
        horizontal_spacing=0.1,
        vertical_spacing=0.1 / max(rows - 1, 1),
    )


def _curve(points: np.ndarray, **look) -> dict[str, Any]:
    """Columns by the names of axes, and how they look."""
    return dict(zip("xyz", points.T, strict=False)) | look


def _places(curve: dict[str, Any]) -> dict[str, Any]:
    """What of a curve differs from frame to frame."""
    return {x: curve[x] for x in ("x", "y", "z", "text") if x in curve}


def _still(drawn: Shapes, paths: Shapes) -> list[dict[str, Any]]:
    """Paths of points, and the ground."""
    flat = drawn.dimension == 2
    mark = {"size": 10, "symbol": "triangle-up"} if flat else {"size": 5, "symbol": "diamond"}
    found = [
        _curve(
            paths.places[name],
            mode="lines",
            line={"color": color, "width": 1.0},
            opacity=0.6,
            name=f"path of {name}",
        )
        for name, color in zip(drawn.points.trace, cycle(PATHS), strict=False)
    ]
    ground = drawn.ground(0)
    return [*found, _curve(ground, mode="markers", marker=mark | {"color": GROUND}, name="ground")]


def _mechanism_at(drawn: Shapes, i: int) -> list[dict[str, Any]]:
    """Four curves: bodies, lines, links, and points with names beside them, at one time."""
    flat = drawn.dimension == 2
    shown = [x for x in drawn.places if not x.startswith("_")]
    marks = np.stack([drawn.places[x][i] for x in shown]) if shown else drawn.joints(i)
    # Those of one place are written once, beside the first of them.
    texts = dict.fromkeys(shown, "")
    for _, names in named_places(drawn, i):
        texts[names[0]] = ", ".join(names)
    line = lambda color, width, **more: {  # noqa: E731
        "mode": "lines",
        "line": {"color": color, "width": width, **more},
        "showlegend": False,
    }
    fill = {"fill": "toself"} if flat else {}
    point = {"mode": "markers+text", "marker": {"color": LINK, "size": 6 if flat else 3}}
    return [
        _curve(drawn.edges(i), name="bodies", **line(BODY, 2.0), **fill),
        _curve(drawn.lines(i), name="lines", **line(LINK, 1.0, dash="dash")),
        _curve(drawn.links(i), name="links", **line(LINK, 4.0 if flat else 6.0)),
        _curve(
            marks,
            name="points",
            text=[*texts.values()],
            textposition="top center",
            showlegend=False,
            **point,
        ),
    ]


def _draw_panels(go: Any, figure: Any, panels: list[Any], col: int) -> None:
    """Histories, each with a legend of its own."""
    for row, panel in enumerate(panels, start=1):
        colors = style.colors(len(panel.names))
        for name, color, column in zip(panel.names, colors, panel.columns.T, strict=True):
            look = {"mode": "lines", "line": {"color": to_hex(color), "width": 1.5}, "name": name}
            curve = go.Scatter(
                x=panel.ts, y=column, legend=f"legend{row + 1}", meta="history", **look
            )
            figure.add_trace(curve, row=row, col=col)
        limits = style.limits_of_constant(panel.columns)
        figure.update_yaxes(title_text=panel.heading, range=limits, row=row, col=col)
        top = next(figure.select_yaxes(row=row, col=col)).domain[1]
        place = {"x": 1.01, "y": top, "xanchor": "left", "yanchor": "top"}
        figure.update_layout({f"legend{row + 1}": place})
    figure.update_xaxes(title_text="time t [s]", row=len(panels), col=col)


def _cursor(panel: Any, t: float) -> dict[str, Any]:
    """The line that shows the time of the slider."""
    low, high = float(panel.columns.min()), float(panel.columns.max())
    line = {"color": style.QUIET, "width": 1.0}
    look = {"mode": "lines", "line": line, "hoverinfo": "skip", "showlegend": False}
    return {"x": [float(t)] * 2, "y": [low, high], **look}


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
    equal = {"scaleanchor": "x", "scaleratio": 1.0, "constraintoward": "top"}
    figure.update_yaxes(**axes["yaxis"], **equal, constrain="domain", row=1, col=1)


def _lay_out(
    figure: Any, ts: np.ndarray, panels: int, title: str | None, failure: float | None
) -> None:
    """Heading, slider, and buttons that play and pause."""
    length, steps = abs(ts[-1] - ts[0]), max(ts.size - 1, 1)
    speed = animation.simple_speed(length)
    said = [title or "", "" if speed == 1.0 else f"played at speed ×{speed:g}"]
    said.append("" if failure is None else f"failed after t = {failure:.4g} s")
    digits = max(0, -math.floor(math.log10(length / steps))) if length > 0.0 else 3
    stops = [{"label": f"{t:.{digits}f}", **_animated([str(i)], 0.0)} for i, t in enumerate(ts)]
    shown = {"prefix": "t = ", "suffix": " s", "xanchor": "center"}
    play = {"label": "play", **_animated(None, 1000.0 * length / speed / steps)}
    # A list with one name that is none stops what plays.
    pause = {"label": "pause", **_animated([None], 0.0)}
    place = {"x": 0.0, "y": 0.0, "xanchor": "left", "yanchor": "top", "pad": {"t": 60}}
    figure.update_layout(
        template="plotly_white",
        title={"text": ", ".join(x for x in said if x)},
        height=max(_HEIGHT, _PANEL * panels + 160),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        sliders=[{"steps": stops, "currentvalue": shown, "x": 0.2, "len": 0.8, "pad": {"t": 50}}],
        updatemenus=[{"type": "buttons", "direction": "left", "buttons": [play, pause], **place}],
    )


def _animated(frames: Sequence[str | None] | None, duration: float) -> dict[str, Any]:
    still = {"mode": "immediate", "transition": {"duration": 0}}
    frame = {"duration": duration, "redraw": True}
    return {"method": "animate", "args": [frames, still | {"frame": frame, "fromcurrent": True}]}
