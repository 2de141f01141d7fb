"""General time series with marked events, for diagnostics."""

from collections.abc import Collection, Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxdae.plotting import style

# The values of one panel: an array, or arrays by name.
PanelValues = ArrayLike | Mapping[str, ArrayLike]


def _lines(values: PanelValues) -> dict[str, np.ndarray]:
    """Curves by legend entry; the columns of a matrix are numbered from one."""
    named = values if isinstance(values, Mapping) else {"": values}
    lines = {}
    for name, array in named.items():
        array = np.asarray(array)
        if array.ndim < 2:
            lines[name] = array
        else:
            lines |= {f"{name} {i + 1}".strip(): column for i, column in enumerate(array.T)}
    return lines


def plot_series(
    ts: ArrayLike,
    panels: Mapping[str, PanelValues],
    *,
    events: Mapping[str, float] | None = None,
    log: Collection[str] = (),
    title: str | None = None,
) -> Figure:
    """Draw time series one below the other, with vertical marks at events.

    Example:
        Where a Jacobian loses rank, and how far the boundary of the workspace is::

            plot_series(
                ts,
                {"singular values of J": sigma, "distance to the boundary [m]": distance},
                events={"singular configuration": 0.4933},
                log=["singular values of J"],
            )

    Args:
        ts: times [s], shape `(times,)`; rows with times that are not finite are left out.
        panels: from the label of a vertical axis to its values: an array of shape `(times,)` or
            `(times, k)`, or such arrays by name.
        events: names and times [s] of the vertical marks.
        log: labels of the panels with a logarithmic axis; values that are not positive are left
            out there.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there are no panels, a length does not fit, or `log` names no panel.
    """
    if not panels:
        raise ValueError("there are no panels to draw")
    unknown = [heading for heading in log if heading not in panels]
    if unknown:
        raise ValueError(f"no panel is called {unknown}; there are: {list(panels)}")
    ts = np.asarray(ts)
    figure, axes = style.new_axes(len(panels), title=title)
    reached = np.isfinite(ts)
    for ax, (heading, values) in zip(axes.flat, panels.items(), strict=True):
        lines = _lines(values)
        ax.set_ylabel(heading)
        for line in lines.values():
            if line.shape != ts.shape:
                raise ValueError(
                    f"{heading!r} has values of shape {line.shape} at times of shape {ts.shape}; "
                    "time must be the first axis of every series"
                )
        if lines:
            columns = np.stack(list(lines.values()), axis=1)
            style.draw_lines(ax, ts[reached], columns[reached], list(lines))
        else:
            style.note(ax, "none")
        if heading in log:
            style.logarithmic(ax)
    for name, time in (events or {}).items():
        for ax in axes.flat:
            ax.axvline(time, color=style.QUIET, linestyle="--", linewidth=1.0)
        place = {"xytext": (0, 3), "textcoords": "offset points", "ha": "left", "va": "bottom"}
        look = {"rotation": 30, "fontsize": "small", "color": style.QUIET}
        top = axes[0, 0]
        top.annotate(name, (time, 1.0), xycoords=top.get_xaxis_transform(), **place, **look)
    style.finish(axes)
    return figure
