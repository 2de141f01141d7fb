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

# Bands from the outside in, and the median.
_BANDS = ((0.05, 0.95, 0.18), (0.25, 0.75, 0.35))
# Of fewer members than the first, quantiles would be made of nothing but their own interpolation;
# of as many as the second each is drawn.
_FEWEST, _FEW = 5, 12
_MOST_BINS = 40
# Times at which members of different times are compared.
_GRID = 401
# Rows times members that are drawn with cubics between rows: beyond, pictures take gigabytes.
_MOST_VALUES = 2_500_000
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

    Between rows each member follows the cubic Hermite polynomials through its `q` with the slopes
    `v`, and its velocities are the derivatives of these cubics, which pass through `v`. Quantiles
    are taken of these curves: at eight times in every interval where all members have the same
    times, of at most 1000 rows and of as many members as memory allows; else at 401 times.
    Everything else lies on straight lines between rows. Where members have different times, where
    members or rows are too many for cubics, or where rows are too far apart for them, the figure
    says so.

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
    members = _BatchPanels(run)
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
        axes[-1, 1].set_xlabel("member" if members.size <= _FEW else "members")
    return figure


class _MemberPanel(NamedTuple):
    """One number of each member against time.

    Args:
        heading: with its unit.
        values: in rows, shape `(members, rows)`.
        ts: times that are drawn [s], shape `(times,)`.
        curves: values there, shape `(members, times)`, `nan` outside of a member.
        smooth: whether there are slopes for cubics between rows.
        logarithmic: whether its axis is.
    """

    heading: str
    values: np.ndarray
    ts: np.ndarray
    curves: np.ndarray
    smooth: bool = False
    logarithmic: bool = False


class _BatchPanels:
    """What all panels share; batch axes are one, and rows that do not count have the time `nan`.

    Args:
        run: the batch.

    Raises:
        ValueError: for one run, and a batch without a finite row.
    """

    def __init__(self, run: Any):
        ts = np.asarray(run.ts, float)
        if ts.ndim < 2:
            raise ValueError("this is one run, not a batch; draw it with plot_histories")
        if ts.size == 0:
            raise ValueError(f"the batch of shape {ts.shape[:-1]} has no rows to draw")
        places = [*np.ndindex(ts.shape[:-1])]
        self.shape = (len(places), ts.shape[-1])
        self.success = np.asarray(run.success).reshape(-1)
        self.ends = np.asarray(run.final_time, float).reshape(-1)
        slopes = run.v if readout.velocities_are_rates(run) else run.coordinate_rates
        ts, q, v = ts.reshape(self.shape), self.columns(run.q), self.columns(slopes)
        self.ts = np.where(readout.finished(ts, q, v), ts, np.nan)
        times = np.fmax.reduce(self.ts, axis=0)
        if not np.isfinite(times).any():
            raise ValueError(f"none of the {self.size} members has a finite row to draw")
        self.shared = bool((np.isnan(self.ts) | (self.ts == times)).all())
        self.kept = np.isfinite(times)
        self.grid = (
            times[self.kept]
            if self.shared
            else np.linspace(np.nanmin(self.ts), np.nanmax(self.ts), _GRID)
        )
        self.cubics = not self.shared or (
            readout.in_order(self.grid)
            and self.grid.size <= readout.MANY_ROWS
            and self.grid.size * self.size <= _MOST_VALUES
        )
        self.sparse = sum(map(_too_sparse, self.ts, q, v))
        steps = (getattr(run, "stats", None) or {}).get("num_steps", 0)
        self.steps = int(np.max(np.asarray(steps), initial=0))
        self.indices = [", ".join(map(str, place)) for place in places]
        self.names = [_name(run, place) for place in places] if self.size <= _FEW else []

    @property
    def size(self) -> int:
        """How many there are."""
        return self.shape[0]

    def columns(self, values: Any) -> np.ndarray:
        """Shape `(members, rows, columns)`."""
        return np.asarray(values, float).reshape(*self.shape, -1)

    def panel(self, heading: str, values: Any, slopes: Any = None, *, order: int = 0, **more):
        """One column of all members, on cubics where slopes are given.

        Args:
            heading: with its unit.
            values: shape `(members, rows)`; of velocities the coordinates.
            slopes: likewise.
            order: of the derivative of the cubics.
            more: `logarithmic`.
        """
        given = [x for x in (values, slopes) if x is not None]
        drawn = [np.where(np.isfinite(self.ts) & np.isfinite(x), x, np.nan) for x in given]
        ts, smooth = self.grid, slopes is not None
        if not self.shared:
            curves = np.stack([self._on_grid(i, drawn, order) for i in range(self.size)])
        elif smooth and self.cubics:
            fine = readout.finely(readout.Moving(ts, *(x[:, self.kept].T for x in drawn)))
            ts, curves = fine.ts, fine[1 + order].T
        else:
            curves = drawn[order][:, self.kept]
        return _MemberPanel(heading, drawn[order], ts, curves, smooth, **more)

    def _on_grid(self, member: int, drawn: list[np.ndarray], order: int) -> np.ndarray:
        """A member between its own first and last row."""
        # In their order, each once: of a run backwards in time, too.
        ts, rows = np.unique(self.ts[member], return_index=True)
        ts, rows = ts[np.isfinite(ts)], rows[np.isfinite(ts)]
        if ts.size < 2:
            return np.full(self.grid.shape, np.nan)
        if len(drawn) == 1:
            return np.interp(self.grid, ts, drawn[0][member, rows], left=np.nan, right=np.nan)
        found = readout.Moving(ts, *(x[member, rows][:, None] for x in drawn))
        inside = (self.grid >= ts[0]) & (self.grid <= ts[-1])
        return np.where(inside, readout.at(found, self.grid)[1 + order][:, 0], np.nan)


def _too_sparse(ts: np.ndarray, q: np.ndarray, v: np.ndarray) -> bool:
    """Whether a member has an interval that cubics cannot follow."""
    known = np.isfinite(ts)
    return known.sum() > 1 and not curves.resolved(np, ts[known], q[known], v[known]).all()


def _name(run: Any, place: tuple[int, ...]) -> str:
    """What was varied to make a member, or its place in the batch."""
    varied = getattr(run, "varied", None)
    values = {} if varied is None else {k: np.asarray(x)[place] for k, x in varied.values.items()}
    text = lambda x: f"{x:.4g}" if x.dtype.kind in "fc" else str(x)  # noqa: E731
    parts = [f"{name} = {text(x)}" for name, x in values.items() if np.ndim(x) == 0]
    return ", ".join(parts) or f"member {', '.join(map(str, place))}"


def _panels(run: Any, members: _BatchPanels, labels: Any, quantity: str) -> list[_MemberPanel]:
    if quantity == "energy":
        return [members.panel(_HEADINGS[quantity], members.columns(run.energy)[..., 0])]
    values = getattr(run.violation if quantity in _HEADINGS else run, quantity)
    columns = None if values is None else members.columns(values)
    if columns is None or columns.shape[-1] == 0:
        what = f"residuals {quantity}" if quantity in _HEADINGS else QUANTITIES[quantity][0]
        raise ValueError(f"the runs have no {what}; leave {quantity!r} out")
    if quantity in _HEADINGS:
        size = np.linalg.norm(columns, axis=-1)
        return [members.panel(_HEADINGS[quantity], size, logarithmic=True)]
    names, units = names_and_units(run, labels, quantity, columns.shape[-1])
    rates = readout.velocities_are_rates(run)
    headings = [
        readout.with_unit(f"λ of {name}" if quantity == "multipliers" else name, unit)
        for name, unit in zip(names, units, strict=True)
    ]
    if quantity == "q" or (quantity == "v" and rates):
        q, v = (members.columns(x) for x in (run.q, run.v if rates else run.coordinate_rates))
        order = int(quantity == "v")
        return [members.panel(x, q[..., i], v[..., i], order=order) for i, x in enumerate(headings)]
    return [members.panel(x, columns[..., i]) for i, x in enumerate(headings)]


def _draw_fan(ax: Axes, members: _BatchPanels, panel: _MemberPanel, *, named: bool) -> None:
    """Bands, median, members and failures; one legend is enough for all panels."""
    ax.set_ylabel(panel.heading)
    curves = panel.curves
    if panel.logarithmic:
        style.logarithmic(ax)
        curves = style.positive(curves)
    if members.size < _FEWEST:
        colors = style.colors(members.size)
        for name, line, color in zip(members.names, curves, colors, strict=True):
            ax.plot(panel.ts, line, color=color, label=name if members.size > 1 else None)
    else:
        _draw_bands(ax, panel.ts, curves)
    if panel.logarithmic:
        style.show_after_start(ax)
    _draw_crosses(ax, members.ends[~members.success], label="failures")
    if not named:
        for artist in (*ax.lines, *ax.collections):
            artist.set_label(None)


def _draw_bands(ax: Axes, ts: np.ndarray, curves: np.ndarray) -> None:
    """Of the members that have come to a time; a gap where none has."""
    color = style.PALETTE[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where all are nan
        quantiles = lambda *parts: np.nanquantile(curves, parts, axis=0)  # noqa: E731
        for low, high, alpha in _BANDS:
            name = f"{100 * low:.0f}–{100 * high:.0f} % of the members"
            edges = quantiles(low, high)
            ax.fill_between(ts, *edges, color=color, alpha=alpha, linewidth=0, label=name)
        median = quantiles(0.5)[0]
    if len(curves) <= _FEW:
        for i, line in enumerate(curves):
            name = "each member" if i == 0 else None
            ax.plot(ts, line, color=style.QUIET, linewidth=0.6, label=name)
    ax.plot(ts, median, color=color, label="median")


def _draw_crosses(ax: Axes, places: np.ndarray, **more) -> None:
    """At the foot of the axes; none, where there are none, as its line would have no points."""
    if places.size:
        place = {"transform": ax.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        ax.plot(places, np.zeros(places.size), **_CROSSES, **place, **more)


def _draw_last(ax: Axes, members: _BatchPanels, panel: _MemberPanel) -> None:
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


def _remark(members: _BatchPanels, panels: list[_MemberPanel]) -> str:
    """What a reader must know: failures, interpolation, and motions that rows cannot show."""
    times = members.ends[~members.success]
    head = f"{members.size} member{'s' * (members.size != 1)}"
    if times.size:
        span = " … ".join(dict.fromkeys(f"{x:.4g}" for x in (times.min(), times.max())))
        head = f"{head}," if members.size == 1 else f"{times.size} of {members.size}"
        head += f" failed after t = {span} s"
        head += "" if times.size == members.size else ", bands are of the others from there on"
    parts, smooth = [head], {panel.smooth for panel in panels}
    if not members.shared:
        how = {
            (True,): "by cubic Hermite polynomials",
            (False,): "linearly between rows",
            (False, True): "q and v by cubic Hermite polynomials, the rest linearly between rows",
        }
        parts.append(f"times differ: interpolated {how[tuple(sorted(smooth))]}")
    elif True in smooth and not members.cubics:
        parts.append("straight lines between rows")
    rows = members.shape[1]
    if members.sparse:
        few = f"rows of {members.sparse} of {members.size} are too far apart for the motion"
        parts.append(f"{few}: save more")
    elif members.steps > rows and False in smooth:
        parts.append(f"{rows} rows of runs of up to {members.steps} steps")
    return "; ".join(parts)
