"""Chains of 10 to 1000 links: time of a step, how it grows, and time of a run at equal error.

Steps: every code in `CODES` makes the same fixed steps of the same chain from the same start, ours
of classical Runge-Kutta; the final coordinates are compared. Exudyn's method is of second order and
differs by its error.

Runs: every code with ladders of settings, over 0.1 s. For settings of Exudyn that no other of its
settings beats, the table gives the fastest of ours, and of CVODES, whose error is not larger.
The error is the largest of `|y - y_ref| / (1 + |y_ref|)` over the final (q, v); the reference is
ours at a tolerance of 1e-12.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --problems runs --quick
"""

import itertools
from collections.abc import Callable
from typing import Any

import harness
import ladder
import numpy as np
import ours
from competitors import casadi_codes, exudyn_codes
from competitors.base import Run
from problems import Case, chain

from jaxdae.plotting.style import colors, new_axes
from jaxdae.tables import table

LINKS = (10, 20, 40, 64, 65, 100, 200, 400, 1000)
ANGLE = 0.25 * np.pi
# The fewest steps that are timed: a call's start and Exudyn's first factors are little beside them.
FEWEST = 40
# Links of the runs at equal error, and how long they last [s].
RUN_LINKS, RUN_TIME = (10, 40, 400), 0.1
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# Of Exudyn's method of Newton: smaller ones take longer and are no more accurate here.
NEWTON = (1e-4, 1e-6)
# A kernel is for up to 1024 states; compiling CasADi's equations of more links takes minutes.
MOST_UNROLLED, MOST_COMPILED = 256, 40
OWN: dict[ours.Backend, str] = {"plain": "jaxdae, plain, sparse", "native": "jaxdae, native"}
EXUDYN, CVODES = "Exudyn", "CasADi CVODES Adams"


def step(links: int) -> float:
    """Step [s], well below 2.8 over the chain's highest frequency, about 2 N sqrt(g / L)."""
    return 0.1 / links


def steps_of(links: int) -> int:
    """Steps of a run of milliseconds: longer than a call takes, shorter than a time slice."""
    return max(FEWEST, 2000 // links)


def own(backend: ours.Backend, *, sparse: bool) -> Callable[[Case, int], Run]:
    """This library, with the formulation for many bodies or with matrices."""

    def build(case: Case, steps: int) -> Run:
        solve = ours.fixed(ours.for_many_bodies(case) if sparse else case, backend, steps)
        return ladder.called_once(solve)

    return build


def exudyn(case: Case, steps: int) -> Run:
    """Exudyn's implicit trapezoidal rule on the index-2 form."""
    return exudyn_codes.trapezoidal(case.problem, steps)


# What is compared: name, how it is made ready, and the largest chain it is asked for. The first is
# what the others are compared with, at a cost of N^3 with matrices.
CODES: dict[str, tuple[Callable[[Case, int], Run], int]] = {
    OWN["plain"]: (own("plain", sparse=True), 1000),
    ours.label("plain"): (own("plain", sparse=False), 100),
    OWN["native"]: (own("native", sparse=False), MOST_UNROLLED),
    "Exudyn trapezoidal": (exudyn, 1000),
}


def measure(links: int, rounds: int) -> list[dict[str, Any]]:
    """All codes on one chain, in turn, so that a busy machine slows all of them."""
    steps = steps_of(links)
    case = chain(links, step(links) * steps, ANGLE)
    ready, results = {}, {}
    for name, (build, largest) in CODES.items():
        if links <= largest:
            ready[name] = harness.attempt(lambda b=build: _called(b(case, steps)))
    able = {name: run for name, (run, _) in ready.items() if run is not None}
    times = harness.interleaved({name: run.solve for name, (run, _) in able.items()}, rounds)
    first = next(iter(CODES))
    for name, (run, missing) in ready.items():
        row = {"problem": case.problem.name, "links": links, "code": name}
        row |= {"dt_s": step(links), "steps": steps}
        results[name] = {**row, "missing": missing}
        if run is not None:
            seconds = [t / steps for t in times[name]]
            ratio = harness.ratio(times[name], times[first])
            off = np.abs(run[1] - able[first][1])[: 2 * links]
            results[name] |= {"seconds": seconds, **harness.spread(seconds), "ratio": ratio}
            results[name] |= {"setup_s": run[0].setup_s, "difference_m": float(off.max())}
    return list(results.values())


def _called(run: Run) -> tuple[Run, np.ndarray]:
    return run, run.solve()


def exponents(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`p` of time ~ N^p, of the medians and of the least times of each code.

    `fitted` to all chains, and `between` successive ones. On a busy machine only the least times
    tell of the code.
    """
    results = {}
    for name in dict.fromkeys(r["code"] for r in rows):
        own = [r for r in rows if r["code"] == name and "median" in r]
        links = np.log([r["links"] for r in own])
        if len(own) < 2:
            continue
        results[name] = {}
        for which in ("median", "min"):
            times = np.log([r[which] for r in own])
            between = np.diff(times) / np.diff(links)
            fitted = float(np.polyfit(links, times, 1)[0])
            results[name][which] = {"fitted": fitted, "between": between.tolist()}
    return results


def step_text(rows: list[dict[str, Any]]) -> str:
    """Times of steps as a table, and how they grow."""
    headings = ("links", "code", "us a step", "/ sparse", "differs by m", "set-up s", "note")
    cells = []
    for row in rows:
        start = (row["links"], row["code"])
        if row["missing"]:
            cells.append((*start, "-", "-", "-", "-", row["missing"]))
            continue
        cells.append((
            *start, harness.shown(row["seconds"], 1e-6), f"{row['ratio']:.3g}",
            f"{row['difference_m']:.1e}", f"{row['setup_s']:.2f}", "",
        ))  # fmt: skip
    lines = [table(headings, cells), ""]
    for name, p in exponents(rows).items():
        for which, label in (("median", "medians"), ("min", "least times")):
            between = ", ".join(f"{x:.2f}" for x in p[which]["between"])
            fitted = p[which]["fitted"]
            lines.append(f"{name}: {label} grow as N^{fitted:.2f}; between lengths {between}")
    return "\n".join(lines)


def own_runs(case: Case, backend: ours.Backend, wanted: np.ndarray) -> list[ladder.Point]:
    """This library with fixed and with adaptive steps."""
    plain = backend == "plain"
    given = ours.for_many_bodies(case) if plain else case
    results = []
    # Below a quarter of a step for a link classical Runge-Kutta is not stable.
    steps = [("RK4", case.problem.q.size * k // 8) for k in (1, 2, 4, 8)]
    make = lambda x: ladder.called_once(ours.fixed(given, backend, x[1]))  # noqa: E731
    results += ladder.climb(OWN[backend], make, steps, wanted)
    for name in ("Dopri8", "Tsit5"):
        run = ours.adaptive(given, backend, name)
        make = lambda x, run=run: ladder.called_once(run(x[1]))  # noqa: E731
        results += ladder.climb(OWN[backend], make, [(name, x) for x in TOLERANCES], wanted)
    return results


def other_runs(case: Case, wanted: np.ndarray) -> list[ladder.Point]:
    """Exudyn with each of its solvers and tolerances of Newton's method, and CVODES."""
    results, links = [], case.problem.q.size // 2
    kinds = (exudyn_codes.trapezoidal, exudyn_codes.generalized_alpha)
    for kind, newton in itertools.product(kinds, NEWTON):
        make = lambda x, kind=kind: kind(case.problem, x[1], x[2])  # noqa: E731
        steps = [(kind.__name__, links * k // 2, newton) for k in (1, 2, 4, 8)]
        results += ladder.climb(EXUDYN, make, steps, wanted)
    if links <= MOST_COMPILED:
        make = lambda x: casadi_codes.cvodes_adams(case.problem, x)  # noqa: E731
        results += ladder.climb(CVODES, make, TOLERANCES, wanted)
    return results


def measure_runs(links: int, rounds: int) -> list[dict[str, Any]]:
    """Time of a run and its error, of every code with every setting."""
    case = chain(links, RUN_TIME, ANGLE)
    wanted = ours.adaptive(ours.for_many_bodies(case), "plain")(1e-12)()
    points = own_runs(case, "plain", wanted)
    if links <= MOST_UNROLLED:
        points += own_runs(case, "native", wanted)
    points += other_runs(case, wanted)
    return [{"links": links, **row} for row in ladder.timed(case.problem.name, points, rounds)]


def octaves(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some of the rows, by errors that at least halve from one to the next."""
    results = []
    for row in sorted(rows, key=lambda r: -r["error"]):
        if not results or 2 * row["error"] <= results[-1]["error"]:
            results.append(row)
    return results


def pairs(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every useful setting of Exudyn the fastest of each other code that errs no more."""
    results = []
    for links in dict.fromkeys(r["links"] for r in rows):
        of_length = [r for r in rows if r["links"] == links]
        for base in octaves(ladder.front(of_length, EXUDYN)):
            for code in (*OWN.values(), CVODES):
                best = ladder.fastest(of_length, code, base["error"])
                if best is not None:
                    ratio = harness.ratio(base["seconds"], best["seconds"])
                    results.append({"links": links, "exudyn": base, "other": best, "ratio": ratio})
    return results


def run_text(rows: list[dict[str, Any]]) -> str:
    """Runs at equal error as a table, with why a code is missing."""
    headings = (
        "links", "Exudyn with", "error", "ms", "code", "with", "error", "ms", "faster by",
    )  # fmt: skip
    cells = []
    for pair in pairs(rows):
        line: list[Any] = [pair["links"]]
        for row in (pair["exudyn"], pair["other"]):
            line += [row["setting"], f"{row['error']:.1e}", harness.shown(row["seconds"], 1e-3)]
        line.insert(4, pair["other"]["code"])
        cells.append((*line, f"{pair['ratio']:.3g}"))
    missing = dict.fromkeys(
        f"{r['problem']}, {r['code']}, {r['setting']}: {r['missing']}" for r in rows if r["missing"]
    )
    return "\n".join([table(headings, cells), "", *least_ratios(pairs(rows)), *missing])


def least_ratios(results: list[dict[str, Any]]) -> list[str]:
    """By how much each code is faster than Exudyn, at least."""
    ratios: dict[tuple[int, str], list[float]] = {}
    for pair in results:
        ratios.setdefault((pair["links"], pair["other"]["code"]), []).append(pair["ratio"])
    return [
        f"{links} links, equal error: {code} {min(x):.3g} to {max(x):.3g} times faster than Exudyn"
        for (links, code), x in ratios.items()
    ]


def figure(steps: list[dict[str, Any]], runs: list[dict[str, Any]]):
    """Time of a step against the length, and of a run of the longest chain against its error."""
    longest = max((r["links"] for r in runs), default=0)
    last = [r for r in runs if r["links"] == longest]
    fronts = [ladder.front(last, x) for x in (*OWN.values(), EXUDYN)]
    error = f"error of the final (q, v) of {longest} links, relative to 1 + |y|"
    panels = [
        (steps, "links", 1e6, "links", "time of a step [us]"),
        (list(itertools.chain(*fronts)), "error", 1e3, error, "time of the run [ms]"),
    ]
    panels = [panel for panel in panels if panel[0]]
    fig, axes = new_axes(max(len(panels), 1), title="Chains", sharex=False)
    for ax, (rows, key, scale, xlabel, ylabel) in zip(axes[:, 0], panels, strict=False):
        _lines(ax, rows, key, scale)
        ax.set(xlabel=xlabel, ylabel=ylabel)
    return fig


def _lines(ax, rows: list[dict[str, Any]], key: str, scale: float) -> None:
    timed = [r for r in rows if "median" in r]
    codes = list(dict.fromkeys(r["code"] for r in timed))
    for code, color in zip(codes, colors(max(len(codes), 1)), strict=False):
        own = sorted((r[key], scale * r["median"]) for r in timed if r["code"] == code)
        ax.loglog(*zip(*own, strict=True), marker="o", color=color, label=code)
    if codes:
        ax.legend()


def main() -> None:
    """Measure, print tables, write `results/scaling.json` and `results/scaling.png`."""
    args = harness.arguments(__doc__, 7, ("steps", "runs"))
    lengths = {"steps": LINKS, "runs": RUN_LINKS}
    if args.quick:
        lengths = {"steps": (10, 40, 64, 65, 100, 400, 1000), "runs": (10, 400)}
    results: dict[str, list] = {"steps": [], "runs": []}
    with harness.scratch_folder():
        for name in args.problems:
            for links in harness.progress(lengths[name], name):
                results[name] += MEASURES[name](links, args.repetitions)
    if results["steps"]:
        print(step_text(results["steps"]) + "\n")
    if results["runs"]:
        print(f"Runs of {RUN_TIME} s\n\n{run_text(results['runs'])}")
    rows = [{"section": name, **row} for name, part in results.items() for row in part]
    timed = "one step (section steps) or one run (section runs), on the clock"
    harness.finish("scaling", args, rows, timed, figure(**results))


MEASURES = {"steps": measure, "runs": measure_runs}

if __name__ == "__main__":
    harness.run(main)
