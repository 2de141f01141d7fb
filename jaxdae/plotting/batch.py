"""A batch of runs in one picture: quantiles over its members, final values, failures."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxdae.plotting import readout, style
from jaxdae.plotting.histories import QUANTITIES
from jaxdae.simulation import passages

# Bands from the outside in, and the median.
_BANDS = ((0.05, 0.95, 0.18), (0.25, 0.75, 0.35))
# Of so few members each is drawn.
_FEW = 12
_GRID = 401
_MOST_BINS = 40
_HEADINGS = {"phi": "‖φ‖", "phi_dot": "‖dφ/dt‖", "energy": "energy E [J]"}
_LOGARITHMIC = ("phi", "phi_dot")


class _Members(NamedTuple):
    """What all panels share; batch axes are one.

    Args:
        ts: times of the rows [s], shape `(members, times)`; `nan` where a row does not count.
        grid: times at which quantiles are taken [s].
        shared: whether the rows of all members are at these times.
        success: which members reached their end.
        ends: last times reached [s].
        steps: most steps of a member.
    """

    ts: np.ndarray
    grid: np.ndarray
    shared: bool
    success: np.ndarray
    ends: np.ndarray
    steps: int

    @property
    def failed(self) -> str:
        """How many failed, and when."""
        times = self.ends[~self.success]
        span = np.unique([f"{times.min():.4g}", f"{times.max():.4g}"])
        count = f"{times.size} of {self.success.size} failed"
        return f"{count} after t = {' … '.join(span)} s, bands are of the others from there on"


class _Panel(NamedTuple):
    """One number of each row of each member.

    Args:
        heading: with its unit.
        values: shape `(members, times)`.
        curve: coordinate and velocity there, whose cubic it is on; `None` where it is on none.
        order: of the derivative of that cubic.
        logarithmic: whether its axis is.
    """

    heading: str
    values: np.ndarray
    curve: tuple[np.ndarray, np.ndarray] | None = None
    order: int = 0
    logarithmic: bool = False


def plot_batch(
    run: Any,
    *,
    labels: Any = None,
    quantities: Sequence[str] = ("q",),
    title: str | None = None,
) -> Figure:
    """Draw a batch of runs: quantiles over its members against time, and their final values.

    Each row of axes is one coordinate, velocity, …. On the left are the median, the bands of the
    middle half and of the middle nine tenths of the members that have come to a time; of few
    members each is drawn as well. On the right is a histogram of the last values of the members
    that reached their end. Failed members are counted, the times of their failures marked; up to
    there they are part of the bands.

    Where members have different times, `q` and `v` are interpolated by cubic Hermite polynomials
    through both, everything else linearly between rows, and the figure says so.

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
    members = _members(run)
    labels = readout.get_labels(run, labels)
    panels = [panel for quantity in quantities for panel in _panels(run, members, labels, quantity)]
    figure, axes = style.new_axes(len(panels), 2, title=title, sharex=False)
    for i, ((fan, last), panel) in enumerate(zip(axes, panels, strict=True)):
        _draw_fan(fan, members, panel, named=i == 0)
        _draw_last(last, members, panel)
        fan.sharex(axes[0, 0])
    axes[0, 0].set_title(_remark(members, panels), fontsize="small", color=style.QUIET, loc="left")
    style.finish(axes)
    axes[-1, 1].set_xlabel("members")
    return figure


def _members(run: Any) -> _Members:
    ts = np.asarray(run.ts, float)
    if ts.ndim < 2:
        raise ValueError("this is one run, not a batch; draw it with plot_histories")
    if ts.shape[-1] == 0 or ts.size == 0:
        raise ValueError(f"the batch of shape {ts.shape[:-1]} has no rows to draw")
    ts = ts.reshape(-1, ts.shape[-1])
    alive = np.isfinite(ts)
    for x in (run.q, run.v):
        x = np.asarray(x)
        alive &= (np.abs(x) < readout.BLOWN_UP).all(axis=-1).reshape(ts.shape)
    alive = np.logical_and.accumulate(alive, axis=1)
    ts = np.where(alive, ts, np.nan)
    times = np.fmax.reduce(ts, axis=0)
    shared = bool((np.isnan(ts) | (ts == times)).all())
    counted = np.isfinite(times)
    if not counted.any():
        raise ValueError(f"none of the {len(ts)} members has a finite row to draw")
    grid = times[counted] if shared else np.linspace(np.nanmin(ts), np.nanmax(ts), _GRID)
    stats = getattr(run, "stats", None) or {}
    success = np.asarray(run.success).reshape(-1)
    ends = np.asarray(run.final_time, float).reshape(-1)
    steps = int(np.max(np.asarray(stats.get("num_steps", 0)), initial=0))
    return _Members(ts, grid, shared, success, ends, steps)


def _panels(run: Any, members: _Members, labels: Any, quantity: str) -> list[_Panel]:
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
    on_cubics = quantity in ("q", "v")
    curves = [_columns(members, x) for x in (run.q, run.v)] if on_cubics else []
    pattern = "λ of {}" if quantity == "multipliers" else "{}"
    return [
        _Panel(
            readout.with_unit(pattern.format(name), unit),
            columns[..., i],
            (curves[0][..., i], curves[1][..., i]) if on_cubics else None,
            int(quantity == "v"),
        )
        for i, (name, unit) in enumerate(zip(names, units, strict=True))
    ]


def _columns(members: _Members, values: Any) -> np.ndarray:
    """Shape `(members, times, columns)`, `nan` where a row does not count."""
    columns = np.asarray(values, float).reshape(*members.ts.shape, -1)
    return np.where(np.isnan(members.ts)[..., None], np.nan, columns)


def _norm(run: Any, members: _Members, quantity: str) -> _Panel:
    """The energy, or the size of a violation."""
    if quantity == "energy":
        return _Panel(_HEADINGS[quantity], _columns(members, run.energy)[..., 0])
    residuals = _columns(members, getattr(run.violation, quantity))
    if residuals.shape[-1] == 0:
        raise ValueError(f"the runs have no residuals {quantity}; leave {quantity!r} out")
    return _Panel(_HEADINGS[quantity], np.linalg.norm(residuals, axis=-1), logarithmic=True)


def _on_grid(members: _Members, panel: _Panel) -> np.ndarray:
    """Values at the times of the grid, shape `(members, times)`, `nan` outside of a member."""
    if members.shared:
        return panel.values[:, np.isin(np.fmax.reduce(members.ts, axis=0), members.grid)]
    return np.stack([_of_member(members, panel, i) for i in range(len(members.ts))])


def _of_member(members: _Members, panel: _Panel, member: int) -> np.ndarray:
    ts, grid = members.ts[member], members.grid
    # In their order, each once: of a run backwards in time, too.
    ts, rows = np.unique(ts[np.isfinite(ts)], return_index=True)
    if ts.size < 2:
        return np.full(grid.shape, np.nan)
    inside = (grid >= ts[0]) & (grid <= ts[-1])
    if panel.curve is None:
        result = np.interp(grid, ts, panel.values[member, rows])
    else:
        i = np.clip(np.searchsorted(ts, grid, side="right") - 1, 0, ts.size - 2)
        step = ts[i + 1] - ts[i]
        ends = [(x[member, rows][i], x[member, rows][i + 1]) for x in panel.curve]
        result = passages.hermite(np, step, (grid - ts[i]) / step, *ends)[panel.order]
    return np.where(inside, result, np.nan)


def _draw_fan(ax: Axes, members: _Members, panel: _Panel, *, named: bool) -> None:
    """Bands, median, members and failures; one legend is enough for all panels."""
    label = lambda text: text if named else None  # noqa: E731
    ax.set_ylabel(panel.heading)
    if panel.logarithmic:
        style.logarithmic(ax)
    values, grid = _on_grid(members, panel), members.grid
    values = style.positive(values) if panel.logarithmic else values
    color = style.PALETTE[0]
    for low, high, alpha in _BANDS:
        edges = _quantiles(values, (low, high))
        name = label(f"{100 * low:.0f}–{100 * high:.0f} % of the members")
        ax.fill_between(grid, *edges, color=color, alpha=alpha, linewidth=0, label=name)
    if len(values) <= _FEW:
        for i, line in enumerate(values):
            name = label("each member") if i == 0 else None
            ax.plot(grid, line, color=style.QUIET, linewidth=0.6, label=name)
    ax.plot(grid, _quantiles(values, (0.5,))[0], color=color, label=label("median"))
    if panel.logarithmic:
        style.show_after_start(ax)
    if not members.success.all():
        times = members.ends[~members.success]
        place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        marks = {"color": style.FAILURE, "marker": "x", "linestyle": "", "markersize": 4}
        ax.plot(times, np.zeros(times.size), label=label("failures"), **marks, **place)


def _quantiles(values: np.ndarray, parts: Sequence[float]) -> np.ndarray:
    """Of the members that have come to a time; `nan` where none has."""
    known = np.isfinite(values)
    result = np.full((len(parts), values.shape[1]), np.nan)
    some = known.any(axis=0)
    result[:, some] = np.nanquantile(np.where(known, values, np.nan)[:, some], parts, axis=0)
    return result


def _draw_last(ax: Axes, members: _Members, panel: _Panel) -> None:
    """A histogram of the last values of the members that reached their end."""
    rows = np.sum(np.isfinite(members.ts), axis=1)
    last = panel.values[np.arange(len(rows)), np.maximum(rows - 1, 0)]
    last = last[members.success & (rows > 0) & np.isfinite(last)]
    ax.set_ylabel(f"{panel.heading} at the end")
    if last.size == 0:
        style.note(ax, "no member reached its end")
        return
    # Within one power of ten a logarithmic axis has hardly a tick.
    logarithmic = panel.logarithmic and last.max() > 10.0 * last.min()
    if logarithmic:
        style.logarithmic(ax)
        zeros, last = np.sum(last == 0.0), last[last > 0.0]
        if zeros:
            style.remark(ax, f"{zeros} exactly zero")
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


def _remark(members: _Members, panels: list[_Panel]) -> str:
    """What a reader must know: failures, interpolation, and motions that rows cannot show."""
    count = len(members.ts)
    head = f"{count} member{'s' * (count != 1)}"
    parts = [head if members.success.all() else members.failed]
    if not members.shared:
        how = {True: "by cubic Hermite polynomials", False: "linearly between rows"}
        kinds = {how[panel.curve is not None] for panel in panels}
        both = "q and v by cubic Hermite polynomials, the rest linearly between rows"
        parts.append(f"times differ: interpolated {kinds.pop() if len(kinds) == 1 else both}")
    rows = members.ts.shape[1]
    if members.steps > rows:
        parts.append(f"{rows} rows of runs of up to {members.steps} steps")
    return "; ".join(parts)
