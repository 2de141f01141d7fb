"""A batch of runs in one picture: quantiles over its members, final values, failures."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxdae.plotting import readout, style
from jaxdae.plotting.batch_members import FEW, Members, members_of, Panel, quantiles
from jaxdae.plotting.histories import QUANTITIES

# Bands from the outside in, and the median.
_BANDS = ((0.05, 0.95, 0.18), (0.25, 0.75, 0.35))
# Of fewer members than this, quantiles would be made of nothing but their own interpolation.
_FEWEST = 5
_MOST_BINS = 40
_HEADINGS = {"phi": "‖φ‖", "phi_dot": "‖dφ/dt‖", "energy": "energy E [J]"}


def plot_batch(
    run: Any,
    *,
    labels: Any = None,
    quantities: Sequence[str] = ("q",),
    title: str | None = None,
) -> Figure:
    """Draw a batch of runs: quantiles over its members against time, and their final values.

    Each row of axes is one coordinate, velocity, …. On the left are the median, the bands of the
    middle half and of the middle nine tenths of the members that have come to a time; of up to
    twelve members each is drawn as well, and of fewer than five each alone, by its name. On the
    right is a histogram of the last values of the members that reached their end, or, of up to
    twelve, the last value of each; of a single member there is nothing to compare. Failed members
    are counted, the times of their failures marked; up to there they are part of the bands.

    Between rows each member follows the cubic Hermite polynomials through its `q` with the slopes
    `v`, and its velocities are the derivatives of these cubics, which pass through `v`. Quantiles
    are taken of these curves: at eight times in every interval where all members have the same
    times, of at most 1000 rows and of as many members as 20 million numbers allow; else at 401
    times. Everything else lies on straight lines between rows. Where members have different times,
    where members or rows are too many for cubics, or where rows are too far apart for them, the
    figure says so.

    Args:
        run: a batch that `jax.vmap` of `simulate` made, a stored one (`Trajectory.load`,
            `jaxdae.parallel.as_trajectory`), or anything with their `ts`, `q`, `v`, `success`,
            `final_time` and the quantities asked for.
        labels: names and units (`jaxdae.Labels`); those of the run when not given.
        quantities: any of `"q"`, `"v"`, `"w"`, `"u"`, `"multipliers"`, `"energy"`, and `"phi"` and
            `"phi_dot"` for Euclidean norms of the violation on logarithmic axes.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when a quantity is not one of these, the run is no batch, or has no members.
    """
    known = (*QUANTITIES, *_HEADINGS)
    unknown = [quantity for quantity in quantities if quantity not in known]
    if unknown or not quantities:
        raise ValueError(
            f"cannot draw the quantities {', '.join(map(repr, unknown)) or '()'}; "
            f"choose from {', '.join(map(repr, known))}"
        )
    members = members_of(run)
    labels = readout.get_labels(run, labels)
    panels = [panel for quantity in quantities for panel in _panels(run, members, labels, quantity)]
    alone = members.size == 1
    figure, axes = style.new_axes(len(panels), 1 if alone else 2, title=title, sharex=False)
    for i, (pair, panel) in enumerate(zip(axes, panels, strict=True)):
        _draw_fan(pair[0], members, panel, named=i == 0)
        pair[0].sharex(axes[0, 0])
        for last in pair[1:]:
            _draw_last(last, members, panel)
    axes[0, 0].set_title(_remark(members, panels), fontsize="small", color=style.QUIET, loc="left")
    style.finish(axes)
    if not alone:
        axes[-1, 1].set_xlabel("member" if members.size <= FEW else "members")
    return figure


def _panels(run: Any, members: Members, labels: Any, quantity: str) -> list[Panel]:
    if quantity in _HEADINGS:
        return [_norm(run, members, quantity)]
    values = getattr(run, quantity)
    heading, get_names = QUANTITIES[quantity]
    if values is None:
        raise ValueError(f"the runs have no {heading}; leave {quantity!r} out")
    columns = _columns(members, values)
    names, units = get_names(labels, columns.shape[-1])
    if not names:
        raise ValueError(f"the runs have no {heading}; leave {quantity!r} out")
    rates = readout.velocities_are_rates(run)
    if quantity == "v" and not rates:
        names, units = readout.own_velocities(columns.shape[-1])
    on_cubics = quantity == "q" or (quantity == "v" and rates)
    slopes = run.v if rates else run.coordinate_rates
    curves = [_columns(members, x) for x in (run.q, slopes)] if on_cubics else []
    pattern = "λ of {}" if quantity == "multipliers" else "{}"
    return [
        Panel(
            readout.with_unit(pattern.format(name), unit),
            columns[..., i],
            (curves[0][..., i], curves[1][..., i]) if on_cubics else None,
            int(quantity == "v"),
        )
        for i, (name, unit) in enumerate(zip(names, units, strict=True))
    ]


def _columns(members: Members, values: Any) -> np.ndarray:
    """Shape `(members, times, columns)`, `nan` where a row does not count."""
    columns = np.asarray(values, float).reshape(*members.ts.shape, -1)
    return np.where(np.isnan(members.ts)[..., None], np.nan, columns)


def _norm(run: Any, members: Members, quantity: str) -> Panel:
    """The energy, or the size of a violation."""
    if quantity == "energy":
        return Panel(_HEADINGS[quantity], _columns(members, run.energy)[..., 0])
    residuals = _columns(members, getattr(run.violation, quantity))
    if residuals.shape[-1] == 0:
        raise ValueError(f"the runs have no residuals {quantity}; leave {quantity!r} out")
    return Panel(_HEADINGS[quantity], np.linalg.norm(residuals, axis=-1), logarithmic=True)


def _draw_fan(ax: Axes, members: Members, panel: Panel, *, named: bool) -> None:
    """Bands, median, members and failures; one legend is enough for all panels."""
    ax.set_ylabel(panel.heading)
    if panel.logarithmic:
        style.logarithmic(ax)
    grid, values = members.curves(panel)
    values = style.positive(values) if panel.logarithmic else values
    if members.size < _FEWEST:
        _draw_each(ax, members, grid, values)
    else:
        _draw_bands(ax, grid, values)
    if panel.logarithmic:
        style.show_after_start(ax)
    if not members.success.all():
        times = members.ends[~members.success]
        place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(times, np.zeros(times.size), label="failures", **_CROSSES, **place)
    if not named:
        for artist in (*ax.lines, *ax.collections):
            artist.set_label(None)


_CROSSES: Any = {"color": style.FAILURE, "marker": "x", "linestyle": "", "markersize": 4}


def _draw_each(ax: Axes, members: Members, grid: np.ndarray, values: np.ndarray) -> None:
    """Members by their names; a single one needs none."""
    names = members.names if members.size > 1 else [None]
    for name, line, color in zip(names, values, style.colors(members.size), strict=True):
        ax.plot(grid, line, color=color, label=name)


def _draw_bands(ax: Axes, grid: np.ndarray, values: np.ndarray) -> None:
    color = style.PALETTE[0]
    for low, high, alpha in _BANDS:
        edges = quantiles(values, (low, high))
        name = f"{100 * low:.0f}–{100 * high:.0f} % of the members"
        ax.fill_between(grid, *edges, color=color, alpha=alpha, linewidth=0, label=name)
    if len(values) <= FEW:
        for i, line in enumerate(values):
            name = "each member" if i == 0 else None
            ax.plot(grid, line, color=style.QUIET, linewidth=0.6, label=name)
    ax.plot(grid, quantiles(values, (0.5,))[0], color=color, label="median")


def _draw_last(ax: Axes, members: Members, panel: Panel) -> None:
    """The last values of the members that reached their end: each, or a histogram of many."""
    rows = np.sum(np.isfinite(members.ts), axis=1)
    last = panel.values[np.arange(len(rows)), np.maximum(rows - 1, 0)]
    last = np.where(members.success & (rows > 0), last, np.nan)
    ax.set_ylabel(f"{panel.heading} at the end")
    known = last[np.isfinite(last)]
    if known.size == 0:
        style.note(ax, "no member reached its end")
        return
    # Within one power of ten a logarithmic axis has hardly a tick.
    logarithmic = panel.logarithmic and known.max() > 10.0 * known.min()
    if logarithmic:
        style.logarithmic(ax)
        zeros, known = np.sum(known == 0.0), known[known > 0.0]
        if zeros:
            style.remark(ax, f"{zeros} exactly zero")
    if members.size <= FEW:
        _draw_dots(ax, members, style.positive(last) if logarithmic else last)
    else:
        _draw_histogram(ax, known, logarithmic)


def _draw_dots(ax: Axes, members: Members, last: np.ndarray) -> None:
    """One dot for each member, a cross below where it failed."""
    few = members.size < _FEWEST
    for i, color in enumerate(style.colors(len(last)) if few else [style.PALETTE[0]] * len(last)):
        ax.plot(i, last[i], "o", color=color, markersize=5.0)
    lost = np.flatnonzero(~members.success)
    place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    if lost.size:  # without points, lines that are not clipped reach to the end of the figure
        ax.plot(lost, np.zeros(lost.size), **_CROSSES, **place)
    ax.set_xlim(-0.5, len(last) - 0.5)
    ax.set_xticks(range(len(last)), members.indices)
    middle, spread = float(np.nanmean(last)), np.ptp(last[np.isfinite(last)])
    if spread <= 1e-9 * abs(middle):  # equal but for round-off, which no axis should enlarge
        room = 0.1 * abs(middle) or 1.0
        ax.set_ylim(middle - room, middle + room)


def _draw_histogram(ax: Axes, last: np.ndarray, logarithmic: bool) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    color = style.PALETTE[0]
    if np.ptp(last) <= 1e-9 * np.abs(last).max():
        ax.plot([0, last.size], [last[0]] * 2, color=color, linewidth=3.0)
        style.remark(ax, f"{last.size} × {last[0]:.6g}")
        return
    edges = _edges(last, logarithmic).tolist()
    ax.hist(last, edges, orientation="horizontal", color=color, alpha=0.6)


def _edges(values: np.ndarray, logarithmic: bool) -> np.ndarray:
    """Of bins by Sturges' and Freedman and Diaconis' rules, but not of too many."""
    values = np.log10(values) if logarithmic else values
    spread = np.subtract(*np.percentile(values, (75, 25)))
    width = 2.0 * spread / np.cbrt(values.size)
    usual = np.log2(values.size) + 1.0
    wanted = max(usual, np.ptp(values) / width if width > 0.0 else usual)
    edges = np.linspace(values.min(), values.max(), int(min(np.ceil(wanted), _MOST_BINS)) + 1)
    return 10.0**edges if logarithmic else edges


def _remark(members: Members, panels: list[Panel]) -> str:
    """What a reader must know: failures, interpolation, and motions that rows cannot show."""
    head = f"{members.size} member{'s' * (members.size != 1)}"
    parts = [head if members.success.all() else members.failed]
    curved = {panel.curve is not None for panel in panels}
    rows = members.ts.shape[1]
    if not members.shared:
        how = {True: "by cubic Hermite polynomials", False: "linearly between rows"}
        both = "q and v by cubic Hermite polynomials, the rest linearly between rows"
        used = how[True in curved] if len(curved) == 1 else both
        parts.append(f"times differ: interpolated {used}")
    elif True in curved and members.straight is not None:
        parts.append(f"straight lines between rows: {members.straight}")
    if members.sparse:
        parts.append(
            f"rows of {members.sparse} of {members.size} are too far apart for the motion: save "
            "more"
        )
    elif members.steps > rows and False in curved:
        parts.append(f"{rows} rows of runs of up to {members.steps} steps")
    return "; ".join(parts)
