"""Derivatives of runs of bodies beside the runs: all masses, lengths, inertias and the start.

A scalar of the end is differentiated by masses, centres of mass, inertias and positions of all
bodies and by the whole start: in reverse mode (`jax.grad`), and along one direction in forward mode
(`jax.jvp`). The run beside it takes the same numbers as arguments; "numbers known" is the one
compiled for them. Times are those of the processors, of a step of RK4: of a batch of one member.
Masses and lengths are those of each member in a batch, or shared by all members, whose derivatives
are then sums over the batch.

    python benchmarks/body_gradients.py
    python benchmarks/body_gradients.py --problems ant --quick
"""

import time
from collections.abc import Callable
from typing import Any

import bodies
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

STEPS, FEW, MEMBERS = 200, 40, 256
PROBLEMS = ("chain-10", "ant", "humanoid", "chain-40")
RUN, KNOWN = "run", "run, numbers known"
KINDS = (RUN, KNOWN, "gradient", "one direction")


def numbers_of(system: Any) -> list[Any]:
    """Masses, centres of mass, inertias and positions of all bodies."""
    return [(x.mass, x.centre, x.inertia, x.position) for x in system.bodies]


def with_numbers(system: Any, numbers: list[Any]) -> Any:
    """A system with other ones."""
    fields = lambda x: (x.mass, x.centre, x.inertia, x.position)  # noqa: E731
    pairs = zip(system.bodies, numbers, strict=True)
    changed = tuple(eqx.tree_at(fields, body, values) for body, values in pairs)
    return eqx.tree_at(lambda x: x.bodies, system, changed)


def kinds(scalar: Callable, known: Callable, over: Callable) -> dict[str, Callable]:
    """Functions of numbers and start that are timed, of one run or of what `over` makes of it."""

    def along(*x):
        return jax.jvp(scalar, x, jax.tree.map(jnp.ones_like, x))[1]

    each = (scalar, lambda _, q, v: known(q, v), jax.grad(scalar, argnums=(0, 1, 2)), along)
    return {name: jax.jit(over(x)) for name, x in zip(KINDS, each, strict=True)}


def calls(problem: str, members: int) -> dict[tuple[str, str], tuple[Callable, float]]:
    """What is timed, by members and kind, and how many steps of members a call is."""
    given = bodies.mechanism(problem)
    numbers = jax.tree.map(jnp.asarray, numbers_of(given.system))
    weights = jnp.asarray(np.random.default_rng(1).normal(size=given.q.size))

    def scalar(steps: int) -> Callable:
        def value(numbers, q, v):
            changed = given._replace(system=with_numbers(given.system, numbers))
            return weights @ bodies.end(changed, q, v, steps)

        return value

    def known(steps: int) -> Callable:
        return lambda q, v: weights @ bodies.end(given, q, v, steps)

    def all_members(x):
        return jax.tree.map(lambda y: jnp.tile(y, (members,) + (1,) * y.ndim), x)

    q, v = all_members(given.q), all_members(given.v)
    one = (numbers, given.q, given.v)
    each, shared = (all_members(numbers), q, v), (numbers, q, v)
    summed = lambda *x: jnp.sum(jax.vmap(scalar(FEW), (None, 0, 0))(*x))  # noqa: E731
    summed_known = lambda q, v: jnp.sum(jax.vmap(known(FEW))(q, v))  # noqa: E731
    groups = (
        ("one run", kinds(scalar(STEPS), known(STEPS), lambda x: x), one, STEPS),
        (f"{members} members", kinds(scalar(FEW), known(FEW), jax.vmap), each, FEW * members),
        (
            f"{members} members, numbers shared",
            kinds(summed, summed_known, lambda x: x), shared, FEW * members,
        ),
    )  # fmt: skip
    return {
        (members_of, kind): (lambda f=f, x=x: f(*x), steps)
        for members_of, functions, x, steps in groups
        for kind, f in functions.items()
    }


def measure(problems: list[str], rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Rows of all kinds."""
    import harness

    rows = []
    for problem in problems:
        found = calls(problem, MEMBERS // 4 if quick else MEMBERS)
        if quick:
            found = {x: y for x, y in found.items() if x[0] == "one run"}
        for call, _ in found.values():
            jax.block_until_ready(call())
        timed = harness.interleaved(
            {x: call for x, (call, _) in found.items()}, rounds, clock=time.process_time
        )
        for (members, kind), seconds in timed.items():
            each = [x / found[members, kind][1] for x in seconds]
            row = {"problem": problem, "code": "jaxdae", "members": members, "kind": kind}
            rows.append({**row, "missing": None, "seconds": each})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    runs = {(x["problem"], x["members"]): min(x["seconds"]) for x in rows if x["kind"] == RUN}
    lines = [
        (
            x["problem"], x["members"], x["kind"], harness.shown(x["seconds"], 1e-6),
            f"{min(x['seconds']) / runs[x['problem'], x['members']]:.2f}",
        )
        for x in rows
    ]  # fmt: skip
    return table(("of", "members", "what", "microseconds a step", "of a run's"), lines)


def main() -> None:
    """Measure, print a table, write `results/body_gradients.json`."""
    import harness

    args = harness.arguments(__doc__, 7, PROBLEMS, ("chain-10", "ant"))
    rows = measure(args.problems, args.repetitions, args.quick)
    print(text(rows))
    harness.finish("body_gradients", args, rows, "a step of RK4 of one member, of the processors")


if __name__ == "__main__":
    import harness

    harness.run(main)
