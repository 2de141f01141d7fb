"""One adaptive run, called from Python: time against error, for every code.

Codes that choose their steps run with a ladder of tolerances, codes of fixed steps with one of step
counts; ours runs with three solvers. The error is the largest of `|y - y_ref| / (1 + |y_ref|)` over
the final (q, v). The reference is `simulate` on its native backend at a tolerance of 1e-13, or for
the two-link arm its closed-form motion, checked against CasADi's CVODES at 1e-13.

    python benchmarks/single_run.py
    python benchmarks/single_run.py --problems chain-40 --quick
"""

from collections.abc import Callable
from typing import Any

import harness
import ladder
import numpy as np
import ours
from competitors import (
    c_codes,
    casadi_codes,
    exudyn_codes,
    heyoka_codes,
    mujoco_codes,
    python_codes,
)
from competitors.base import Problem, Run
from problems import andrews, Case, chain, plate, two_link

from jaxdae.models.chain import Chain
from jaxdae.models.two_link import AbstractTwoLink
from jaxdae.tables import table

TARGETS = (1e-6, 1e-9)
TOLERANCES = (1e-6, 1e-8, 1e-10, 1e-12)
STEPS = (200, 1000, 5000)
PROBLEMS: dict[str, Callable[[], Case]] = {
    "two-link": two_link,
    "andrews": andrews,
    "chain-10": lambda: chain(10),
    "chain-40": lambda: chain(40),
    "plate": plate,
}
# Without 40 links, for which other codes compile longest.
QUICK = ("two-link", "andrews", "chain-10", "plate")

ADAPTIVE: dict[str, Callable[[Problem, float], Run]] = {
    "C, DOP853": c_codes.dop853,
    "C, SUNDIALS CVODE Adams": c_codes.cvode_adams,
    "C, SUNDIALS CVODE BDF": c_codes.cvode_bdf,
    "heyoka": heyoka_codes.taylor,
    "CasADi CVODES Adams": casadi_codes.cvodes_adams,
    "CasADi CVODES BDF": casadi_codes.cvodes_bdf,
    "CasADi IDAS": casadi_codes.idas,
    "SUNDIALS CVODE (sundials4py)": python_codes.sundials4py_cvode,
    "SUNDIALS CVODE (sundae)": python_codes.sundae_cvode,
    "SUNDIALS IDA (sundae)": python_codes.sundae_ida,
    "SciPy DOP853": python_codes.dop853,
    "solve_dae Radau IIA": python_codes.radau,
}
FIXED: dict[str, Callable[[Problem, int], Run]] = {
    "Exudyn trapezoidal": exudyn_codes.trapezoidal,
    "Exudyn generalized-alpha": exudyn_codes.generalized_alpha,
    "MuJoCo RK4": mujoco_codes.step,
}


def reference(case: Case) -> tuple[np.ndarray, str]:
    """Final (q, v), and how far another code at its limit is from it, in words."""
    if isinstance(case.system, AbstractTwoLink):
        results = np.concatenate(case.system.exact_motion(case.problem.t1))
    else:
        results = ours.adaptive(case, "native")(1e-13)()
    run, missing = harness.attempt(lambda: casadi_codes.cvodes_adams(case.problem, 1e-13).solve())
    if run is None:
        return results, f"reference not cross-checked ({missing})"
    off = ladder.relative_error(run, results)
    return results, f"CVODES at 1e-13 differs from the reference by {off:.1e}"


def points(case: Case, wanted: np.ndarray, quick: bool) -> list[ladder.Point]:
    """Every code with every setting, called once."""
    results = own_points(case, wanted)
    for codes, settings in ((ADAPTIVE, TOLERANCES), (FIXED, STEPS[:2] if quick else STEPS)):
        for code, build in codes.items():
            make = lambda x, build=build: build(case.problem, x)  # noqa: E731
            if quick and code == "heyoka":
                make = heyoka_codes.unless_slow_to_compile(case.problem, make)
            results += ladder.climb(code, make, settings, wanted)
    return results


def own_points(case: Case, wanted: np.ndarray) -> list[ladder.Point]:
    """This library: its kernels with each of its solvers, XLA with the default one.

    On XLA the chains have the formulation for many bodies, as its users would.
    """
    native = {name: ours.adaptive(case, "native", name) for name in ours.SOLVERS}
    # The default solver comes first, so that a single setting is that of a user who chooses none.
    settings = [(name, x) for name in ours.SOLVERS for x in TOLERANCES]
    make = lambda x: ladder.called_once(native[x[0]](x[1]))  # noqa: E731
    results = ladder.climb(ours.label("native"), make, settings, wanted)
    sparse = isinstance(case.system, Chain)
    plain = ours.adaptive(ours.for_many_bodies(case) if sparse else case, "plain")
    make = lambda x: ladder.called_once(plain(x))  # noqa: E731
    code = ours.label("plain") + (", sparse" if sparse else "")
    return results + ladder.climb(code, make, TOLERANCES, wanted)


def measure(case: Case, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Time every code and setting on one problem."""
    wanted, note = reference(case)
    print(f"{case.problem.name}: {note}", flush=True)
    return ladder.timed(case.problem.name, points(case, wanted, quick), rounds)


def summary(rows: list[dict[str, Any]]) -> list[tuple]:
    """Rows of the table of one problem: times at equal error, and how many of ours they take."""
    codes = list(dict.fromkeys(r["code"] for r in rows))
    native = [ladder.fastest(rows, ours.label("native"), target) for target in TARGETS]
    results = []
    for code in codes:
        own = [r for r in rows if r["code"] == code]
        line = [own[0]["problem"], code]
        for target, base in zip(TARGETS, native, strict=True):
            line += ladder.cells(ladder.fastest(rows, code, target), base, 1e-3)
        setup = f"{max(r['setup_s'] for r in own):.2f}"
        results.append((*line, setup, _note(own, "-" in line[2:])))
    return results


def _note(own: list[dict[str, Any]], fell_short: bool) -> str:
    """Why a code has no figure."""
    reached = [r["error"] for r in own if "median" in r]
    if own[0]["missing"] or not reached:
        return own[0]["missing"]
    return f"least error {min(reached):.1e}" if fell_short else ""


def main() -> None:
    """Measure, print a table, write `results/single_run.json` and `results/single_run.png`."""
    args = harness.arguments(__doc__, 9, PROBLEMS, QUICK)
    rows, lines = [], []
    with harness.scratch_folder():
        for name in args.problems:
            own = measure(PROBLEMS[name](), args.repetitions, args.quick)
            rows += own
            lines += summary(own)
    headings = ["problem", "code"]
    for target in TARGETS:
        headings += [f"ms at {target:.0e}", "/ native", "with: error"]
    print("\n" + table([*headings, "set-up s", "note"], lines))
    figure = ladder.work_precision(rows, "One run: time against error", across=2)
    harness.finish("single_run", args, rows, "one run, on the clock", figure)


if __name__ == "__main__":
    harness.run(main)
