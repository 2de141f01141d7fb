"""What a sample of predictive control takes, with twenty inputs on the horizon.

A cart with a pendulum in Cartesian coordinates (three and one constraint) that looks ahead one
second, and a five-bar (four coordinates, two constraints) half a second. Both methods, with the
numbers of iterations that are given; each policy is compiled and asked from its first plan. Beside
the time there is the cost that is left, beside the least that is found: iterations of the two
methods are not worth the same.

    python benchmarks/predictive.py
    python benchmarks/predictive.py --quick
"""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

import jaxdae

NODES = 20
Search = Literal["gauss-newton", "projected-gradient"]
ITERATIONS: dict[Search, tuple[int, ...]] = {
    "gauss-newton": (3, 5, 20),
    "projected-gradient": (5, 20),
}
# What the cost that is left is compared with.
MANY = 60
PROBLEMS = ("cart-pole", "five-bar")


class CartPole(jaxdae.System):
    """A cart of 1 kg, pushed along x, with 0.2 kg at the end of a rod of 0.5 m."""

    def kinetic_energy(self, t, q, v):
        """Of the cart, and of the mass at the end."""
        del t, q
        return 0.5 * (v[0] ** 2 + 0.2 * (v[1] ** 2 + v[2] ** 2))

    def potential_energy(self, t, q):
        """Of the mass at the end."""
        del t
        return 0.2 * 9.81 * q[2]

    def force(self, t, q, v, w, u):
        """On the cart."""
        del t, v, w
        return jnp.zeros_like(q) if u is None else jnp.zeros_like(q).at[0].set(u[0])

    def position_constraints(self, t, q):
        """The rod."""
        del t
        return jnp.stack([(q[1] - q[0]) ** 2 + q[2] ** 2 - 0.25])


def cart_pole() -> tuple[Any, jaxdae.State, Callable, dict[str, Any]]:
    """The model, a start that leans by half a radian, the cost, and the settings."""

    def cost(t, q, v, w, u):
        del t, w
        deviation = q - jnp.array([0.0, 0.0, 0.5])
        return jnp.concatenate([jnp.array([1.0, 2.0, 3.0]) * deviation, 0.1 * v, 0.05 * u])

    x, y = 0.5 * np.sin(0.5), 0.5 * np.cos(0.5)
    start = jaxdae.State(jnp.array([0.0, x, y]), jnp.zeros(3))
    return CartPole(), start, cost, {"horizon": 1.0, "bounds": (-8.0, 8.0)}


def five_bar() -> tuple[Any, jaxdae.State, Callable, dict[str, Any]]:
    """The model, a start at rest, the cost of another place of the tip, and the settings."""
    from jaxdae.models import FiveBar

    system = FiveBar()

    def cost(t, q, v, w, u):
        del t, w
        miss = system.tip(q) - jnp.array([0.05, 0.45])
        return jnp.concatenate([10 * miss, 0.1 * v, 0.05 * u])

    q, v = system.start()
    return system, jaxdae.State(q, 0 * v), cost, {"horizon": 0.5, "bounds": ([-5.0] * 2, [5.0] * 2)}


def policies(problem: str, quick: bool) -> dict[tuple[str, int], tuple[Callable, float]]:
    """Calls by method and iterations, and the cost that each leaves."""
    system, start, cost, settings = {"cart-pole": cart_pole, "five-bar": five_bar}[problem]()
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))
    q, v = np.asarray(start.q), np.asarray(start.v)
    results = {}
    for method, counts in ITERATIONS.items():
        for count in counts[-1:] if quick else counts:
            policy = jaxdae.mpc(
                system, formulation, cost, nodes=NODES, iterations=count, method=method, **settings
            )
            step = policy.compile(start)
            results[method, count] = (
                lambda step=step: step(0.0, q, v),
                float(step(0.0, q, v)[1].cost),
            )
    return results


def best(problem: str) -> float:
    """The cost that many Gauss-Newton steps leave."""
    system, start, cost, settings = {"cart-pole": cart_pole, "five-bar": five_bar}[problem]()
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))
    policy = jaxdae.mpc(system, formulation, cost, nodes=NODES, iterations=MANY, **settings)
    return float(policy(0.0, start.q, start.v, start.w, policy.memory)[1].cost)


def measure(problems: list[str], rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Rows of all policies."""
    import harness

    rows = []
    for problem in problems:
        found = policies(problem, quick)
        least = min(best(problem), *(cost for _, cost in found.values()))
        timed = harness.interleaved({key: call for key, (call, _) in found.items()}, rounds)
        for (method, count), seconds in timed.items():
            excess = found[method, count][1] / least - 1
            row = {"problem": problem, "code": f"jaxdae, {method}", "missing": None}
            rows.append({**row, "iterations": count, "excess": excess, "seconds": seconds})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    lines = [
        (
            x["problem"], x["code"], str(x["iterations"]), harness.shown(x["seconds"], 1e-3),
            f"{x['excess']:.1e}",
        )
        for x in rows
    ]  # fmt: skip
    return table(("of", "by", "iterations", "milliseconds", "cost above the best"), lines)


def main() -> None:
    """Measure, print a table, write `results/predictive.json`."""
    import harness

    args = harness.arguments(__doc__, 15, PROBLEMS)
    rows = measure(args.problems, args.repetitions, args.quick)
    print(text(rows))
    harness.finish("predictive", args, rows, "a call of a compiled policy, from its first plan")


if __name__ == "__main__":
    import harness

    harness.run(main)
