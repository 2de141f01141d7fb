"""Time of one step of classical Runge-Kutta for chains of 10 to 1000 links, and how it grows.

Every code in `CODES` does the same work: the same chain from the same start, with the same fixed
steps. They run in turn, in one process.

    python benchmarks/scaling.py
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.formulations import SparseMultipliers
from jaxdae.models.chain import Chain
from jaxdae.solvers import RK4

RESULTS = pathlib.Path(__file__).parent / "results"
LINKS = (10, 20, 40, 100, 200, 400, 1000)
STABILIZATION = Baumgarte.critical(20.0)


class Problem(NamedTuple):
    """A chain of N links, 1 m and 1 kg altogether, let go from rest at 45 degrees.

    Args:
        links: N.
        dt: step [s], well below 2.8 over the highest frequency of the chain, about 2 N sqrt(g / L).
        steps: how many.
    """

    links: int
    dt: float
    steps: int

    @classmethod
    def of(cls, links: int) -> "Problem":
        """As many steps as can be timed without the start of a call mattering."""
        return cls(links, 0.1 / links, max(20, 4000 // links))


class Prepared(NamedTuple):
    """A code ready to be timed.

    Args:
        run: does all steps and returns the final coordinates (x_1, y_1, ..., x_N, y_N) [m].
        compile_s: time it took to get ready [s].
    """

    run: Callable[[], np.ndarray]
    compile_s: float


def prepare(formulation) -> Callable[[Problem], Prepared]:
    """This library, with one of its formulations."""

    def prepared(problem: Problem) -> Prepared:
        system = Chain.uniform(problem.links)
        q, v = system.straight(0.25 * np.pi)
        start, t1 = State(q, v), problem.dt * problem.steps

        @eqx.filter_jit
        def run(start):
            # Not as a native kernel, which is for systems that are small enough to unroll.
            solution = simulate(
                system,
                formulation,
                start,
                t1=t1,
                dt=problem.dt,
                solver=RK4(),
                saveat=diffrax.SaveAt(t1=True),
                throw=False,
                max_steps=problem.steps + 1,
                backend="plain",
            )
            return solution.q[-1]

        began = time.perf_counter()
        compiled = run.lower(start).compile()  # pyright: ignore[reportFunctionMemberAccess]
        seconds = time.perf_counter() - began
        return Prepared(lambda: np.asarray(compiled(start)), seconds)

    return prepared


# What is compared: name, how it is made ready, and the largest chain it is asked for. The first is
# what the others are compared with.
CODES: dict[str, tuple[Callable[[Problem], Prepared], int]] = {
    "SparseMultipliers": (prepare(SparseMultipliers(STABILIZATION)), 1000),
    "Multipliers": (prepare(Multipliers(STABILIZATION)), 200),
}


def seconds(run: Callable[[], np.ndarray]) -> float:
    """Time of one call [s]."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure(links: int, repetitions: int) -> dict:
    """All codes on one chain, in turn, so that a busy machine slows all of them."""
    problem = Problem.of(links)
    codes = {k: make(problem) for k, (make, largest) in CODES.items() if links <= largest}
    results = {name: code.run() for name, code in codes.items()}
    first = next(iter(results.values()))
    rounds = [{k: seconds(code.run) for k, code in codes.items()} for _ in range(repetitions)]
    row: dict = {"links": links, "dt_s": problem.dt, "steps": problem.steps, "codes": {}}
    for name, code in codes.items():
        times = [1e6 * r[name] / problem.steps for r in rounds]
        ratios = [r[name] / r[next(iter(codes))] for r in rounds]
        row["codes"][name] = {
            "step_us": {"median": statistics.median(times), "min": min(times), "max": max(times)},
            "ratio": statistics.median(ratios),
            "compile_s": code.compile_s,
            "difference_m": float(np.abs(results[name] - first).max()),
        }
    return row


def exponents(rows: list[dict]) -> dict[str, dict[str, float]]:
    """`p` of time ~ N^p for each code: fitted to all chains, and between the two longest."""
    found = {}
    for name in CODES:
        points = [(r["links"], r["codes"][name]["step_us"]["median"])
                  for r in rows if name in r["codes"]]  # fmt: skip
        if len(points) < 2:
            continue
        x, y = np.log(np.array(points)).T
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        found[name] = {"fitted": float(np.polyfit(x, y, 1)[0]), "last": float(slope)}
    return found


def table(rows: list[dict], found: dict[str, dict[str, float]]) -> str:
    """The measurements as text."""
    columns = ("links", "code", "us a step", "min", "max", "ratio", "compile, s", "differs by, m")
    widths = (6, 20, 12, 10, 10, 8, 11, 14)
    lines = ["".join(f"{c:>{w}}" for c, w in zip(columns, widths, strict=True))]
    for row in rows:
        for name, c in row["codes"].items():
            t = c["step_us"]
            lines.append(
                f"{row['links']:6}{name:>20}{t['median']:12.2f}{t['min']:10.2f}{t['max']:10.2f}"
                f"{c['ratio']:8.2f}{c['compile_s']:11.2f}{c['difference_m']:14.1e}"
            )
    for name, p in found.items():
        lines.append(f"{name}: time of a step ~ N^{p['fitted']:.2f}, at the end N^{p['last']:.2f}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, write `results/scaling.json`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--links", type=int, nargs="+", default=LINKS, help="chains to measure")
    parser.add_argument("--repetitions", type=int, default=9, help="rounds (default 9)")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = [measure(links, args.repetitions) for links in sorted(args.links)]
    found = exponents(rows)
    print(table(rows, found))
    RESULTS.mkdir(exist_ok=True)
    machine = {"jax": jax.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    report = {"machine": machine, "rows": rows, "exponents": found}
    (RESULTS / "scaling.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
