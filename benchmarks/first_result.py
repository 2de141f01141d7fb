"""Time from the start of Python to the first result: imports, compiling, the command's help.

Every time is that of a fresh process. Imports are taken in turn, so that a busy machine slows all
of them; runs are taken with JAX's cache of compiled programs empty, and again with what they left.

    python benchmarks/first_result.py
"""

import argparse
import inspect
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
IMPORTS = ("diffrax", "jaxdae")
SYSTEMS = ("two-link", "Andrews")
STEPS = ("fixed", "adaptive")


def case(name: str):
    """System, formulation, start, end time and fixed step [s] of a problem."""
    import jax.numpy as jnp

    from jaxdae import Baumgarte, Multipliers, State
    from jaxdae.models.andrews import AndrewsMechanism, START_Q
    from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator

    if name == "two-link":
        gains = Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0]))
        start = State(jnp.array(PAPER_START_Q), jnp.array(PAPER_START_V))
        # Before the singular configuration, which is passed at 0.4933 s.
        return TwoLinkManipulator(), Multipliers(gains), start, 0.4, 0.01
    gains = Baumgarte(K_D=20.0, K_P=100.0)
    start = State(jnp.array(START_Q), jnp.zeros(7))
    return AndrewsMechanism(), Multipliers(gains), start, 0.03, 1e-4


def child(name: str, steps: str, backend: str) -> dict[str, float]:
    """Times [s] in this process: import, first run, and a second one, which compiles nothing."""
    began = time.perf_counter()
    import jax

    import jaxdae
    from jaxdae.solvers import RK4

    imported = time.perf_counter()
    jax.config.update("jax_enable_x64", True)
    system, formulation, start, t1, dt = case(name)
    how: dict[str, Any] = {"t1": t1}
    if steps == "fixed":
        how |= {"dt": dt, "solver": RK4()}
    if "backend" in parameters():
        how |= {"backend": backend}

    def run() -> float:
        before = time.perf_counter()
        jax.block_until_ready(jaxdae.simulate(system, formulation, start, **how).q)
        return time.perf_counter() - before

    return {"import_s": imported - began, "first_run_s": run(), "second_run_s": run()}


def parameters():
    """Names of the arguments of `simulate`."""
    import jaxdae

    return inspect.signature(jaxdae.simulate).parameters


def backends() -> tuple[str, ...]:
    """What `simulate` can run on here."""
    return ("plain", "native") if "backend" in parameters() else ("plain",)


def process(*arguments: str, **environment: str) -> tuple[float, str]:
    """Time of a fresh process of Python from its start to its end [s], and what it prints."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return time.perf_counter() - began, done.stdout


def import_times(repetitions: int) -> dict[str, list[float]]:
    """Times of the imports [s], without the start of Python, taken in turn."""
    code = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
    rounds = [
        {name: float(process("-c", code.format(name))[1]) for name in IMPORTS}
        for _ in range(repetitions)
    ]
    return {name: [r[name] for r in rounds] for name in IMPORTS}


def first_results(name: str, steps: str, backend: str, repetitions: int) -> dict[str, list[dict]]:
    """Runs with an empty cache of compiled programs, and with what the run before left in it."""
    found: dict[str, list[dict]] = {"cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            for row in found.values():
                total, text = process(
                    __file__, "--child", name, "--steps", steps, "--backend", backend,
                    JAX_COMPILATION_CACHE_DIR=folder,
                    # Also what compiles quickly: here every compilation is the first.
                    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                )  # fmt: skip
                row.append({"process_s": total, **json.loads(text)})
    return found


def spread(times: list[float]) -> dict[str, float]:
    """Median, least and largest of times."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def summary(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Spread of each of several times."""
    return {key: spread([row[key] for row in rows]) for key in rows[0]}


def line(name: str, t: dict[str, float]) -> str:
    """One row of the table of imports."""
    return f"{name:22}{t['median']:9.2f}{t['min']:9.2f}{t['max']:9.2f}"


def table(report: dict) -> str:
    """The measurements as text."""
    lines = [f"{'':22}{'median, s':>9}{'min':>9}{'max':>9}"]
    lines += [line(f"import {name}", t) for name, t in report["import_s"].items()]
    lines += [line("jaxdae --help", report["help_s"])]
    lines += [f"import jaxdae / import diffrax: {report['import_ratio']:.2f}", ""]
    columns = ("process_s", "import_s", "first_run_s", "second_run_s")
    lines.append(f"{'first result, medians':22}{'steps':9}{'backend':9}{'cache':7}" + "".join(
        f"{name.removesuffix('_s').replace('_', ' ') + ', s':>15}" for name in columns
    ))  # fmt: skip
    for row in report["first_result"]:
        for cache in ("cold", "warm"):
            times = "".join(f"{row[cache][name]['median']:15.3f}" for name in columns)
            lines.append(f"{row['system']:22}{row['steps']:9}{row['backend']:9}{cache:7}{times}")
    return "\n".join(lines)


def measure(repetitions: int) -> dict:
    """Everything."""
    imports = import_times(repetitions)
    pairs = zip(imports["jaxdae"], imports["diffrax"], strict=True)
    few = max(1, repetitions // 5)  # these take ten times as long
    return {
        "import_s": {name: spread(times) for name, times in imports.items()},
        "import_ratio": statistics.median(ours / theirs for ours, theirs in pairs),
        "help_s": spread([process("-m", "jaxdae", "--help")[0] for _ in range(few)]),
        "first_result": [
            {"system": name, "steps": steps, "backend": backend}
            | {k: summary(rows) for k, rows in first_results(name, steps, backend, few).items()}
            for name in SYSTEMS
            for steps in STEPS
            for backend in backends()
        ],
    }


def main() -> None:
    """Measure, print a table, write `results/first_result.json`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repetitions", type=int, default=15, help="of imports (default 15)")
    parser.add_argument("--child", choices=SYSTEMS, help="print the times of one run as JSON")
    parser.add_argument("--steps", choices=STEPS, default="fixed", help="of that run")
    parser.add_argument("--backend", default="plain", help="what that run runs on")
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child, args.steps, args.backend)))
        return
    report = measure(args.repetitions)
    print(table(report))
    import jax

    machine = {"jax": jax.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine, **report}, indent=2)
    (RESULTS / "first_result.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
