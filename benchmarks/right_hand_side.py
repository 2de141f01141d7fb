"""Time of one evaluation of the equations of motion, and of one adaptive run.

Two solves of the same equations are timed in turn, in one process: the one of the library, and
`jnp.linalg.solve` on the saddle-point matrix `[[M, J^T], [J, 0]]`. Everything is then repeated in a
second process with XLA's option to compile small loops as one function.

    python benchmarks/right_hand_side.py
    python benchmarks/right_hand_side.py --quick
"""

import json
import os
import subprocess
import sys
from typing import Any

import diffrax
import equinox as eqx
import harness
import jax
import jax.numpy as jnp

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.formulations import FullRankSolve
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve
from jaxdae.models.andrews import AndrewsMechanism, START_Q
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator
from jaxdae.tables import table

LOOP_OPTION = "xla_cpu_small_while_loop_byte_threshold=1000000000"
EVALUATIONS = 20_000


class LapackSolve(AbstractSaddlePointSolve):
    """`jnp.linalg.solve` on the saddle-point matrix."""

    @property
    def capabilities(self):
        return FullRankSolve().capabilities

    def __call__(self, mass, force, jac, rhs):
        n, c = jac.shape[1], jac.shape[0]
        kkt = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c), mass.dtype)]])
        x = jnp.linalg.solve(kkt, jnp.concatenate([force, rhs]))
        return x[:n], x[n:]


SOLVES = {"jaxdae": FullRankSolve(), "jnp.linalg.solve": LapackSolve()}


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

    return harness.first_call(lambda: jax.jit(loop).lower(start).compile())


def disagreement(system, stabilization, start):
    """Largest difference of the accelerations of the two solves, relative to the largest one."""
    moving = State(start.q, start.v + 0.1, start.w)

    def acceleration(solve):
        return Multipliers(stabilization, solve=solve).vector_field(system, 0.0, moving, None).v

    a, b = (jax.jit(acceleration, static_argnums=0)(solve) for solve in SOLVES.values())
    return float(jnp.max(jnp.abs(a - b)) / jnp.max(jnp.abs(b)))


def measure(name, system, stabilization, start, t1, repetitions: int) -> list[dict[str, Any]]:
    """A row for each solve of one problem."""
    forms = {key: Multipliers(stabilization, solve=s) for key, s in SOLVES.items()}
    loops = {key: compile_loop(system, f, start) for key, f in forms.items()}
    evaluations = harness.interleaved(
        {key: lambda loop=loop: loop(start) for key, (loop, _) in loops.items()}, repetitions
    )

    @eqx.filter_jit
    def run(formulation):
        save = diffrax.SaveAt(t1=True)
        return simulate(
            system, formulation, start, t1=t1, saveat=save, throw=False, backend="plain"
        )

    steps = int(run(forms["jaxdae"]).stats["num_steps"])
    runs = {key: lambda f=f: run(f).q for key, f in forms.items()}
    for call in runs.values():
        call()
    times = harness.interleaved(runs, repetitions)
    apart = disagreement(system, stabilization, start)
    return [
        {
            "problem": name, "code": key, "missing": None,
            "seconds": [t / EVALUATIONS for t in evaluations[key]],
            "ratio": harness.ratio(evaluations[key], evaluations["jaxdae"]),
            "error": apart, "compile_s": loops[key][1],
            "run_seconds": times[key], "run_steps": steps, "run_end_s": t1,
        }
        for key in forms
    ]  # fmt: skip


def text(rows: list[dict[str, Any]], title: str) -> str:
    """The measurements as text."""
    lines = [
        (
            row["problem"], row["code"], harness.shown(row["seconds"], 1e-6), row["compile_s"],
            row["ratio"], harness.shown(row["run_seconds"], 1e-3), row["run_steps"], row["error"],
        )
        for row in rows
    ]  # fmt: skip
    headings = (
        "system", "solve", "evaluation [us]", "compile [s]", "/ jaxdae", "run [ms]", "steps",
        "accelerations apart",
    )  # fmt: skip
    return f"{title}\n\n{table(headings, lines)}\n"


def measure_all(repetitions: int) -> list[dict[str, Any]]:
    """Rows of all problems, in this process."""
    return [
        row
        for case in harness.progress(list(cases()), "problems")
        for row in measure(*case, repetitions)
    ]


def measure_with_loop_option(repetitions: int) -> list[dict[str, Any]]:
    """The same in a process of its own, because XLA reads its options once."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_extra_options={LOOP_OPTION}"
    command = [sys.executable, __file__, "--child", "--repetitions", str(repetitions)]
    environment = {**os.environ, "XLA_FLAGS": flags}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Measure, print a table, write `results/right_hand_side.json`."""
    text_of_child = "print the rows as JSON, with XLA as it is"
    more = lambda x: x.add_argument("--child", action="store_true", help=text_of_child)  # noqa: E731
    args = harness.arguments(__doc__, 15, more=more)
    rows = measure_all(args.repetitions)
    if args.child:
        print(json.dumps(rows))
        return
    print(text(rows, "XLA as it is"))
    loops = measure_with_loop_option(args.repetitions)
    print(text(loops, f"XLA with {LOOP_OPTION}"))
    settings = {"as it is": rows, "small loops as one function": loops}
    every = [{"setting": name, **row} for name, part in settings.items() for row in part]
    harness.finish("right_hand_side", args, every, "one evaluation, on the clock")


if __name__ == "__main__":
    harness.run(main)
