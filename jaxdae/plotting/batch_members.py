"""The members of a batch on common times: their rows, and curves between them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdae.diagnosis import passages
from jaxdae.plotting import between_rows, readout
from jaxdae.plotting.between_rows import Moving

# Of so few members each is drawn.
FEW = 12
# Times at which members of different times are compared.
_GRID = 401
# Numbers of one panel between rows: beyond, pictures would take gigabytes.
_MOST_VALUES = 20_000_000


class Panel(NamedTuple):
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


class Members(NamedTuple):
    """What all panels share; batch axes are one.

    Args:
        ts: times of the rows [s], shape `(members, times)`; `nan` where a row does not count.
        grid: times of the rows that all share, or at which members are compared [s].
        shared: whether the rows of all members are at these times.
        straight: why there are no cubics between shared rows; `None` where there are.
        success: which members reached their end.
        ends: last times reached [s].
        steps: most steps of a member.
        sparse: how many members have rows too far apart for cubics.
        indices: places in the batch, as texts.
        names: of members, by what was varied where that is known.
    """

    ts: np.ndarray
    grid: np.ndarray
    shared: bool
    straight: str | None
    success: np.ndarray
    ends: np.ndarray
    steps: int
    sparse: int
    indices: list[str]
    names: list[str]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.ts)

    @property
    def failed(self) -> str:
        """How many failed, and when."""
        times = self.ends[~self.success]
        span = " … ".join(np.unique([f"{times.min():.4g}", f"{times.max():.4g}"]))
        if self.size == 1:
            return f"1 member, failed after t = {span} s"
        rest = "" if times.size == self.size else ", bands are of the others from there on"
        return f"{times.size} of {self.size} failed after t = {span} s{rest}"

    def curves(self, panel: Panel) -> tuple[np.ndarray, np.ndarray]:
        """Times [s], and values there, shape `(members, times)`, `nan` outside of a member."""
        if not self.shared:
            return self.grid, np.stack([self._of_member(panel, i) for i in range(self.size)])
        kept = np.isin(np.fmax.reduce(self.ts, axis=0), self.grid)
        if panel.curve is None or self.straight is not None:
            return self.grid, panel.values[:, kept]
        fine = between_rows.finely(Moving(self.grid, *(x[:, kept].T for x in panel.curve)))
        return fine.ts, fine[1 + panel.order].T

    def _of_member(self, panel: Panel, member: int) -> np.ndarray:
        ts, grid = self.ts[member], self.grid
        # In their order, each once: of a run backwards in time, too.
        ts, rows = np.unique(ts[np.isfinite(ts)], return_index=True)
        if ts.size < 2:
            return np.full(grid.shape, np.nan)
        inside = (grid >= ts[0]) & (grid <= ts[-1])
        if panel.curve is None:
            result = np.interp(grid, ts, panel.values[member, rows])
        else:
            found = Moving(ts, *(x[member, rows][:, None] for x in panel.curve))
            result = between_rows.at(found, grid)[1 + panel.order][:, 0]
        return np.where(inside, result, np.nan)


def members_of(run: Any) -> Members:
    """The members of a batch.

    Raises:
        ValueError: for one run, and a batch without a finite row.
    """
    ts = np.asarray(run.ts, float)
    if ts.ndim < 2:
        raise ValueError("this is one run, not a batch; draw it with plot_histories")
    shape = ts.shape[:-1]
    if ts.shape[-1] == 0 or ts.size == 0:
        raise ValueError(f"the batch of shape {shape} has no rows to draw")
    ts = ts.reshape(-1, ts.shape[-1])
    slopes = run.v if readout.velocities_are_rates(run) else run.coordinate_rates
    q, v = (np.asarray(x, float).reshape(*ts.shape, -1) for x in (run.q, slopes))
    alive = np.isfinite(ts)
    for x in (q, v):
        alive &= (np.abs(x) < readout.BLOWN_UP).all(axis=-1)
    alive = np.logical_and.accumulate(alive, axis=1)
    ts = np.where(alive, ts, np.nan)
    times = np.fmax.reduce(ts, axis=0)
    shared = bool((np.isnan(ts) | (ts == times)).all())
    counted = np.isfinite(times)
    if not counted.any():
        raise ValueError(f"none of the {len(ts)} members has a finite row to draw")
    grid = times[counted] if shared else np.linspace(np.nanmin(ts), np.nanmax(ts), _GRID)
    stats = getattr(run, "stats", None) or {}
    places = [*np.ndindex(shape)]
    return Members(
        ts=ts,
        grid=grid,
        shared=shared,
        straight=_why_straight(grid, len(ts)),
        success=np.asarray(run.success).reshape(-1),
        ends=np.asarray(run.final_time, float).reshape(-1),
        steps=int(np.max(np.asarray(stats.get("num_steps", 0)), initial=0)),
        sparse=_too_sparse(ts, q, v),
        indices=[", ".join(map(str, place)) for place in places],
        names=[_name(run, place) for place in places] if len(places) <= FEW else [],
    )


def _why_straight(grid: np.ndarray, members: int) -> str | None:
    if grid.size > between_rows.MANY_ROWS:
        return f"{grid.size} of them"
    if not between_rows.in_order(grid):
        return "their times neither only increase nor only decrease"
    if between_rows.fine_size(grid.size) * members > _MOST_VALUES:
        return f"{grid.size} of {members} members"
    return None


def _too_sparse(ts: np.ndarray, q: np.ndarray, v: np.ndarray) -> int:
    """How many members have an interval that cubics cannot follow."""
    count = 0
    for rows, *state in zip(ts, q, v, strict=True):
        known = np.isfinite(rows)
        long = known.sum() > 1 and ~passages.resolved(np, rows[known], *(x[known] for x in state))
        count += bool(np.any(long))
    return count


def _name(run: Any, place: tuple[int, ...]) -> str:
    """What was varied to make a member, or its place in the batch."""
    varied = getattr(run, "varied", None)
    values = {} if varied is None else {k: np.asarray(x)[place] for k, x in varied.values.items()}
    parts = [f"{name} = {_text(x)}" for name, x in values.items() if np.ndim(x) == 0]
    return ", ".join(parts) or f"member {', '.join(map(str, place))}"


def _text(value: Any) -> str:
    return f"{value:.4g}" if np.asarray(value).dtype.kind in "fc" else str(value)


def quantiles(values: np.ndarray, parts: Sequence[float]) -> np.ndarray:
    """Of the members that have come to a time; `nan` where none has.

    Args:
        values: shape `(members, times)`.
        parts: of the members, from 0 to 1.
    """
    known = np.isfinite(values)
    result = np.full((len(parts), values.shape[1]), np.nan)
    some = known.any(axis=0)
    result[:, some] = np.nanquantile(np.where(known, values, np.nan)[:, some], parts, axis=0)
    return result
