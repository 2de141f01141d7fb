"""Energy against time, and its drift on a logarithmic axis."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jaxdae.plotting import readout, style

_PARTS = {"kinetic_energy": "kinetic", "potential_energy": "potential", "energy": "total"}
# Work below this part of the energies is none; their sum alone may be near zero all the time.
_NOTHING = 1e-6
_DRIFT = "|E − E₀| [J]"
_BALANCE = "|E − E₀ − W| [J]"


def energy_drift(trajectory: Any, *, work: bool = False) -> np.ndarray:
    """Change of energy since the first row [J], less the integrated work where asked for.

    Args:
        trajectory: with `ts`, `q`, `energy` of shape `(times,)`, and `work` when it is asked for: a
            tuple of the works of all causes, each of shape `(times,)`.
        work: subtract the work, so that what remains is the error of the integration.

    Returns:
        Absolute values for the finished rows, shape `(rows,)`.
    """
    energy = readout.rows(trajectory, trajectory.energy)[:, 0]
    drift = energy - energy[:1]
    if work:
        drift = drift - sum(readout.rows(trajectory, part)[:, 0] for part in trajectory.work)
    return np.abs(drift)


def draw_drifts(ax: Axes, runs: dict[str, Any], *, work: bool = False) -> None:
    """The energy drift of all runs on a logarithmic axis."""
    style.logarithmic(ax)
    ax.set_ylabel(_BALANCE if work else _DRIFT)
    alone = len(runs) == 1
    for (name, run), color in zip(runs.items(), style.colors(len(runs)), strict=True):
        size = energy_drift(run, work=work)
        style.draw_size(ax, readout.times(run), size, color=color, name=name)
        mark = style.FAILURE if alone else color
        style.mark_failure(ax, readout.failure_time(run), color=mark, name=name)
    style.show_after_start(ax)


def _draw_parts(ax: Axes, run: Any, *, work: bool) -> None:
    """Kinetic, potential and total energy of a single run, as far as it has them.

    Of a driven or damped one also what is constant: its energy less the work since the start.
    """
    results = {label: getattr(run, name, None) for name, label in _PARTS.items()}
    present = {label: values for label, values in results.items() if values is not None}
    if work and _driven(run):
        present["total less work"] = np.asarray(run.energy) - sum(map(np.asarray, run.work))
    columns = np.concatenate([readout.rows(run, values) for values in present.values()], axis=1)
    style.draw_lines(ax, readout.times(run), columns, list(present))
    style.mark_failure(ax, readout.failure_time(run))


def _driven(run: Any) -> bool:
    """Whether work changes the energy, by more than the round-off of what constraints do."""
    largest = lambda x: np.max(np.abs(np.nan_to_num(x)), initial=0.0)  # noqa: E731
    least = _NOTHING * max(largest(getattr(run, name, 0.0)) for name in _PARTS)
    return any(largest(x) > least for x in run.work)


def _draw_totals(ax: Axes, runs: dict[str, Any]) -> None:
    for (name, run), color in zip(runs.items(), style.colors(len(runs)), strict=True):
        energy = readout.rows(run, run.energy)[:, 0]
        ax.plot(readout.times(run), energy, color=color, label=name)
        style.mark_failure(ax, readout.failure_time(run), color=color, name=name)


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
        _draw_totals(upper, runs)
    draw_drifts(lower, runs, work=work)
    style.finish(axes)
    return figure
