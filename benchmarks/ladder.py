"""Time against error: a code with a ladder of settings, and which of them is accurate enough."""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import harness
import numpy as np
from competitors.base import Run

from jaxdae.plotting.style import colors, new_axes

# A run that takes longer [s] is timed once, and ends the ladder of its code.
SLOW = 3.0


@dataclasses.dataclass
class Point:
    """One code with one setting on one problem.

    Args:
        code: name.
        setting: tolerance, number of steps, or several of them.
        solve: called without arguments; None without a figure.
        missing: why there is no figure.
        setup_s: time to build and compile [s].
        error: largest difference from the reference, relative to 1 + |y|.
        once_s: time of one run [s].
        steps: that the code tried in a run, where it counts them.
        evaluations: of the right-hand side in a run, where it counts them.
    """

    code: str
    setting: str
    solve: Callable[[], np.ndarray] | None = None
    missing: str | None = None
    setup_s: float = 0.0
    error: float = np.inf
    once_s: float = 0.0
    steps: int | None = None
    evaluations: int | None = None


def relative_error(results: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference relative to 1 + |wanted|."""
    return float(np.max(np.abs(results - wanted) / (1.0 + np.abs(wanted))))


def called_once(solve: Callable[[], np.ndarray]) -> Run:
    """A function that its first call compiles."""
    began = time.perf_counter()
    solve()
    return Run(solve, time.perf_counter() - began)


def climb(
    code: str,
    make: Callable[[Any], Run],
    settings: Iterable,
    wanted,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Point]:
    """One code with all its settings, each called once.

    Args:
        code: name.
        make: from a setting to a run.
        settings: from the coarsest to the finest.
        wanted: reference.
        clock: that times the call.

    Returns:
        A point for each setting; where the first is missing, that one, and where one is slow, those
        before it and itself.
    """
    results = []
    for setting in harness.progress(list(settings), code):
        ready, missing = harness.attempt(lambda x=setting: _checked(make(x), wanted, clock))
        point = ready or Point("", "", missing=missing)
        point.code, point.setting = code, name(setting)
        results.append(point)
        if str(missing).startswith("missing") or point.once_s > SLOW:
            break
    return results


def name(setting: Any) -> str:
    """A setting in words."""
    if isinstance(setting, tuple):
        return " ".join(map(name, setting))
    if isinstance(setting, float):
        return f"{setting:.0e}"
    return f"{setting} steps" if isinstance(setting, int) else str(setting)


def _checked(run: Run, wanted: np.ndarray, clock: Callable[[], float]) -> Point:
    """A code and what its result is worth; the code and its setting are filled in later."""
    began = clock()
    size = relative_error(run.solve(), wanted)
    taken = clock() - began
    return Point("", "", run.solve, None, run.setup_s, size, taken, **(run.work or {}))


def timed(
    problem: str, points: list[Point], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> list[dict[str, Any]]:
    """Rows of a table: the points with their times `seconds` and what `harness.spread` says."""
    able = {(x.code, x.setting): x for x in points if x.solve is not None}
    quick: dict = {key: x.solve for key, x in able.items() if x.once_s <= SLOW}
    times = harness.interleaved(quick, rounds, clock=clock)
    taken = len(next(iter(times.values()), range(rounds)))
    times |= {key: [x.once_s] * taken for key, x in able.items() if key not in quick}
    rows = []
    for point in points:
        row = {"problem": problem, **dataclasses.asdict(point)}
        row.pop("solve")
        own = times.get((point.code, point.setting))
        rows.append(row if own is None else row | {"seconds": own, **harness.spread(own)})
    return rows


def fastest(rows: list[dict[str, Any]], code: str, target: float) -> dict[str, Any] | None:
    """The fastest setting of a code whose error is at most the target."""
    able = [r for r in rows if r["code"] == code and "median" in r and r["error"] <= target]
    return min(able, key=lambda r: r["median"]) if able else None


def front(rows: list[dict[str, Any]], code: str) -> list[dict[str, Any]]:
    """Settings of a code that no other of its settings beats in both time and error."""
    able = [r for r in rows if r["code"] == code and "median" in r]
    return [r for r in able if fastest(able, code, r["error"]) is r]


def cells(best: dict[str, Any] | None, base: dict[str, Any] | None, unit: float) -> list[str]:
    """Time with its range in a unit [s], its ratio to that of the base, its setting and error."""
    if best is None:
        return ["-", "-", "-"]
    ratio = "-" if base is None else f"{harness.ratio(best['seconds'], base['seconds']):.3g}"
    times = harness.shown(best["seconds"], unit)
    return [times, ratio, f"{best['setting']}: {best['error']:.0e}"]


def work_precision(rows: list[dict[str, Any]], title: str, across: int = 1):
    """Time against error, so many panels in a row, one for each problem."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    # This library first, so that its thick lines differ in color.
    known = dict.fromkeys(row["code"] for row in rows)
    codes = sorted(known, key=lambda x: not x.startswith("jaxdae"))
    down = -(-len(names) // across)
    fig, axes = new_axes(down, min(len(names), across), title=title, sharex=False)
    if across > 1:
        fig.set_size_inches(11.0, 1.0 + 4.0 * down)
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, names, strict=False):
        part = [row for row in rows if row["problem"] == name]
        for code, (marker, color) in zip(codes, itertools.product("o^s", colors(6)), strict=False):
            line = sorted(front(part, code), key=lambda r: r["error"])
            width = 2.5 if code.startswith("jaxdae") else 1.0
            values = [[r[key] for r in line] for key in ("error", "median")]
            ax.loglog(*values, marker, ls="-", ms=4, color=color, label=code, linewidth=width)
        ax.invert_xaxis()
        ax.set(title=name, xlabel="error of the final (q, v), relative to 1 + |y|")
        ax.set_ylabel("time of one run [s]")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig
