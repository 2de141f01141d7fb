"""Time from the start of Python to the first result: imports, compiling, what users type.

Every time is that of a fresh process. Imports are taken in turn, so that a busy machine slows all
of them; runs are taken with JAX's cache of compiled programs empty, and again with what they left.
Beside each time stands that of the processors alone, of all threads: it depends less on what else
the machine does.

    python benchmarks/first_result.py
    python benchmarks/first_result.py --quick
"""

import inspect
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import Any

IMPORTS = ("diffrax", "jaxdae")
SYSTEMS = ("two-link", "Andrews")
# Of bodies, by fixed steps in a kernel alone, and their gradients by all masses and the start.
BODIES = ("spatial four-bar", "ant", "humanoid", "chain-100")
GRADIENT = "gradient"
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
CACHES = ("empty", "filled")
# Of the processes that compile, which take ten times as long as an import.
FEW, QUICK_COMMANDS = 3, ("--help", "simulate two-link", "simulate andrews", "tune two-link")


def spatial_four_bar():
    """A crank, a coupler with a ball at each end, and a rocker on an axis across the crank's."""
    import jax.numpy as jnp

    import jaxdae
    from jaxdae.multibody import Ball, Body, Connection, Hinge, Multibody

    def rod(name, joint, length, parent=None, position=(0.0, 0.0, 0.0)):
        centre = tuple(x / 2 for x in length)
        return Body(
            name, joint, parent=parent, position=position, mass=1.0, centre=centre,
            inertia=(0.02, 0.02, 0.02),
        )  # fmt: skip

    bodies = [
        rod("crank", Hinge("crank angle", axis=(0, 0, 1)), (0.0, 0.2, 0.0)),
        rod("coupler", Ball("ball"), (0.9, 0.1, 0.3), "crank", (0.0, 0.2, 0.0)),
        rod(
            "rocker", Hinge("rocker angle", axis=(1, 0, 0)), (0.0, 0.3, 0.3), None, (0.9, 0.0, 0.0)
        ),
    ]
    loop = Connection("end", "coupler", "rocker", anchor=(0.9, 0.1, 0.3), other=(0.0, 0.3, 0.3))
    system = Multibody(bodies, [loop])
    start = jaxdae.consistent_state(system, system.start().q, jnp.ones(5))
    return system, jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0)), start


def case(name: str):
    """System, formulation, start, end time and fixed step [s] of a problem."""
    import jax.numpy as jnp

    from jaxdae import Baumgarte, Multipliers, State
    from jaxdae.models.andrews import AndrewsMechanism, START_Q
    from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator

    if name == "spatial four-bar":
        return (*spatial_four_bar(), 0.1, 1e-3)
    if name in BODIES:
        import bodies

        given = bodies.mechanism(name)
        return given.system, given.formulation, State(given.q, given.v), 0.1, 1e-3
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
    import numpy as np

    import jaxdae
    from jaxdae.solvers import RK4

    results = elapsed("import", began)
    jax.config.update("jax_enable_x64", True)
    system, formulation, start, t1, dt = case(name)
    how: dict[str, Any] = {"t1": t1}
    if steps != "adaptive":
        how |= {"dt": dt, "solver": RK4()}
    if "backend" in parameters():
        how |= {"backend": backend}
    inputs = len(system.labels().inputs)
    if inputs:
        how["controller"] = lambda *_: np.zeros(inputs)

    run = lambda: jaxdae.simulate(system, formulation, start, **how).q  # noqa: E731
    if steps == GRADIENT:
        run = gradient(system, formulation, start, how)
    for name in ("first_run", "second_run"):
        began = clocks()
        jax.block_until_ready(run())
        results |= elapsed(name, began)
    return results


def gradient(system, formulation, start, how: dict[str, Any]) -> Callable:
    """The gradient of a sum of final coordinates by numbers of all bodies and by the start."""
    import body_gradients
    import jax
    import jax.numpy as jnp

    import jaxdae

    def last(numbers, q, v):
        changed = body_gradients.with_numbers(system, numbers)
        state = jaxdae.State(q, v)
        return jnp.sum(jaxdae.simulate(changed, formulation, state, throw=False, **how).q[-1])

    numbers = jax.tree.map(jnp.asarray, body_gradients.numbers_of(system))
    compiled = jax.jit(jax.grad(last, argnums=(0, 1, 2)))
    return lambda: compiled(numbers, start.q, start.v)


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


def import_times(repetitions: int) -> list[dict[str, Any]]:
    """Rows of the imports, taken in turn."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in IMPORTS}
    for _ in range(repetitions):
        for name, times in rounds.items():
            wall, cpu = map(float, process("-c", IMPORT.format(name))[1].split())
            times.append({"_s": wall, "_cpu_s": cpu})
    return [row("imports", f"import {x}", x, times, "") for x, times in rounds.items()]


def row(
    section: str, problem: str, code: str, rounds: list[dict[str, float]], of: str, **more: str
) -> dict[str, Any]:
    """A row of the results: times of every round, on the clock and of the processors [s].

    Args:
        section: "imports", "commands" or "first run".
        problem: what was done.
        code: by what.
        rounds: times by their names.
        of: the beginning of the names of those that are meant.
        more: what else the row says.
    """
    seconds, cpu = ([x[of + end] for x in rounds] for end in ("_s", "_cpu_s"))
    head = {"section": section, "problem": problem, "code": code, "missing": None}
    return head | more | {"seconds": seconds, "cpu_seconds": cpu}


def in_both_caches(call: Callable[[str], dict[str, float]], rounds: int) -> dict[str, list[dict]]:
    """Times of a call with an empty folder for caches, and again with what it left there."""
    results: dict[str, list[dict]] = {name: [] for name in CACHES}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for times in results.values():
                times.append(call(folder))
    return results


def first_runs(name: str, steps: str, backend: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of the first and the second run, with each state of the cache."""

    def call(folder: str) -> dict[str, float]:
        total, text = process(
            __file__, "--child", name, "--steps", steps, "--backend", backend,
            JAX_COMPILATION_CACHE_DIR=folder,
            # Also what compiles quickly: here every compilation is the first.
            JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        )  # fmt: skip
        return {**total, **json.loads(text)}

    return [
        row(
            run.replace("_", " "),
            f"{name}, {steps}" + " steps" * (steps != GRADIENT), f"jaxdae, {backend}", times, run,
            cache=cache,
        )
        for cache, times in in_both_caches(call, rounds).items()
        for run in ("first_run", "second_run")
    ]  # fmt: skip


def command(words: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of a command with empty caches, and again with what that left in them."""

    def call(folder: str) -> dict[str, float]:
        out = [] if words in ("--help", "list") else ["--out", f"{folder}/out"]
        return process("-m", "jaxdae", *words.split(), *out, XDG_CACHE_HOME=f"{folder}/cache")[0]

    return [
        row("commands", f"jaxdae {words}", "jaxdae", times, "process", cache=cache)
        for cache, times in in_both_caches(call, rounds).items()
    ]


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    headings = ("", "what", "by", "cache", "s", "s of the processors")
    lines = [
        (
            x["section"], x["problem"], x["code"], x.get("cache", ""),
            harness.shown(x["seconds"], 1.0), harness.shown(x["cpu_seconds"], 1.0),
        )
        for x in rows
    ]  # fmt: skip
    ours, theirs = (next(x for x in rows if x["code"] == name) for name in ("jaxdae", "diffrax"))
    ratio = harness.ratio(ours["seconds"], theirs["seconds"])
    return f"{table(headings, lines)}\n\nimport jaxdae / import diffrax: {ratio:.2g}"


def measure(repetitions: int, quick: bool) -> list[dict[str, Any]]:
    """Everything."""
    import harness

    rows, few = import_times(repetitions), 1 if quick else FEW
    for words in harness.progress(QUICK_COMMANDS if quick else COMMANDS, "commands"):
        rows += command(words, few)
    for case in harness.progress(list(runs(quick)), "runs"):
        rows += first_runs(*case, few)
    return rows


def runs(quick: bool) -> Iterable[tuple[str, str, str]]:
    """Systems, steps and backends that are tried."""
    for name in SYSTEMS[:1] if quick else SYSTEMS:
        for steps in STEPS:
            for backend in backends():
                yield name, steps, backend
    for name in BODIES[:2] if quick else BODIES:
        for steps in ("fixed", GRADIENT):
            yield name, steps, "native"


def options(parser: Any) -> None:
    """What a process of one run is given."""
    parser.add_argument(
        "--child", choices=SYSTEMS + BODIES, help="print the times of one run as JSON"
    )
    parser.add_argument("--steps", choices=(*STEPS, GRADIENT), default="fixed", help="of that run")
    parser.add_argument("--backend", default="plain", help="what that run runs on")


def main() -> None:
    """Measure, print a table, write `results/first_result.json`."""
    import harness  # imports JAX, whose import a child times

    args = harness.arguments(__doc__, 15, more=options)
    rows = measure(args.repetitions, args.quick)
    print(text(rows))
    timed = "an import, a process from start to end, or a run, on the clock"
    harness.finish("first_result", args, rows, timed)


def main_of_child() -> None:
    """Print the times of one run as JSON."""
    import argparse

    parser = argparse.ArgumentParser()
    options(parser)
    args = parser.parse_args()
    print(json.dumps(child(args.child, args.steps, args.backend)))


if __name__ == "__main__":
    if "--child" in sys.argv:
        main_of_child()
    else:
        main()
