"""Accuracy against work: points, and the front of those that nothing dominates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from jaxdae.plotting import style

_LABELS = {
    "evaluations": "evaluations of the right-hand side in a run",
    "steps": "steps of a run",
    "dt": "step [s]",
}
_MARKERS = "osD^v*"
# A cost so many times the least is of a run that grew beyond all bounds, and would take the axis
# for itself.
_BEYOND = 1e8


def plot_front(
    fronts: Any, *, x: str = "evaluations", ylabel: str = "cost", title: str | None = None
) -> Figure:
    """Draw costs against work, both logarithmic.

    Points that nothing dominates are filled and joined, others are hollow. Points with failed runs
    have no cost, and some are 1e8 times the least: crosses at the upper edge mark where they are.

    Args:
        fronts: what `jaxdae.tuning.front` returns, or a mapping of names to several of them.
        x: "evaluations", "steps" or "dt".
        ylabel: what the cost is, with its unit.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: for another `x`, or no points at all.
    """
    if x not in _LABELS:
        raise ValueError(f'x is {x!r}; give "evaluations", "steps" or "dt".')
    named = dict(fronts) if isinstance(fronts, Mapping) else {"": fronts}
    sets = {name: list(one.points) for name, one in named.items()}
    if not any(sets.values()):
        raise ValueError("the fronts have no points to draw.")
    finite = [p.cost for points in sets.values() for p in points if np.isfinite(p.cost)]
    highest = _BEYOND * min((c for c in finite if c > 0), default=1.0)
    figure, axes = style.new_axes(1, title=title)
    figure.set_size_inches(8.0, 4.5)
    ax = axes[0, 0]
    for i, ((name, points), color) in enumerate(
        zip(sets.items(), style.colors(len(sets)), strict=True)
    ):
        _draw(ax, name, points, x, highest, color=color, marker=_MARKERS[i % len(_MARKERS)])
    ax.set_xscale("log")
    style.logarithmic(ax)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_ylabel(ylabel)
    style.finish(axes, xlabel=_LABELS[x])
    return figure


def _draw(
    ax: Axes, name: str, points: list, x: str, highest: float, *, color: Any, marker: str
) -> None:
    def columns(kept) -> tuple[list, list]:
        some = sorted((p for p in points if kept(p)), key=lambda p: getattr(p, x))
        return [getattr(p, x) for p in some], [p.cost for p in some]

    lost = lambda p: p.failed > 0 or not p.cost <= highest  # noqa: E731
    # A line without points where there are none: the legend then names the set all the same.
    best = columns(lambda p: not (p.dominated or lost(p)))
    ax.plot(*best, color=color, marker=marker, label=name or "not dominated")
    behind = columns(lambda p: p.dominated and not lost(p))
    if behind[0]:
        label = f"{name}, dominated" if name else "dominated"
        ax.plot(*behind, marker, color=color, markerfacecolor="none", label=label)
    beyond = columns(lost)[0]
    if beyond:
        label = f"{name}, failed or beyond" if name else "failed or beyond"
        heights, edge = np.full(len(beyond), 0.97), ax.get_xaxis_transform()
        ax.plot(beyond, heights, "x", color=color, transform=edge, clip_on=False, label=label)
