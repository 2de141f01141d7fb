"""What a run should keep: violation of its constraints, its energy, of one run or of several."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxdae.plotting import readout, style

_LEVELS = {"phi": "‖φ‖", "phi_dot": "‖dφ/dt‖"}
_PARTS = {"kinetic_energy": "kinetic", "potential_energy": "potential", "energy": "total"}
# Work below this part of the energies is none; their sum alone may be near zero all the time.
_NOTHING = 1e-6


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
    levels = _levels(runs)
    figure, axes = style.new_axes(len(levels), title=title)
    _draw_levels(axes.flat, runs, labels, levels)
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
    levels = _levels(runs)
    figure, axes = style.new_axes(len(levels) + 1, title=title)
    _draw_levels(axes.flat[:-1], runs, labels, levels)
    _draw_drifts(axes.flat[-1], runs, work=work)
    style.finish(axes)
    return figure


def plot_energy(trajectories: Any, *, work: bool = False, title: str | None = None) -> Figure:
    """Draw the energy against time, and below it the size of its change since the start.

    Of a single run the kinetic and potential parts are drawn too.

    Args:
        trajectories: one trajectory, or a mapping from names to trajectories to be compared; each
            with `ts`, `q`, `success` and `energy` of shape `(times,)` [J].
        work: subtract the work done since the start (`simulate(..., work=True)`). Then the lower
            picture shows the error of the integration for dissipative and driven systems too.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there is nothing to draw, or a trajectory is a batch.
    """
    runs = readout.named(trajectories)
    figure, axes = style.new_axes(2, title=title)
    upper, lower = axes.flat
    upper.set_ylabel("energy E [J]")
    if len(runs) == 1:
        _draw_parts(upper, next(iter(runs.values())), work=work)
    else:
        for (name, run), color in zip(runs.items(), style.colors(len(runs)), strict=True):
            energy = readout.rows(run, run.energy)[:, 0]
            upper.plot(readout.times(run), energy, color=color, label=name)
    _mark_failures(upper, runs)
    _draw_drifts(lower, runs, work=work)
    style.finish(axes)
    return figure


def _mark_failures(ax: Axes, runs: dict[str, Any]) -> None:
    """In the colours of the runs; a single one in that of failures."""
    colors = style.colors(len(runs)) if len(runs) > 1 else [style.FAILURE]
    for (name, run), color in zip(runs.items(), colors, strict=True):
        style.mark_failure(ax, readout.failure_time(run), color=color, name=name)


def _draw_drifts(ax: Axes, runs: dict[str, Any], *, work: bool) -> None:
    """Changes of energy since the first row, less the work where asked for."""
    style.logarithmic(ax)
    ax.set_ylabel("|E − E₀ − W| [J]" if work else "|E − E₀| [J]")
    for (name, run), color in zip(runs.items(), style.colors(len(runs)), strict=True):
        energy = readout.rows(run, run.energy)[:, 0]
        drift = energy - energy[:1]
        if work:
            drift = drift - sum(readout.rows(run, part)[:, 0] for part in run.work)
        style.draw_size(ax, readout.times(run), np.abs(drift), color=color, name=name)
    _mark_failures(ax, runs)
    style.show_after_start(ax)


def _draw_parts(ax: Axes, run: Any, *, work: bool) -> None:
    """Kinetic, potential and total energy of a single run, as far as it has them.

    Of a driven or damped one also what is constant: its energy less the work since the start.
    """
    results = {label: getattr(run, name, None) for name, label in _PARTS.items()}
    present = {label: values for label, values in results.items() if values is not None}
    if work:
        # By more than the round-off of what constraints do.
        largest = lambda x: np.max(np.abs(np.nan_to_num(x)), initial=0.0)  # noqa: E731
        least = _NOTHING * max(map(largest, present.values()))
        if any(largest(x) > least for x in run.work):
            present["total less work"] = np.asarray(run.energy) - sum(map(np.asarray, run.work))
    columns = np.concatenate([readout.rows(run, values) for values in present.values()], axis=1)
    style.draw_lines(ax, readout.times(run), columns, list(present))


def _residuals(trajectory: Any, level: str) -> np.ndarray:
    return np.abs(readout.rows(trajectory, getattr(trajectory.violation, level)))


def _levels(runs: dict[str, Any]) -> list[str]:
    """Levels with constraints; one without where there are none at all."""
    has = lambda level: any(_residuals(run, level).shape[1] for run in runs.values())  # noqa: E731
    return [level for level in _LEVELS if has(level)] or ["phi_dot"]


def _draw_levels(axes: Any, runs: dict[str, Any], labels: Any, levels: list[str]) -> None:
    """Norms of all runs at each level; of a single run also its components."""
    first, alone = next(iter(runs.values())), len(runs) == 1
    labels = readout.get_labels(first, labels)
    palette = ["#000000"] if alone else style.colors(len(runs))
    for ax, level in zip(axes, levels, strict=True):
        style.logarithmic(ax)
        # Of constraints that are all velocity constraints `g(t, q, v) = 0`, that is their name.
        heading = _LEVELS[level] if "phi" in levels else "‖g‖"
        unit = readout.common_unit(_units(first, labels, level) or [""])
        ax.set_ylabel(readout.with_unit(heading, unit))
        drawn = {name: _residuals(run, level) for name, run in runs.items()}
        if not any(x.shape[1] for x in drawn.values()):
            style.note(ax, "no constraints")
            ax.set_ylabel("")
            ax.set_yticks([])
        if alone and (count := drawn[next(iter(runs))].shape[1]) > 1:
            # Thin lines behind the norm show which constraint is violated.
            names = readout.label_field(labels, "constraints", count, lambda i: f"f{i + 1}")
            columns = style.positive(drawn[next(iter(runs))])
            style.draw_lines(ax, readout.times(first), columns, names, linewidth=0.9, alpha=0.9)
        for (name, run), color in zip(runs.items(), palette, strict=True):
            if count := drawn[name].shape[1]:
                norm = np.linalg.norm(drawn[name], axis=1)
                label = name or ("norm" if count > 1 else "")
                style.draw_size(ax, readout.times(run), norm, color=color, name=label)
        style.show_after_start(ax)
        _mark_failures(ax, runs)


def _units(trajectory: Any, labels: Any, level: str) -> list[str]:
    """Unit of each residual; at velocity level position constraints lose a second."""
    m = np.asarray(trajectory.violation.phi).shape[-1]
    count = np.asarray(getattr(trajectory.violation, level)).shape[-1]
    units = readout.label_field(labels, "constraint_units", count, lambda _: "")
    if level == "phi":
        return units
    return [readout.per_second(unit) if i < m else unit for i, unit in enumerate(units)]
