"""What a call costs around the run that it makes, and a process for each new system that it meets.

Calls are those of a pendulum with fixed steps, taken in turn: `simulate` with all its checks and
without errors, with the arguments of before and with another start; beside them the same run
compiled with its start as an argument, by `jax.jit` and by `jaxdae.compile_run`. What they take
longer than that is Python.

Memory is that of a fresh process after its heap is trimmed: so much more for each system, a class
defined anew with its first run, and for a right-hand side by hand that `diffrax.diffeqsolve`
integrates with the same solver and saved times.

    python benchmarks/repeated_calls.py
    python benchmarks/repeated_calls.py --quick
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CODES = {
    "jaxdae, native": "a first run",
    "jaxdae, plain": "a first run",
    "diffrax, by hand": "a first run",
}
END, STEP = 1.0, 0.01
# Systems that are met before memory is counted: they load what all need.
FIRST = 4
# More than are remembered.
STARTS = 256


def pendulum(gravity: float) -> Any:
    """A unit pendulum in Cartesian coordinates, of a class of its own."""
    import jax.numpy as jnp

    import jaxdae

    class Pendulum(jaxdae.System):
        length: float = 1.0

        def kinetic_energy(self, t, q, v):
            del t, q
            return 0.5 * v @ v

        def potential_energy(self, t, q):
            del t
            return gravity * q[1]

        def position_constraints(self, t, q):
            del t
            return jnp.stack([q @ q - self.length**2])

    return Pendulum()


def starts(count: int) -> list[Any]:
    """Starts at rest on the circle."""
    import jax.numpy as jnp

    from jaxdae import State

    angles = np.linspace(-1.0, -0.5, count)
    return [State(jnp.array([np.cos(x), np.sin(x)]), jnp.zeros(2)) for x in angles]


def formulation() -> Any:
    """Multipliers, stabilized."""
    from jaxdae import Baumgarte, Multipliers

    return Multipliers(Baumgarte(K_D=20.0, K_P=100.0))


def calls() -> dict[tuple[str, str], Callable[[], Any]]:
    """Calls by what is given and by whom they are made; each has been made before."""
    import itertools

    import jax

    import jaxdae

    system, law, every = pendulum(9.81), formulation(), starts(STARTS)
    how: dict[str, Any] = {"t1": END, "dt": STEP}

    def made(start, **options):
        return jaxdae.simulate(system, law, start, **how, **options).final

    @jax.jit
    def traced(start):
        return made(start, throw=False)

    compiled = jaxdae.compile_run(system, law, every[0], **how)
    arrays = itertools.cycle([[np.asarray(x) for x in (s.q, s.v)] for s in every])
    given = itertools.cycle(every)
    results: dict[tuple[str, str], Callable[[], Any]] = {
        ("another start", "jaxdae.compile_run"): lambda: compiled(*next(arrays)),
        ("another start", "jaxdae, jax.jit"): lambda: traced(next(given)),
    }
    for name, options in (("jaxdae, throw=False", {"throw": False}), ("jaxdae, all checks", {})):
        results["the same start", name] = lambda o=options: made(every[0], **o)
        others = itertools.cycle(every)
        results["another start", name] = lambda o=options, x=others: made(next(x), **o)
    for call in results.values():
        for _ in range(3):
            jax.block_until_ready(call())
    return results


def memory() -> float:
    """Memory of this process that no file holds [MB], its heap trimmed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("Anonymous")) / 1024


def first_runs(code: str, count: int) -> dict[str, Any]:
    """Times [s] of the first runs of new systems in this process, and memory for each [MB]."""
    import jax

    jax.config.update("jax_enable_x64", True)
    law, start = formulation(), starts(1)[0]
    meet = by_hand if code.startswith("diffrax") else run_of(code, law, start)
    seconds, used = [], []
    for k in range(FIRST + count):
        began = time.perf_counter()
        jax.block_until_ready(meet(9.81 + k))
        seconds.append(time.perf_counter() - began)
        used.append(memory())
    return {"seconds": seconds[FIRST:], "megabytes": np.diff(used)[FIRST - 1 :].tolist()}


def run_of(code: str, law: Any, start: Any) -> Callable[[float], Any]:
    """The first run of a system with a gravity, and its coordinates."""
    import jaxdae

    backend: Any = code.split(", ")[1]
    return lambda g: jaxdae.simulate(pendulum(g), law, start, t1=END, backend=backend).q


def by_hand(gravity: float) -> Any:
    """The same by diffrax, times as arguments of the program as they are of ours."""
    import diffrax
    import jax
    import jax.numpy as jnp

    def rate(t, y, args):
        del t, args
        q, v = y[:2], y[2:]
        a = jnp.array([0.0, -gravity])
        return jnp.concatenate([v, a - (v @ v + a @ q) * q])

    @jax.jit
    def run(y, t1, ts):
        control = diffrax.PIDController(rtol=1e-8, atol=1e-8)
        term, solver = diffrax.ODETerm(rate), diffrax.Dopri8()
        saveat = diffrax.SaveAt(ts=ts)
        return diffrax.diffeqsolve(
            term, solver, 0.0, t1, None, y, saveat=saveat, stepsize_controller=control
        ).ys

    return run(jnp.array([np.cos(1.0), -np.sin(1.0), 0.0, 0.0]), END, jnp.linspace(0.0, END, 201))


def measure(rounds: int, count: int) -> list[dict[str, Any]]:
    """Rows of all calls, and of what new systems take."""
    import harness

    timed = harness.interleaved(calls(), rounds, least=0.02)
    rows = [
        {"section": "calls", "problem": given, "code": code, "missing": None, "seconds": seconds}
        for (given, code), seconds in timed.items()
    ]
    for code, problem in harness.progress(CODES.items(), "new systems"):
        row = {"section": "new systems", "problem": problem, "code": code}
        if not Path("/proc/self/smaps_rollup").exists():
            rows.append({**row, "missing": "this system does not say what a process uses"})
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--child", code, "--count", str(count)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        rows.append({**row, "missing": None, **json.loads(done.stdout)})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    part = [x for x in rows if x["section"] == "calls"]
    base = next(x["seconds"] for x in part if x["code"] == "jaxdae, jax.jit")
    lines = [
        (
            x["problem"], x["code"], harness.shown(x["seconds"], 1e-6),
            f"{harness.ratio(x['seconds'], base):.3g}",
        )
        for x in part
    ]  # fmt: skip
    first = table(("given", "by", "microseconds", "/ jax.jit"), lines)
    part = [x for x in rows if x["section"] == "new systems"]
    lines = [
        (
            x["code"],
            x["missing"] or harness.shown(x["megabytes"], 1.0),
            "" if x["missing"] else harness.shown(x["seconds"], 1.0),
        )
        for x in part
    ]
    return f"{first}\n\n{table(('a new system by', 'MB', 's of its first run'), lines)}"


def options(parser: argparse.ArgumentParser) -> None:
    """What a process that meets systems is given."""
    parser.add_argument("--child", choices=CODES, help="print what new systems take as JSON")
    parser.add_argument("--count", type=int, default=12, help="systems that a process meets")


def main() -> None:
    """Measure, print a table, write `results/repeated_calls.json`."""
    import harness

    args = harness.arguments(__doc__, 15, more=options)
    rows = measure(args.repetitions, 4 if args.quick else args.count)
    print(text(rows))
    timed = "a call, its result ready, or the first run of a system that is new to its process"
    harness.finish("repeated_calls", args, rows, timed)


def main_of_child() -> None:
    """Print what new systems take as JSON."""
    parser = argparse.ArgumentParser()
    options(parser)
    args = parser.parse_args()
    print(json.dumps(first_runs(args.child, args.count)))


if __name__ == "__main__":
    if "--child" in sys.argv:
        main_of_child()
    else:
        main()
