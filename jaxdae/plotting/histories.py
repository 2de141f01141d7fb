"""Time histories of coordinates, velocities, multipliers, actuator states and controls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from jaxdae.diagnosis import curves
from jaxdae.diagnosis.findings import NearSingularity
from jaxdae.plotting import readout, style

# More near-singular positions than this are marked along this part of the axes' height alone.
_FEW_SINGULARITIES, _EDGE = 10, 0.08


class _Panel(NamedTuple):
    """The columns of one quantity that share a unit, shape `(times, k)`, and their times [s]."""

    heading: str
    names: list[str]
    columns: np.ndarray
    ts: np.ndarray


# Heading, letter of what has no name, and the fields of `Labels` with names and units. The unit of
# a multiplier depends on the scaling of its constraint: none is claimed.
QUANTITIES = {
    "q": ("coordinates q", "q", "coordinates", "units"),
    "v": ("velocities v", "q", "coordinates", "units"),
    "w": ("actuator states w", "w", "actuators", "actuator_units"),
    "u": ("controls u", "u", "inputs", "input_units"),
    "multipliers": ("multipliers λ", "f", "constraints", ""),
}


def names_and_units(
    trajectory: Any, labels: Any, quantity: str, count: int
) -> tuple[list[str], list[str]]:
    """Of the columns of a quantity, numbered where they are not named."""
    if quantity == "v" and not readout.velocities_are_rates(trajectory):
        names = readout.label_field(labels, "velocities", count, lambda i: f"v{i + 1}")
        return names, readout.label_field(labels, "velocity_units", count, lambda _: "")
    _, letter, field, unit_field = QUANTITIES[quantity]
    names = readout.label_field(labels, field, count, lambda i: f"{letter}{i + 1}")
    units = readout.label_field(labels, unit_field, count, lambda _: "")
    if quantity == "v":
        return [f"d({name})/dt" for name in names], [readout.per_second(unit) for unit in units]
    return names, units


# The same of differential-algebraic equations.
DAE_QUANTITIES = {
    "y": "variables y", "z": "algebraic variables z", "y_dot": "rates dy/dt", "u": "controls u",
}  # fmt: skip


def _is_of_equations(trajectory: Any) -> bool:
    return hasattr(trajectory, "y_dot")


def panels_of(trajectory: Any, labels: Any, quantity: str) -> list[_Panel]:
    """The panels of one quantity: one per unit, in the order of first appearance."""
    equations = _is_of_equations(trajectory)
    heading = DAE_QUANTITIES[quantity] if equations else QUANTITIES[quantity][0]
    values = getattr(trajectory, quantity, None)
    if values is None:
        return [_Panel(heading, [], np.zeros((0, 0)), np.zeros(0))]
    if equations:
        ts = readout.times(trajectory)
        columns, names = readout.flat(trajectory, values)[: ts.size], _entries(quantity, values)
        units = [""] * len(names) if quantity == "u" else trajectory.units_of(quantity)
    else:
        ts, columns = _curves(trajectory, quantity, values)
        names, units = names_and_units(trajectory, labels, quantity, columns.shape[1])
    groups = {unit: [i for i, u in enumerate(units) if u == unit] for unit in units}
    return [
        _Panel(readout.with_unit(heading, unit), [names[i] for i in chosen], columns[:, chosen], ts)
        for unit, chosen in groups.items()
    ] or [_Panel(heading, [], columns, ts)]


def _entries(quantity: str, values: Any) -> list[str]:
    """Names of the numbers in a row of a pytree."""
    import jax

    from jaxdae.systems.dae_names import entry_names

    row = jax.tree.map(lambda x: np.asarray(x)[0], values)
    head = "y" if quantity == "y_dot" else quantity
    return [f"d({x})/dt" if quantity == "y_dot" else x for x in entry_names(head, row)]


def _curves(trajectory: Any, quantity: str, values: Any) -> tuple[np.ndarray, np.ndarray]:
    """Times and values to draw: of few rows Hermite's cubics through `q` with the slopes `v`."""
    on_curves = quantity == "q" or (quantity == "v" and readout.velocities_are_rates(trajectory))
    rows = readout.moving(trajectory) if on_curves else None
    if rows is None:
        return readout.times(trajectory), readout.rows(trajectory, values)
    fine = readout.finely(rows)
    # In the run's own precision, by which round-off is estimated.
    return fine.ts, (fine.q if quantity == "q" else fine.v).astype(np.asarray(values).dtype)


def _is_run(trajectory: Any) -> bool:
    """Whether it is a run that can still be computed with, not one read from a file."""
    return getattr(trajectory, "formulation", None) is not None


def _too_few_rows(trajectory: Any) -> str | None:
    """What to say where rows do not show the motion, or a run took more steps than it has rows."""
    count = readout.times(trajectory).size
    rows = readout.moving(trajectory) if _is_run(trajectory) else None
    if rows is not None:
        long = int((~curves.resolved(np, *rows)).sum()) if rows.ts.size > 1 else 0
        what = f"{long} of {rows.ts.size - 1} intervals between rows are too long for the motion"
        return f"{what}; save more rows" if long else None
    steps = int(np.asarray((getattr(trajectory, "stats", None) or {}).get("num_steps", 0)))
    if steps <= count:
        return None
    return f"{count} rows of a run of {steps} steps: motions between rows may be missing"


def _singularities(trajectory: Any) -> list[NearSingularity]:
    """Near-singular positions that a run passed, as far as that can be computed."""
    rows = readout.moving(trajectory) if _is_run(trajectory) else None
    if rows is None or rows.ts.size < 2:
        return []
    # Loads JAX, which stored runs need not.
    from jaxdae.diagnosis.singularities import near_singularities_along

    found, _ = near_singularities_along(trajectory.system, trajectory.formulation, rows.ts, rows)
    return found


def _mark_singularities(axes: np.ndarray, found: list[NearSingularity]) -> None:
    """A dashed line through all axes at each, how close the closest was in the legend.

    Of many, lines at the edge: through all axes they would hide the curves.
    """
    if not found:
        return
    least = min(x.value for x in found)
    times = f" {len(found)} times" if len(found) > 1 else ""
    said = f"near-singular{times}, least σ = {f'{least:.1e}' if least else '0'}"
    height = 1.0 if len(found) <= _FEW_SINGULARITIES else _EDGE
    look = {"color": style.QUIET, "linestyle": "--", "linewidth": 0.9, "zorder": 1.5}
    for k, ax in enumerate(axes.flat):
        for i, singularity in enumerate(found):
            ax.axvline(singularity.time, 0.0, height, label=said if k == i == 0 else None, **look)


def plot_histories(
    trajectory: Any,
    *,
    labels: Any = None,
    quantities: Sequence[str] | None = None,
    singular: bool | Sequence[NearSingularity] = True,
    title: str | None = None,
) -> Figure:
    """Draw quantities of one trajectory against time, one pair of axes per quantity and unit.

    What is as small as round-off is not enlarged.

    Args:
        trajectory: what `jaxdae.simulate` or `jaxdae.solve` returned, or anything with `ts`, `q`,
            `success` and the quantities asked for, each with time first. A failed run ends where it
            failed. Between few rows `q` and `v` are drawn as Hermite's cubics. Where rows are too
            far apart for that, the figure says so; of a run read from a file, that it took more
            steps than it has rows.
        labels: names and units (`jaxdae.Labels`); those of `trajectory.system` when not given.
        quantities: any of `"q"`, `"v"`, `"w"`, `"u"`, `"multipliers"`, by default the first two; of
            a `DAETrajectory` any of `"y"`, `"z"`, `"y_dot"`, `"u"`, by default `"y"` and `"z"`, of
            a `residual` `"y"`.
        singular: mark near-singular positions, where the constraint Jacobian nearly loses rank; the
            legend has its least singular value there, rows scaled by their largest lengths. A run
            read from a file has none but those that are given here.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when a quantity is not one of these, or the trajectory is a batch.
    """
    known = DAE_QUANTITIES if _is_of_equations(trajectory) else QUANTITIES
    if quantities is None:
        algebraic = getattr(trajectory, "z", None) is not None
        quantities = ("q", "v") if known is QUANTITIES else ("y", "z") if algebraic else ("y",)
    readout.check_quantities(quantities, known)
    few, labels = _too_few_rows(trajectory), readout.get_labels(trajectory, labels)
    panels = [panel for quantity in quantities for panel in panels_of(trajectory, labels, quantity)]
    figure, axes = style.new_axes(len(panels), title=title)
    if few is not None:
        axes.flat[0].set_title(few, fontsize="small", color=style.QUIET, loc="left")
    for ax, panel in zip(axes.flat, panels, strict=True):
        ax.set_ylabel(panel.heading)
        if panel.names:
            style.draw_lines(ax, panel.ts, panel.columns, panel.names)
            limits = style.limits_of_constant(panel.columns)
            if limits is not None:
                ax.set_ylim(*limits)
        else:
            style.note(ax, "none")
        style.mark_failure(ax, readout.failure_time(trajectory))
    if singular is not False:
        _mark_singularities(
            axes, _singularities(trajectory) if singular is True else list(singular)
        )
    style.finish(axes)
    return figure
