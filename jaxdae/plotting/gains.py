"""Pictures of gains: what they leave of a violation, and where they lie in their plane."""

from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from jaxdae.plotting import style

# Gains tuned for one step and those by theory do the same: dashes leave the curve below in sight.
_LINES = ("-", "-", "--", "-")
LEVELS = {"|phi|": "phi", "|d(phi)/dt|": "phi_dot"}


def plot_levels(runs: dict[str, dict[str, Any]], *, title: str | None = None) -> Figure:
    """Draw the violation at both levels over time, a column for each condition."""
    figure, axes = style.new_axes(len(LEVELS), len(runs), title=title, sharex=False)
    for column, (condition, named) in enumerate(runs.items()):
        axes[0, column].set_title(condition, fontsize="medium")
        failed = [name for name, run in named.items() if not np.isfinite(run.ts).all()]
        # One legend serves all panels.
        last, colors = column == len(runs) - 1, style.colors(len(named))
        for row, (heading, level) in enumerate(LEVELS.items()):
            ax = axes[row, column]
            style.logarithmic(ax)
            for (name, run), color, line in zip(named.items(), colors, cycle(_LINES), strict=False):
                with np.errstate(over="ignore"):  # of runs that fail
                    size = np.linalg.norm(np.asarray(getattr(run.violation, level)), axis=1)
                ts = np.asarray(run.ts)
                reached = np.isfinite(ts)
                look: Any = {"color": color, "linestyle": line}
                label = name if last and row == 0 else None
                ax.plot(ts[reached], style.positive(size[reached]), label=label, **look)
            ax.set_ylabel(heading if column == 0 else "")
            if failed:
                style.remark(ax, "fails: " + "; ".join(failed))
    for row in axes:
        # One scale for a row, without what runs that blow up reach on the way.
        values = [np.asarray(line.get_ydata(), float) for ax in row for line in ax.get_lines()]
        starts = max((y[0] for y in values if len(y)), default=1.0)
        finite = np.concatenate([y[np.isfinite(y)] for y in values])
        finite = finite[finite < 1e3 * starts]
        if finite.size:
            for ax in row:
                ax.set_ylim(finite.min() / 3, finite.max() * 3)
    style.finish(axes)
    return figure


class StabilityLimit(NamedTuple):
    """Largest factors of a step by linear theory over the plane: 1 at the stability limit.

    Args:
        x: values of `K_D h`, shape `(kx,)`.
        y: values of `K_P h^2`, shape `(ky,)`.
        factor: shape `(kx, ky)`.
    """

    x: np.ndarray
    y: np.ndarray
    factor: np.ndarray


class CostPlane(NamedTuple):
    """Costs over the plane of gains in units of the step.

    Args:
        title: of the panel.
        x: values of `K_D h`, shape `(nx,)`.
        y: values of `K_P h^2`, shape `(ny,)`.
        cost: shape `(nx, ny)`; NaN where runs fail.
        limit: where the largest factor of a step is 1 by linear theory.
        points: gains by name, each `(x, y)`.
        path: where the optimizer went, shape `(points, 2)`.
    """

    title: str
    x: np.ndarray
    y: np.ndarray
    cost: np.ndarray
    limit: StabilityLimit
    points: dict[str, tuple[float, float]]
    path: np.ndarray


# Largest cost over the smallest that colours tell apart, and the part of the cells that they do
# tell apart: single cells of runs that blow up, short of a failure, would take the scale.
_SPAN, _SHOWN = 1e8, 0.98
_FAILED = "#D8D8D8"
_MARKERS = ("o", "*", "D", "s", "^")


def plot_planes(planes: list[CostPlane], *, heading: str, title: str | None = None) -> Figure:
    """Draw costs over `(K_D h, K_P h^2)`, with the stability limit, gains and a tuner's path."""
    figure = Figure(figsize=(1.5 + 5.0 * len(planes), 4.6))
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, len(planes), squeeze=False, sharey=True)[0]
    costs = np.concatenate([p.cost[np.isfinite(p.cost) & (p.cost > 0)] for p in planes])
    norm = None
    if costs.size:
        low, high = float(costs.min()), float(np.quantile(costs, _SHOWN, method="higher"))
        norm = LogNorm(low, min(high, _SPAN * low))
    meshes = [_draw_plane(ax, plane, norm) for ax, plane in zip(axes, planes, strict=True)]
    axes[0].set_ylabel("K_P h²")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=7)
    if norm is not None:  # without a cost there is nothing to read off
        beyond = "max" if costs.max() > norm.vmax else "neither"
        figure.colorbar(meshes[-1], ax=list(axes), label=heading, extend=beyond)
    if title:
        figure.suptitle(title)
    return figure


def _draw_plane(ax: Axes, plane: CostPlane, norm: LogNorm | None):
    ax.set_facecolor(_FAILED)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("K_D h")
    ax.set_title(plane.title, fontsize="medium")
    x, y = plane.x, plane.y
    mesh = ax.pcolormesh(x, y, np.ma.masked_invalid(plane.cost.T), norm=norm, cmap="viridis_r")
    limit = plane.limit
    ax.contour(limit.x, limit.y, limit.factor.T, [1.0], colors=style.FAILURE, linewidths=1.4)
    ax.plot([], [], color=style.FAILURE, label="stability limit")
    ax.plot([], [], "s", color=_FAILED, markersize=10, label="runs fail")
    path = plane.path
    if len(path):
        ax.plot(*path.T, ".-", color="black", linewidth=0.9, markersize=4, label="the tuner's path")
    colors = style.colors(len(plane.points))
    for (name, (a, b)), marker, color in zip(plane.points.items(), _MARKERS, colors, strict=False):
        size = 18 if marker == "*" else 7
        look = {"markersize": size, "color": color, "markeredgecolor": "white"}
        ax.plot([a], [b], marker, label=name, **look)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(y[0], y[-1])
    return mesh
