"""Time from the start of Python to the first result: imports, compiling, what users type.

Every time is that of a fresh process. Imports are taken in turn, so that a busy machine slows all
of them; runs are taken with JAX's cache of compiled programs empty, and again with what they left.
Beside each time stands that of the processors alone, of all threads: it depends less on what else
the machine does.

    python benchmarks/first_result.py
"""

import argparse
import inspect
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
IMPORTS = ("diffrax", "jaxdae")
SYSTEMS = ("two-link", "Andrews")
# What users type.
COMMANDS = (
    "--help",
    "list",
    "simulate two-link",
    "simulate andrews",
    "analyze pendulum",
    "tune two-link",
)
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
    began = clocks()
    import jax

    import jaxdae
    from jaxdae.solvers import RK4

    results = elapsed("import", began)
    jax.config.update("jax_enable_x64", True)
    system, formulation, start, t1, dt = case(name)
    how: dict[str, Any] = {"t1": t1}
    if steps == "fixed":
        how |= {"dt": dt, "solver": RK4()}
    if "backend" in parameters():
        how |= {"backend": backend}

    for name in ("first_run", "second_run"):
        began = clocks()
        jax.block_until_ready(jaxdae.simulate(system, formulation, start, **how).q)
        results |= elapsed(name, began)
    return results


def clocks() -> tuple[float, float]:
    """The time, and that of the processors in this process [s]."""
    return time.perf_counter(), time.process_time()


def elapsed(name: str, began: tuple[float, float]) -> dict[str, float]:
    """Both times since then."""
    wall, cpu = (b - a for a, b in zip(began, clocks(), strict=True))
    return {f"{name}_s": wall, f"{name}_cpu_s": cpu}


def parameters():
    """Names of the arguments of `simulate`."""
    import jaxdae

    return inspect.signature(jaxdae.simulate).parameters


def backends() -> tuple[str, ...]:
    """What `simulate` can run on here."""
    return ("plain", "native") if "backend" in parameters() else ("plain",)


def process(*arguments: str, **environment: str) -> tuple[dict[str, float], str]:
    """Times of a fresh process of Python from its start to its end [s], and what it prints."""
    began, cpu = time.perf_counter(), processors()
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - began
    return {"process_s": wall, "process_cpu_s": processors() - cpu}, done.stdout


def processors() -> float:
    """Time of the processors in all processes that this one has started and that are done [s]."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# Prints both times of an import, without the start of Python.
IMPORT = """
import time
began, cpu = time.perf_counter(), time.process_time()
import {}
print(time.perf_counter() - began, time.process_time() - cpu)
"""


def import_times(repetitions: int) -> dict[str, list[dict[str, float]]]:
    """Times of the imports [s], taken in turn."""
    results: dict[str, list[dict[str, float]]] = {name: [] for name in IMPORTS}
    for _ in range(repetitions):
        for name, rows in results.items():
            wall, cpu = map(float, process("-c", IMPORT.format(name))[1].split())
            rows.append({"s": wall, "cpu_s": cpu})
    return results


def ratios(imports: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Medians over the rounds of the ratios of the two imports."""
    pairs = list(zip(imports["jaxdae"], imports["diffrax"], strict=True))
    return {
        k: statistics.median(ours[k] / theirs[k] for ours, theirs in pairs) for k in pairs[0][0]
    }


def first_results(name: str, steps: str, backend: str, repetitions: int) -> dict[str, list[dict]]:
    """Runs with an empty cache of compiled programs, and with what the run before left in it."""
    results: dict[str, list[dict]] = {"cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            for row in results.values():
                total, text = process(
                    __file__, "--child", name, "--steps", steps, "--backend", backend,
                    JAX_COMPILATION_CACHE_DIR=folder,
                    # Also what compiles quickly: here every compilation is the first.
                    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
                )  # fmt: skip
                row.append({**total, **json.loads(text)})
    return results


def commands(repetitions: int) -> list[dict[str, Any]]:
    """Every command with empty caches, and again with what that left in them."""
    results = []
    for words in COMMANDS:
        rows: dict[str, list[dict]] = {"cold": [], "warm": []}
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                out = [] if words in ("--help", "list") else ["--out", f"{folder}/out"]
                for row in rows.values():
                    times, _ = process(
                        "-m", "jaxdae", *words.split(), *out, XDG_CACHE_HOME=f"{folder}/cache"
                    )
                    row.append(times)
        results.append({"command": words} | {k: summary(x) for k, x in rows.items()})
    return results


def spread(times: list[float]) -> dict[str, float]:
    """Median, least and largest of times."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def summary(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Spread of each of several times."""
    return {key: spread([row[key] for row in rows]) for key in rows[0]}


def line(name: str, *times: dict[str, float]) -> str:
    """One row of the table of imports."""
    return f"{name:22}" + "".join(f"{t[k]:9.2f}" for t in times for k in ("median", "min", "max"))


def table(report: dict) -> str:
    """The measurements as text."""
    titles = ("median, s", "min", "max", "CPU, s", "min", "max")
    lines = [f"{'':22}" + "".join(f"{title:>9}" for title in titles)]
    for name, t in report["import"].items():
        lines.append(line(f"import {name}", t["s"], t["cpu_s"]))
    ratio = report["import_ratio"]
    lines.append(f"import jaxdae / import diffrax: {ratio['s']:.2f}; CPU {ratio['cpu_s']:.2f}\n")
    lines.append(f"{'jaxdae …, medians':22}{'cold, s':>15}{'CPU':>8}{'warm, s':>15}{'CPU':>8}")
    for row in report["commands"]:
        cells = (row[cache][f"process{k}_s"] for cache in ("cold", "warm") for k in ("", "_cpu"))
        medians = [x["median"] for x in cells]
        lines.append(
            f"{row['command']:22}{medians[0]:15.2f}{medians[1]:8.2f}"
            f"{medians[2]:15.2f}{medians[3]:8.2f}"
        )
    lines.append("")
    columns = ("process", "import", "first_run", "second_run")
    lines.append(f"{'first result, medians':22}{'steps':9}{'backend':9}{'cache':7}" + "".join(
        f"{name.replace('_', ' ') + ', s':>15}{'CPU':>8}" for name in columns
    ))  # fmt: skip
    for row in report["first_result"]:
        for cache in ("cold", "warm"):
            times = "".join(
                f"{row[cache][f'{name}_s']['median']:15.3f}"
                f"{row[cache][f'{name}_cpu_s']['median']:8.2f}"
                for name in columns
            )
            lines.append(f"{row['system']:22}{row['steps']:9}{row['backend']:9}{cache:7}{times}")
    return "\n".join(lines)


def measure(repetitions: int) -> dict:
    """Everything."""
    imports = import_times(repetitions)
    few = max(1, repetitions // 5)  # these take ten times as long
    return {
        "import": {name: summary(rows) for name, rows in imports.items()},
        "import_ratio": ratios(imports),
        "commands": commands(few),
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
