"""Constraint violation on logarithmic axes, of one run or of several side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxdae.plotting import readout, style
from jaxdae.plotting.energy import draw_drifts

_LEVELS = {"phi": "‖φ‖", "phi_dot": "‖dφ/dt‖"}
# Of constraints that are all velocity constraints `g(t, q, v) = 0`.
_VELOCITY = "‖g‖"


def _residuals(trajectory: Any, level: str) -> np.ndarray:
    return np.abs(readout.rows(trajectory, getattr(trajectory.violation, level)))


def _has(runs: dict[str, Any], level: str) -> bool:
    return any(_residuals(run, level).shape[1] for run in runs.values())


def _levels(runs: dict[str, Any]) -> list[str]:
    """Levels with constraints; one without where there are none at all."""
    return [level for level in _LEVELS if _has(runs, level)] or ["phi_dot"]


def _units(trajectory: Any, labels: Any, level: str) -> list[str]:
    """Unit of each residual; at velocity level position constraints lose a second."""
    m = np.asarray(trajectory.violation.phi).shape[-1]
    count = np.asarray(getattr(trajectory.violation, level)).shape[-1]
    units = readout.label_field(labels, "constraint_units", count, lambda _: "")
    if level == "phi":
        return units
    return [readout.per_second(unit) if i < m else unit for i, unit in enumerate(units)]


def _draw_components(ax: Axes, trajectory: Any, labels: Any, level: str) -> None:
    """Thin lines behind the norm that show which constraint is violated."""
    residuals = _residuals(trajectory, level)
    count = residuals.shape[1]
    if count > 1:
        names = readout.label_field(labels, "constraints", count, lambda i: f"f{i + 1}")
        columns = style.positive(residuals)
        style.draw_lines(ax, readout.times(trajectory), columns, names, linewidth=0.9, alpha=0.9)


def _draw_level(ax: Axes, runs: dict[str, Any], labels: Any, level: str) -> None:
    """Norms of all runs at one level; of a single run also its components."""
    style.logarithmic(ax)
    first = next(iter(runs.values()))
    unit = readout.common_unit(_units(first, labels, level) or [""])
    ax.set_ylabel(readout.with_unit(_LEVELS[level] if _has(runs, "phi") else _VELOCITY, unit))
    if not _has(runs, level):
        style.note(ax, "no constraints")
        ax.set_ylabel("")
        ax.set_yticks([])
    alone = len(runs) == 1
    if alone:
        _draw_components(ax, first, labels, level)
    palette = ["#000000"] if alone else style.colors(len(runs))
    for (name, run), color in zip(runs.items(), palette, strict=True):
        residuals = _residuals(run, level)
        if residuals.shape[1]:
            norm = np.linalg.norm(residuals, axis=1)
            label = name or ("norm" if residuals.shape[1] > 1 else "")
            style.draw_size(ax, readout.times(run), norm, color=color, name=label)
    style.show_after_start(ax)
    for (name, run), color in zip(runs.items(), palette, strict=True):
        mark = style.FAILURE if alone else color
        style.mark_failure(ax, readout.failure_time(run), color=mark, name=name)


def plot_violation(trajectories: Any, *, labels: Any = None, title: str | None = None) -> Figure:
    r"""Draw the Euclidean norms of `phi` and `phi_dot` against time on logarithmic axes.

    Of a single run with several constraints each residual is drawn too, so that one sees which
    constraint is violated. Exact zeros leave gaps: a logarithmic axis has no place for them. Where
    all constraints are velocity constraints, there is one panel.

    Args:
        trajectories: one trajectory, or a mapping from names to trajectories to be compared; each
            with `ts`, `q`, `success`, `violation.phi` of shape `(times, m)` and
            `violation.phi_dot` of shape `(times, m + r)`.
        labels: names and units (`jaxdae.Labels`); those of the first trajectory's system when not
            given.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there is nothing to draw, or a trajectory is a batch.
    """
    runs = readout.named(trajectories)
    labels = readout.get_labels(next(iter(runs.values())), labels)
    levels = _levels(runs)
    figure, axes = style.new_axes(len(levels), title=title)
    for ax, level in zip(axes.flat, levels, strict=True):
        _draw_level(ax, runs, labels, level)
    style.finish(axes)
    return figure


def plot_comparison(
    trajectories: Mapping[str, Any],
    *,
    labels: Any = None,
    work: bool = False,
    title: str | None = None,
) -> Figure:
    """Draw runs of one system over each other: violation at both levels and change of energy.

    The energy of a driven or dissipative system changes in an exact motion too; there `work=True`
    leaves the error alone.

    Args:
        trajectories: for example `{"paper's gains": before, "tuned": after}`, each as for
            `plot_violation` and `plot_energy`.
        labels: names and units (`jaxdae.Labels`); those of the first trajectory's system when not
            given.
        work: subtract the work done since the start from the energy (see `plot_energy`).
        title: heading of the figure.

    Returns:
        The figure; the legends give the largest value of every curve.

    Raises:
        ValueError: when there is nothing to draw, or a trajectory is a batch.
    """
    runs = readout.named(trajectories)
    labels = readout.get_labels(next(iter(runs.values())), labels)
    levels = _levels(runs)
    figure, axes = style.new_axes(len(levels) + 1, title=title)
    for ax, level in zip(axes.flat[:-1], levels, strict=True):
        _draw_level(ax, runs, labels, level)
    draw_drifts(axes.flat[-1], runs, work=work)
    style.finish(axes)
    return figure
