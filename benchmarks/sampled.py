"""What runs with a recurrent network as a sampled policy cost, and their gradient by its weights.

A gated recurrent unit of 32 balances a pole on a cart, in redundant coordinates (six numbers, one
constraint), at 200 samples a second, with one and with five steps of RK4 between two samples. All
members share the weights. By kernels, and by diffrax under `jax.vmap`; beside these the products
with the network's matrices alone, by NumPy for all members at once, which is about what a network
takes at least. Times are those of the processors, of all threads.

    python benchmarks/sampled.py
    python benchmarks/sampled.py --quick
"""

import time
from collections.abc import Callable
from typing import Any, Literal

import diffrax
import equinox as eqx
import harness
import jax
import jax.numpy as jnp
import numpy as np
from training import CartPole

import jaxdae
from jaxdae.solvers import RK4

UNITS, PERIOD, END = 32, 0.005, 0.5
STEPS = (1, 5)
Backend = Literal["native", "plain"]
BACKENDS: tuple[Backend, ...] = ("native", "plain")
# The unit's inputs are three coordinates and three velocities, its gates three.
INPUTS, GATES = 6, 3


class Recurrent(eqx.Module):
    """Forces from coordinates and velocities, with a memory."""

    cell: eqx.nn.GRUCell
    output: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(INPUTS, UNITS, key=first)
        self.output = eqx.nn.Linear(UNITS, 1, key=second)

    def __call__(self, t, q, v, w, memory):
        del t, w
        memory = self.cell(jnp.concatenate([q, v]), memory)
        return 5.0 * self.output(memory), memory


def ends(policy: Recurrent, angles, backend: Backend, steps: int):
    """Squares of the ends of runs from angles at rest, shape `(members,)`."""
    law = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))

    def one(angle):
        q = 0.5 * jnp.stack([0.0 * angle, jnp.sin(angle), jnp.cos(angle)])
        run = jaxdae.simulate(
            CartPole(), law, jaxdae.State(q, 0 * q), t1=END, dt=PERIOD / steps, solver=RK4(),
            controller=jaxdae.Sampled(policy, PERIOD, memory=jnp.zeros(UNITS)), backend=backend,
            saveat=diffrax.SaveAt(t1=True), throw=False, start_tolerance=None,
        )  # fmt: skip
        return jnp.sum(run.q[-1] ** 2) + jnp.sum(run.v[-1] ** 2)

    return jax.vmap(one)(angles)


def calls(members: int, steps: int) -> dict[tuple[str, str], Callable[[], Any]]:
    """By what is computed and by what; gradients by kernels alone, as others take minutes."""
    policy = Recurrent(jax.random.key(0))
    angles = 0.2 * jax.random.normal(jax.random.key(1), (members,))

    def program(backend: Backend) -> Callable[[], Any]:
        run = jax.jit(lambda policy, angles: ends(policy, angles, backend, steps))
        return lambda: jax.block_until_ready(run(policy, angles))

    found: dict[tuple[str, str], Callable[[], Any]] = {("runs", x): program(x) for x in BACKENDS}
    slope = jax.jit(jax.grad(lambda p, x: jnp.mean(ends(p, x, "native", steps))))
    found["gradient", "native"] = lambda: jax.block_until_ready(slope(policy, angles))
    for call in found.values():
        call()
    rng = np.random.default_rng(0)
    products = [
        (rng.normal(size=(members, n)), rng.normal(size=(n, m)), np.empty((members, m)))
        for n, m in ((INPUTS, GATES * UNITS), (UNITS, GATES * UNITS), (UNITS, 1))
    ]

    def alone():
        for _ in range(round(END / PERIOD)):
            for a, b, c in products:
                np.matmul(a, b, out=c)

    found["products alone", "NumPy"] = alone
    return found


def measure(rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Rows of all times."""
    rows, members = [], 512 if quick else 4096
    for steps in STEPS:
        timed = harness.interleaved(calls(members, steps), rounds, clock=time.process_time)
        for (what, code), seconds in timed.items():
            row = {"steps_per_sample": steps, "members": members, "what": what, "code": code}
            rows.append({**row, "missing": None, "seconds": seconds})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    from jaxdae.tables import table

    lines = [
        (str(x["steps_per_sample"]), x["what"], x["code"], harness.shown(x["seconds"], 1.0))
        for x in rows
    ]
    return table(("steps a sample", "of", "by", "seconds"), lines)


def main() -> None:
    """Measure, print a table, write `results/sampled.json`."""
    args = harness.arguments(__doc__, 5)
    rows = measure(args.repetitions, args.quick)
    print(text(rows))
    harness.finish("sampled", args, rows, "all members, of the processors")


if __name__ == "__main__":
    harness.run(main)
