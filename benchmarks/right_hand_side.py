"""Time of one evaluation of the equations of motion, and of one adaptive run.

Two solves of the same equations are timed in turn, in one process: the one of the library, and
`jnp.linalg.solve` on the saddle-point matrix `[[M, J^T], [J, 0]]`. Everything is then repeated in a
second process with XLA's option to compile small loops as one function.

    python benchmarks/right_hand_side.py
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae import Baumgarte, FullRank, Multipliers, simulate, State
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve
from jaxdae.models.andrews import AndrewsMechanism, START_Q
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator

RESULTS = pathlib.Path(__file__).parent / "results"
LOOP_OPTION = "xla_cpu_small_while_loop_byte_threshold=1000000000"
EVALUATIONS = 20_000


class LapackSolve(AbstractSaddlePointSolve):
    """`jnp.linalg.solve` on the whole saddle-point matrix."""

    def assumptions(self):
        return FullRank().assumptions()

    def __call__(self, mass, force, jac, rhs):
        n, c = jac.shape[1], jac.shape[0]
        kkt = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c), mass.dtype)]])
        x = jnp.linalg.solve(kkt, jnp.concatenate([force, rhs]))
        return x[:n], x[n:]


SOLVES = {"jaxdae": FullRank(), "jnp.linalg.solve": LapackSolve()}


def cases():
    """Name, system, stabilization, start and end time [s] of each problem."""
    paper = Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0]))
    start = State(jnp.array(PAPER_START_Q), jnp.array(PAPER_START_V), jnp.zeros(0))
    # The run ends before the singular configuration, which is passed at 0.4933 s.
    yield "two-link (2 + 2)", TwoLinkManipulator(), paper, start, 0.4
    start = State(jnp.array(START_Q), jnp.zeros(7), jnp.zeros(0))
    yield "Andrews (7 + 6)", AndrewsMechanism(), Baumgarte(K_D=20.0, K_P=100.0), start, 0.03


def compile_loop(system, formulation, start):
    """A loop of dependent evaluations, compiled, and the time to compile it [s]."""

    def step(i, y):
        # So small a step leaves the state where it is to round-off, and yet no evaluation can be
        # left out or moved out of the loop.
        rate = formulation.vector_field(system, 1e-7 * i, y, None)
        return jax.tree.map(lambda a, b: a + 1e-15 * b, y, rate)

    def loop(y):
        return jax.lax.fori_loop(0, EVALUATIONS, step, y)

    began = time.perf_counter()
    compiled = jax.jit(loop).lower(start).compile()
    return compiled, time.perf_counter() - began


def disagreement(system, stabilization, start):
    """Largest difference of the accelerations of the two solves, relative to the largest one."""
    moving = State(start.q, start.v + 0.1, start.w)

    def acceleration(solve):
        return Multipliers(stabilization, solve=solve).vector_field(system, 0.0, moving, None).v

    a, b = (jax.jit(acceleration, static_argnums=0)(solve) for solve in SOLVES.values())
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


def seconds(call) -> float:
    """Time of one call, its result ready [s]."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def interleaved(calls: dict, repetitions: int) -> dict[str, list[float]]:
    """Times of several calls [s], taken in turn so that a busy machine slows all of them."""
    for call in calls.values():
        seconds(call)
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repetitions)]
    return {name: [r[name] for r in rounds] for name in calls}


def spread(times: list[float], scale: float) -> dict:
    """Median, least and largest of times, in units of `scale` [s]."""
    scaled = [t / scale for t in times]
    return {"median": statistics.median(scaled), "min": min(scaled), "max": max(scaled)}


def ratio(times: dict[str, list[float]]) -> float:
    """Median over the rounds of the ratio of the two times."""
    ours, lapack = times.values()
    return statistics.median(b / a for a, b in zip(ours, lapack, strict=True))


def measure(name, system, stabilization, start, t1, repetitions: int) -> dict:
    """Everything about one problem."""
    forms = {key: Multipliers(stabilization, solve=s) for key, s in SOLVES.items()}
    loops = {key: compile_loop(system, f, start) for key, f in forms.items()}
    evaluations = interleaved(
        {key: lambda loop=loop: loop(start) for key, (loop, _) in loops.items()}, repetitions
    )

    @eqx.filter_jit
    def run(formulation):
        save = diffrax.SaveAt(t1=True)
        return simulate(
            system, formulation, start, t1=t1, saveat=save, throw=False, backend="plain"
        )

    runs = interleaved({key: lambda f=f: run(f).q for key, f in forms.items()}, repetitions)
    return {
        "system": name,
        "evaluation_us": {k: spread(v, 1e-6 * EVALUATIONS) for k, v in evaluations.items()},
        "compile_s": {key: seconds for key, (_, seconds) in loops.items()},
        "ratio": ratio(evaluations),
        "disagreement": disagreement(system, stabilization, start),
        "run_ms": {key: spread(v, 1e-3) for key, v in runs.items()},
        "run_steps": int(run(forms["jaxdae"]).stats["num_steps"]),
        "run_end_s": t1,
    }


def table(rows: list[dict], title: str) -> str:
    """The measurements as text."""
    lines = [title, f"{'':17}{'':18}{'us per evaluation':^26}{'compile':>9}{'ratio':>7}{'run':>9}"]
    lines.append(f"{'':35}{'median':>8}{'min':>8}{'max':>8}{'  ':2}{'s':>9}{'':7}{'ms':>9}")
    for row in rows:
        for key, t in row["evaluation_us"].items():
            lines.append(
                f"{row['system']:17}{key:18}{t['median']:8.3f}{t['min']:8.3f}{t['max']:8.3f}  "
                f"{row['compile_s'][key]:9.2f}{row['ratio'] if key != 'jaxdae' else 1.0:7.2f}"
                f"{row['run_ms'][key]['median']:9.2f}"
            )
        lines.append(
            f"{'':17}accelerations agree to {row['disagreement']:.1e}; the run of "
            f"{row['run_end_s']} s takes {row['run_steps']} steps"
        )
    return "\n".join(lines)


def measure_with_loop_option(repetitions: int) -> list[dict]:
    """The same in a process of its own, because XLA reads its options once."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_extra_options={LOOP_OPTION}"
    command = [sys.executable, __file__, "--json-only", "--repetitions", str(repetitions)]
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure, print a table, write `results/right_hand_side.json`."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repetitions", type=int, default=15, help="rounds (default 15)")
    parser.add_argument("--json-only", action="store_true", help="print JSON, with XLA as it is")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows = [measure(*case, args.repetitions) for case in cases()]
    if args.json_only:
        print(json.dumps(rows))
        return
    print(table(rows, "XLA as it is"), end="\n\n")
    loops = measure_with_loop_option(args.repetitions)
    print(table(loops, f"XLA with {LOOP_OPTION}"))
    RESULTS.mkdir(exist_ok=True)
    machine = {"jax": jax.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    report = {"machine": machine, "default": rows, "loop_option": loops}
    (RESULTS / "right_hand_side.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
