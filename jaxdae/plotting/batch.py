"""A batch of runs in one picture: quantiles over its members, final values, failures."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxdae.diagnosis import curves
from jaxdae.plotting import readout, style
from jaxdae.plotting.histories import names_and_units, QUANTITIES

# Bands from the outside in, and their opacity.
_BANDS = ((0.05, 0.95, 0.18), (0.25, 0.75, 0.35))
# Of fewer members than the first, quantiles would be made of nothing but their own interpolation;
# of as many as the second each is drawn.
_FEWEST, _FEW = 5, 12
_MOST_BINS = 40
# Times at which members of different times are compared.
_GRID = 401
_HEADINGS = {"phi": "‖φ‖", "phi_dot": "‖dφ/dt‖", "energy": "energy E [J]"}
_CROSSES: Any = {"color": style.FAILURE, "marker": "x", "linestyle": "", "markersize": 4}


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

    Everything lies on straight lines between rows. Members that have different times are compared
    at 401 times. The figure says so, and where rows are too far apart for the motion, or fewer than
    the steps of a run.

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
    readout.check_quantities(quantities, (*QUANTITIES, *_HEADINGS))
    members = _DrawnMembers(run)
    labels = readout.get_labels(run, labels)
    panels = [panel for quantity in quantities for panel in _panels(run, members, labels, quantity)]
    alone = members.size == 1
    figure, axes = style.new_axes(len(panels), 1 if alone else 2, title=title, sharex=False)
    for i, (pair, panel) in enumerate(zip(axes, panels, strict=True)):
        _draw_fan(pair[0], members, panel, named=i == 0)
        pair[0].sharex(axes[0, 0])
        for last in pair[1:]:
            _draw_last(last, members, panel)
    axes[0, 0].set_title(_remark(members), fontsize="small", color=style.QUIET, loc="left")
    style.finish(axes)
    if not alone:
        axes[-1, 1].set_xlabel("member" if members.size <= _FEW else "members")
    return figure


class _FanPanel(NamedTuple):
    """One number of each member in its rows, shape `(members, rows)`."""

    heading: str
    values: np.ndarray
    logarithmic: bool = False


class _DrawnMembers:
    """What all panels share; batch axes are one, and rows that do not count have the time `nan`."""

    def __init__(self, run: Any):
        ts = np.asarray(run.ts, float)
        if ts.ndim < 2:
            raise ValueError("this is one run, not a batch; draw it with plot_histories")
        if ts.size == 0:
            raise ValueError(f"the batch of shape {ts.shape[:-1]} has no rows to draw")
        places = [*np.ndindex(ts.shape[:-1])]
        self.size, self.rows = len(places), ts.shape[-1]
        self.success = np.asarray(run.success).reshape(-1)
        self.ends = np.asarray(run.final_time, float).reshape(-1)
        ts = ts.reshape(self.size, self.rows)
        slopes = run.v if readout.velocities_are_rates(run) else run.coordinate_rates
        q, v = self.columns(run.q), self.columns(slopes)
        self.ts = np.where(readout.finished(ts, q, v), ts, np.nan)
        times = np.fmax.reduce(self.ts, axis=0)
        self.kept = np.isfinite(times)
        if not self.kept.any():
            raise ValueError(f"none of the {self.size} members has a finite row to draw")
        self.shared = bool((np.isnan(self.ts) | (self.ts == times)).all())
        first, last = np.nanmin(self.ts), np.nanmax(self.ts)
        self.grid = times[self.kept] if self.shared else np.linspace(first, last, _GRID)
        self.sparse = sum(map(_too_sparse, self.ts, q, v))
        steps = (getattr(run, "stats", None) or {}).get("num_steps", 0)
        self.steps = int(np.max(np.asarray(steps), initial=0))
        self.indices = [", ".join(map(str, place)) for place in places]
        self.names = [_name(run, place) for place in places] if self.size <= _FEW else []

    def columns(self, values: Any) -> np.ndarray:
        """Shape `(members, rows, columns)`."""
        return np.asarray(values, float).reshape(self.size, self.rows, -1)

    def on_grid(self, values: np.ndarray) -> np.ndarray:
        """Values at the times of the grid, `nan` where a member has not been."""
        drawn = np.where(np.isfinite(self.ts) & np.isfinite(values), values, np.nan)
        if self.shared:
            return drawn[:, self.kept]
        return np.stack([self._interpolated(*pair) for pair in zip(self.ts, drawn, strict=True)])

    def _interpolated(self, ts: np.ndarray, values: np.ndarray) -> np.ndarray:
        # Of a run backwards in time, too, in their order.
        ts, rows = np.unique(ts[np.isfinite(ts)], return_index=True)
        if ts.size == 0:
            return np.full(self.grid.shape, np.nan)
        return np.interp(self.grid, ts, values[rows], left=np.nan, right=np.nan)


def _too_sparse(ts: np.ndarray, q: np.ndarray, v: np.ndarray) -> bool:
    """Whether a member has an interval in which its motion cannot be seen from its ends."""
    known = np.isfinite(ts)
    return known.sum() > 1 and not curves.resolved(np, ts[known], q[known], v[known]).all()


def _name(run: Any, place: tuple[int, ...]) -> str:
    """What was varied to make a member, or its place in the batch."""
    varied = getattr(run, "varied", None)
    values = {} if varied is None else {k: np.asarray(x)[place] for k, x in varied.values.items()}
    text = lambda x: f"{x:.4g}" if x.dtype.kind in "fc" else str(x)  # noqa: E731
    parts = [f"{name} = {text(x)}" for name, x in values.items() if np.ndim(x) == 0]
    return ", ".join(parts) or f"member {', '.join(map(str, place))}"


def _panels(run: Any, members: _DrawnMembers, labels: Any, quantity: str) -> list[_FanPanel]:
    if quantity == "energy":
        return [_FanPanel(_HEADINGS[quantity], members.columns(run.energy)[..., 0])]
    values = getattr(run.violation if quantity in _HEADINGS else run, quantity)
    columns = None if values is None else members.columns(values)
    if columns is None or columns.shape[-1] == 0:
        what = f"residuals {quantity}" if quantity in _HEADINGS else QUANTITIES[quantity][0]
        raise ValueError(f"the runs have no {what}; leave {quantity!r} out")
    if quantity in _HEADINGS:
        return [_FanPanel(_HEADINGS[quantity], np.linalg.norm(columns, axis=-1), logarithmic=True)]
    names, units = names_and_units(run, labels, quantity, columns.shape[-1])
    head = "λ of " if quantity == "multipliers" else ""
    return [
        _FanPanel(readout.with_unit(head + name, unit), columns[..., i])
        for i, (name, unit) in enumerate(zip(names, units, strict=True))
    ]


def _draw_fan(ax: Axes, members: _DrawnMembers, panel: _FanPanel, *, named: bool) -> None:
    """Bands, median, members and failures; one legend is enough for all panels."""
    ax.set_ylabel(panel.heading)
    lines = members.on_grid(panel.values)
    if panel.logarithmic:
        style.logarithmic(ax)
        lines = style.positive(lines)
    if members.size < _FEWEST:
        colors = style.colors(members.size)
        for name, line, color in zip(members.names, lines, colors, strict=True):
            ax.plot(members.grid, line, color=color, label=name if members.size > 1 else None)
    else:
        _draw_bands(ax, members.grid, lines)
    if panel.logarithmic:
        style.show_after_start(ax)
    _draw_crosses(ax, members.ends[~members.success], label="failures")
    if not named:
        for artist in (*ax.lines, *ax.collections):
            artist.set_label(None)


def _draw_bands(ax: Axes, ts: np.ndarray, lines: np.ndarray) -> None:
    """Of the members that have come to a time; a gap where none has."""
    color = style.PALETTE[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all are nan
        quantiles = lambda *parts: np.nanquantile(lines, parts, axis=0)  # noqa: E731
        for low, high, alpha in _BANDS:
            name = f"{100 * low:.0f}–{100 * high:.0f} % of the members"
            edges = quantiles(low, high)
            ax.fill_between(ts, *edges, color=color, alpha=alpha, linewidth=0, label=name)
        median = quantiles(0.5)[0]
    if len(lines) <= _FEW:
        for i, line in enumerate(lines):
            name = "each member" if i == 0 else None
            ax.plot(ts, line, color=style.QUIET, linewidth=0.6, label=name)
    ax.plot(ts, median, color=color, label="median")


def _draw_crosses(ax: Axes, places: np.ndarray, **more) -> None:
    """At the foot of the axes; none, where there are none, as its line would have no points."""
    if places.size:
        place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(places, np.zeros(places.size), **_CROSSES, **place, **more)


def _draw_last(ax: Axes, members: _DrawnMembers, panel: _FanPanel) -> None:
    """The last values of the members that reached their end: each, or a histogram of many."""
    rows = np.isfinite(members.ts).sum(axis=1)
    last = panel.values[np.arange(members.size), np.maximum(rows - 1, 0)]
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
        if zeros := np.sum(known == 0.0):
            style.remark(ax, f"{zeros} exactly zero")
        last, known = style.positive(last), known[known > 0.0]
    equal = np.ptp(known) <= 1e-9 * np.abs(known).max()  # but for round-off
    if members.size <= _FEW:
        colors = style.colors(members.size) if members.size < _FEWEST else style.PALETTE[:1] * 12
        for i, (value, color) in enumerate(zip(last, colors, strict=False)):
            ax.plot(i, value, "o", color=color, markersize=5.0)
        _draw_crosses(ax, np.flatnonzero(~members.success))
        ax.set_xlim(-0.5, members.size - 0.5)
        ax.set_xticks(range(members.size), members.indices)
    elif equal:
        ax.plot([0, known.size], [known[0]] * 2, color=style.PALETTE[0], linewidth=3.0)
        style.remark(ax, f"{known.size} × {known[0]:.6g}")
    else:
        values = np.log10(known) if logarithmic else known
        edges = np.histogram_bin_edges(values, "auto")
        if len(edges) > _MOST_BINS + 1:
            edges = np.histogram_bin_edges(values, _MOST_BINS)
        edges = (10.0**edges if logarithmic else edges).tolist()
        ax.hist(known, edges, orientation="horizontal", color=style.PALETTE[0], alpha=0.6)
    if members.size > _FEW:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    if equal:  # which no axis should enlarge
        room = 0.1 * abs(known[0]) or 1.0
        ax.set_ylim(known[0] - room, known[0] + room)


def _remark(members: _DrawnMembers) -> str:
    """What a reader must know: failures, interpolation, and motions that rows may not show."""
    times = members.ends[~members.success]
    head = f"{members.size} member{'s' * (members.size != 1)}"
    if times.size:
        span = " … ".join(dict.fromkeys(f"{x:.4g}" for x in (times.min(), times.max())))
        head = f"{head}," if members.size == 1 else f"{times.size} of {members.size}"
        head += f" failed after t = {span} s"
        head += "" if times.size == members.size else ", bands are of the others from there on"
    parts = [head]
    if not members.shared:
        parts.append("times differ: interpolated linearly between rows")
    if members.sparse:
        few = f"rows of {members.sparse} of {members.size} are too far apart for the motion"
        parts.append(f"{few}: save more")
    elif members.steps > members.rows:
        parts.append(f"{members.rows} rows of runs of up to {members.steps} steps")
    return "; ".join(parts)
