"""One adaptive run, called from Python: time against error, for every code.

Codes that choose their steps run with a ladder of tolerances, codes of fixed steps with one of step
counts. The error is the largest of `|y - y_ref| / (1 + |y_ref|)` over the final (q, v). The
reference is `simulate` on its native backend at a tolerance of 1e-13, or for the two-link arm its
closed-form motion, checked against CasADi's CVODES at 1e-13.

    python benchmarks/single_run.py
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import harness
import numpy as np
import ours
from competitors import casadi_codes, exudyn_codes, mujoco_codes, python_codes
from competitors.base import Problem, Run
from problems import andrews, Case, chain, two_link

from jaxdae.commands.tables import table
from jaxdae.models.two_link import AbstractTwoLink
from jaxdae.plotting.style import colors, new_axes

TARGETS = (1e-6, 1e-9)
TOLERANCES = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12)
QUICK_TOLERANCES = (1e-6, 1e-8, 1e-10, 1e-12)
STEPS = (200, 1000, 5000)

# A run that takes longer [s] is timed once, and ends the ladder of its code.
SLOW = 3.0

ADAPTIVE: dict[str, Callable[[Problem, float], Run]] = {
    "CasADi CVODES Adams": casadi_codes.cvodes_adams,
    "CasADi CVODES BDF": casadi_codes.cvodes_bdf,
    "CasADi IDAS": casadi_codes.idas,
    "SUNDIALS CVODE (sundae)": python_codes.sundae_cvode,
    "SUNDIALS IDA (sundae)": python_codes.sundae_ida,
    "SciPy DOP853": python_codes.dop853,
}
FIXED: dict[str, Callable[[Problem, int], Run]] = {
    "Exudyn trapezoidal": exudyn_codes.trapezoidal,
    "Exudyn generalized-alpha": exudyn_codes.generalized_alpha,
    "MuJoCo RK4": mujoco_codes.step,
}


@dataclasses.dataclass
class Point:
    """One code with one setting on one problem.

    Args:
        code: name.
        setting: tolerance, or number of steps.
        solve: called without arguments; None without a figure.
        missing: why there is no figure.
        setup_s: time to build and compile [s].
        error: see the top of this file.
        once_s: time of one run [s].
    """

    code: str
    setting: float
    solve: Callable[[], np.ndarray] | None = None
    missing: str | None = None
    setup_s: float = 0.0
    error: float = np.inf
    once_s: float = 0.0


def reference(case: Case) -> tuple[np.ndarray, str]:
    """Final (q, v), and how far another code at its limit is from it, in words."""
    if isinstance(case.system, AbstractTwoLink):
        found = np.concatenate(case.system.exact_motion(case.problem.t1))
    else:
        found = ours.adaptive(case, "native")(1e-13)()
    run, missing = harness.attempt(lambda: casadi_codes.cvodes_adams(case.problem, 1e-13).solve())
    if run is None:
        return found, f"not cross-checked ({missing})"
    return found, f"CVODES at 1e-13 differs by {error(run, found):.1e}"


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference relative to 1 + |wanted|."""
    return float(np.max(np.abs(found - wanted) / (1.0 + np.abs(wanted))))


def points(case: Case, tolerances: Sequence[float]) -> list[Point]:
    """Every code with every setting, called once."""
    wanted, note = reference(case)
    print(f"{case.problem.name}: {note}")
    found = []
    for backend in ours.BACKENDS:
        own = ours.adaptive(case, backend)
        found += _ladder(ours.label(backend), lambda x, own=own: _ours(own, x), tolerances, wanted)
    for code, build in ADAPTIVE.items():
        make = lambda x, build=build: build(case.problem, x)  # noqa: E731
        found += _ladder(code, make, tolerances, wanted)
    for code, build in FIXED.items():
        make = lambda x, build=build: build(case.problem, int(x))  # noqa: E731
        found += _ladder(code, make, STEPS, wanted)
    return found


def _ours(own: Callable, tolerance: float) -> Run:
    """Compiled by its first call."""
    solve = own(tolerance)
    began = time.perf_counter()
    solve()
    return Run(solve, time.perf_counter() - began)


def _ladder(code: str, make: Callable[[float], Run], settings, wanted) -> list[Point]:
    """One code with all its settings; where the first fails to build, one point that says so."""
    found = []
    for setting in settings:
        ready, missing = harness.attempt(lambda x=setting: _checked(make(x), wanted))
        point = ready or Point(code, setting, missing=missing)
        point.code, point.setting = code, setting
        found.append(point)
        if str(missing).startswith("missing") or point.once_s > SLOW:
            break
    return found


def _checked(run: Run, wanted: np.ndarray) -> Point:
    """A code and what its result is worth; the code and its setting are filled in later."""
    began = time.perf_counter()
    size = error(run.solve(), wanted)
    return Point("", 0.0, run.solve, None, run.setup_s, size, time.perf_counter() - began)


def measure(case: Case, tolerances: Sequence[float], rounds: int) -> list[dict[str, Any]]:
    """Time every code and setting on one problem."""
    found = points(case, tolerances)
    able = {(x.code, x.setting): x.solve for x in found if x.solve is not None}
    slow = {(x.code, x.setting): [x.once_s] * rounds for x in found if x.once_s > SLOW}
    quick = {key: solve for key, solve in able.items() if key not in slow}
    times = harness.interleaved(quick, rounds) | slow
    rows = []
    for point in found:
        row = {"problem": case.problem.name, **dataclasses.asdict(point)}
        row.pop("solve")
        own = times.get((point.code, point.setting))
        rows.append(row if own is None else row | {"seconds": own, **harness.spread(own)})
    return rows


def fastest(rows: list[dict[str, Any]], code: str, target: float) -> dict[str, Any] | None:
    """The fastest setting of a code whose error is at most the target."""
    able = [r for r in rows if r["code"] == code and "median" in r and r["error"] <= target]
    return min(able, key=lambda r: r["median"]) if able else None


def summary(rows: list[dict[str, Any]]) -> list[tuple]:
    """Rows of the table of one problem: times at equal error, and how many of ours they take."""
    codes = list(dict.fromkeys(r["code"] for r in rows))
    native = [fastest(rows, ours.label("native"), target) for target in TARGETS]
    found = []
    for code in codes:
        own = [r for r in rows if r["code"] == code]
        line = [own[0]["problem"], code]
        for target, base in zip(TARGETS, native, strict=True):
            line += _cells(fastest(rows, code, target), base)
        reached = [r for r in own if "median" in r]
        note = own[0]["missing"] or (
            "" if "-" not in line[2:] else f"least error {min(r['error'] for r in reached):.1e}"
        )
        found.append((*line, f"{max(r['setup_s'] for r in own):.2f}", note))
    return found


def _cells(best: dict[str, Any] | None, base: dict[str, Any] | None) -> list[str]:
    """Time with its spread, and its ratio to that of the native backend."""
    if best is None:
        return ["-", "-"]
    times = harness.shown(best["seconds"], 1e-3)
    ratio = "-" if base is None else f"{harness.ratio(best['seconds'], base['seconds']):.3g}"
    return [times, ratio]


def figure(rows: list[dict[str, Any]]):
    """Work-precision diagram, a panel for each problem."""
    names = list(dict.fromkeys(r["problem"] for r in rows))
    codes = list(dict.fromkeys(r["code"] for r in rows))
    fig, axes = new_axes(2, 2, title="One run: time against error", sharex=False)
    fig.set_size_inches(11.0, 9.0)
    styles = list(itertools.product("o^s", colors(6)))
    for ax in axes.flat[len(names) :]:
        ax.set_visible(False)
    for ax, name in zip(axes.flat, names, strict=False):
        for code, (marker, color) in zip(codes, styles, strict=False):
            own = [r for r in rows if (r["problem"], r["code"]) == (name, code) and "median" in r]
            own.sort(key=lambda r: r["error"])
            style = {"linewidth": 2.5} if code.startswith("jaxdae") else {"linewidth": 1.0}
            values = [[r[key] for r in own] for key in ("error", "median")]
            ax.loglog(*values, marker=marker, markersize=4, color=color, label=code, **style)
        ax.invert_xaxis()
        ax.set_title(name)
        ax.set_xlabel("error of the final (q, v), relative to 1 + |y|")
        ax.set_ylabel("time of one run [s]")
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return fig


def main() -> None:
    """Measure, print a table, write `results/single_run.json` and `results/single_run.png`."""
    args = harness.arguments(main.__doc__, 9)
    tolerances = QUICK_TOLERANCES if args.quick else TOLERANCES
    cases = [two_link(), andrews(), chain(10)] + ([] if args.quick else [chain(40)])
    rows, lines = [], []
    for case in cases:
        own = measure(case, tolerances, args.repetitions)
        rows += own
        lines += summary(own)
    headings = ["problem", "code"]
    for target in TARGETS:
        headings += [f"ms at {target:.0e}", "/ native"]
    print("\n" + table([*headings, "set-up s", "note"], lines))
    harness.finish("single_run", rows, figure(rows))


if __name__ == "__main__":
    main()
