"""Adaptive runs of many trajectories at once: time of one of them, at equal error.

Every code takes its own steps for each trajectory, to tolerances of a ladder. The starts lie within
1e-9 of the nominal one; the error is the largest over all members of
`|y - y_ref| / (1 + |y_ref|)` of the final (q, v), the reference DOP853 in C at 1e-13.

    python benchmarks/adaptive_batch.py
    python benchmarks/adaptive_batch.py --problems two-link --quick
"""

from collections.abc import Callable
from typing import Any

import batch
import diffrax
import harness
import jax
import jax.numpy as jnp
import ladder
import numpy as np
import ours
from competitors import c_codes, heyoka_codes
from competitors.base import Run
from problems import andrews, Case, chain, two_link

from jaxdae.tables import table

TARGETS = (1e-6, 1e-9)
TOLERANCES = (1e-6, 1e-8, 1e-10, 1e-12)
PROBLEMS: dict[str, Callable[[], Case]] = {
    "two-link": two_link,
    "andrews": andrews,
    "chain-10": lambda: chain(10),
}
# Trajectories of codes that are a hundred times slower.
FEW, QUICK_FEW = 256, 64


def own(case: Case, backend: ours.Backend, solver: str) -> Callable:
    """`simulate` under `vmap`: from starts and a tolerance to final states, compiled."""
    method = getattr(diffrax, solver)()

    def run(y, tolerance):
        controller = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        how = {"t1": case.problem.t1, "solver": method, "stepsize_controller": controller}
        return ours.ending(case, backend, y, **how)

    return jax.jit(jax.vmap(run, (0, None)))


def codes(case: Case, y: np.ndarray, quick: bool) -> dict[str, tuple[int, Callable[[Any], Run]]]:
    """How many trajectories each code has, and how it is built from a tolerance."""
    problem, results, few = case.problem, {}, QUICK_FEW if quick else FEW
    for backend in ours.BACKENDS:
        count = len(y) if backend == "native" else few
        for solver in ours.SOLVERS if backend == "native" else ours.SOLVERS[:1]:
            run, given = own(case, backend, solver), jnp.asarray(y[:count])
            make = lambda x, f=run, y=given: ladder.called_once(lambda: np.asarray(f(y, x)))  # noqa: E731
            results[f"{ours.label(backend)}, {solver}"] = (count, make)
    for name, build, count in (
        ("C, DOP853", c_codes.dop853_batch, len(y)),
        ("heyoka, batch", heyoka_codes.taylor_batch, len(y)),
        ("heyoka, ensemble", heyoka_codes.taylor_ensemble, few),
    ):
        make = lambda x, f=build, n=count: ladder.called_once(f(problem, x, y[:n]))  # noqa: E731
        if quick and build is not c_codes.dop853_batch:
            make = heyoka_codes.unless_slow_to_compile(problem, make)
        results[name] = (count, make)
    return results


def measure(case: Case, count: int, rounds: int, quick: bool) -> list[dict]:
    """Time every code on one problem; times are those of one trajectory [s]."""
    y = batch.starts(case, count)
    wanted = c_codes.dop853_batch(case.problem, 1e-13, y)()
    built, points = codes(case, y, quick), []
    for code, (members, make) in built.items():
        points += ladder.climb(code, make, TOLERANCES, wanted[:members])
    rows = ladder.timed(case.problem.name, points, rounds)
    return [_each(row, built[row["code"]][0]) for row in rows]


def _each(row: dict[str, Any], members: int) -> dict[str, Any]:
    """A row with times of one trajectory."""
    if "seconds" not in row:
        return row
    seconds = [t / members for t in row["seconds"]]
    return row | {"members": members, "seconds": seconds, **harness.spread(seconds)}


def text(rows: list[dict[str, Any]]) -> str:
    """Time of one trajectory at equal errors, and how many of the fastest kernel's it takes."""
    headings = ["problem", "code", "trajectories"]
    for target in TARGETS:
        headings += [f"us at {target:.0e}", "/ native", "with: error"]
    kernels = [f"{ours.label('native')}, {solver}" for solver in ours.SOLVERS]
    lines = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        part = [row for row in rows if row["problem"] == problem]
        bases = [_fastest(part, kernels, x) for x in TARGETS]
        for code in dict.fromkeys(row["code"] for row in part):
            mine = [row for row in part if row["code"] == code]
            line = [problem, code, str(next((r["members"] for r in mine if "members" in r), "-"))]
            for target, base in zip(TARGETS, bases, strict=True):
                line += ladder.cells(ladder.fastest(part, code, target), base, 1e-6)
            lines.append((*line, mine[0]["missing"] or ""))
    return table([*headings, "note"], lines)


def _fastest(part: list[dict[str, Any]], codes: list[str], target: float) -> dict | None:
    """The fastest setting of several codes."""
    able = [row for row in (ladder.fastest(part, code, target) for code in codes) if row]
    return min(able, key=lambda row: row["median"], default=None)


def main() -> None:
    """Measure, print a table, write `results/adaptive_batch.json` and its figure."""
    args = harness.arguments(__doc__, 5, PROBLEMS)
    count = 2048 if args.quick else 16384
    rows = []
    with harness.scratch_folder():
        for name in args.problems:
            rows += measure(PROBLEMS[name](), count, args.repetitions, args.quick)
    print(f"{harness.cores()} cores\n\n{text(rows)}")
    figure = ladder.work_precision(rows, "Many runs: time of one against error")
    harness.finish("adaptive_batch", args, rows, "one trajectory of a batch, on the clock", figure)


if __name__ == "__main__":
    harness.run(main)
