"""What an update of a policy costs by `tune(Stochastic(…))`, and by a loop that is written by hand.

A policy of two layers of 64 balances a pole on a cart, in redundant coordinates (six numbers, one
constraint): each update draws 64 starts and 64 plants, simulates them, and takes the mean of the
gradients. The loop by hand is `eqx.filter_value_and_grad`, `optax` and `jax.jit` of the same
function, and waits for the loss, as a learning curve does. Both make so many updates in turn.

    python benchmarks/training.py
    python benchmarks/training.py --quick
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import equinox as eqx
import harness
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxdae
from jaxdae.solvers import RK4
from jaxdae.tuning import random_starts, Stochastic, tune

CODES = ("by hand", "jaxdae.tune")
MEMBERS, END, STEP, RATE = 64, 1.0, 0.02, 1e-3


class CartPole(jaxdae.System):
    """A mass on a massless rod on a cart: `q = (cart, x, y)` [m], the rod as a constraint."""

    cart: float = 1.0
    bob: Any = 0.2
    length: float = 0.5

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * (self.cart * v[0] ** 2 + self.bob * (v[1:] @ v[1:]))

    def potential_energy(self, t, q):
        del t
        return 9.81 * self.bob * q[2]

    def position_constraints(self, t, q):
        del t
        rod = jnp.stack([q[1] - q[0], q[2]])
        return jnp.stack([rod @ rod - self.length**2])

    def force(self, t, q, v, w, u):
        del t, q, v, w
        return jnp.stack([u[0], 0.0 * u[0], 0.0 * u[0]])


class Policy(eqx.Module):
    """A network from positions and velocities to the force on the cart [N]."""

    network: eqx.nn.MLP

    def __call__(self, t, q, v, w):
        del t, w
        return 10.0 * self.network(jnp.concatenate([q, v]))


def policy() -> Policy:
    """Of two layers of 64, with random weights."""
    return Policy(eqx.nn.MLP(6, 1, 64, 2, jnp.tanh, key=jax.random.key(1)))


def loss(policy: Policy, key, members: int = MEMBERS):
    """Mean square distance from the upright rest, over fresh starts and plants."""
    starts, plants = jax.random.split(key)
    upright = jaxdae.State(jnp.array([0.0, 0.0, 0.5]), jnp.zeros(3))
    states = random_starts(CartPole(), upright, starts, members, position=0.05, velocity=0.1)
    bobs = 0.2 * jnp.exp(0.1 * jax.random.normal(plants, (members,)))

    def one(state, bob):
        law = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
        run = jaxdae.simulate(
            CartPole(bob=bob), law, state, t1=END, dt=STEP, solver=RK4(), controller=policy,
            throw=False, start_tolerance=None, max_steps=round(END / STEP) + 1,
        )  # fmt: skip
        return jnp.where(run.success, jnp.mean((run.q - upright.q) ** 2), jnp.nan)

    return jnp.mean(jax.vmap(one)(states, bobs))


def updates_by_hand(members: int = MEMBERS) -> Callable[[], Any]:
    """A function that makes one update more, waits for its loss, and returns the policy."""
    optimizer = optax.adam(RATE)
    trained, frozen = eqx.partition(policy(), eqx.is_inexact_array)
    training, _ = jax.random.split(jax.random.key(0))

    @jax.jit
    def update(trained, state, step):
        def drawn(x):
            return loss(eqx.combine(x, frozen), jax.random.fold_in(training, step), members)

        value, slope = jax.value_and_grad(drawn)(trained)
        change, state = optimizer.update(slope, state, trained)
        return optax.apply_updates(trained, change), state, value

    state, step = optimizer.init(trained), 0

    def one_more():
        nonlocal trained, state, step
        trained, state, value = update(trained, state, step)
        value.block_until_ready()
        step += 1
        return eqx.combine(trained, frozen)

    return one_more


def in_turn(updates: int, members: int = MEMBERS) -> tuple[dict[str, list[float]], Any, Any]:
    """Seconds of each update by both codes, one by one in turn, and the policies in the end.

    What `tune` adds for its callback is counted, too: it hands over the parameters of each step.
    """
    by_hand = updates_by_hand(members)
    by_hand()
    seconds: dict[str, list[float]] = {code: [] for code in CODES}
    policies, began = [], time.perf_counter()

    def other(_):
        nonlocal began
        ended = time.perf_counter()
        policies.append(by_hand())
        returned = time.perf_counter()
        seconds["by hand"].append(returned - ended)
        seconds["jaxdae.tune"].append(ended - began)
        began = time.perf_counter()

    objective = Stochastic(lambda params, key: loss(params, key, members))
    result = tune(objective, policy(), optimizer=optax.adam(RATE), steps=updates, callback=other)
    # The first ones wait for programs; the loop by hand is one update ahead, and ends two ahead.
    kept = {code: x[2:] for code, x in seconds.items()}
    return kept, result.params, policies[-3]


def main() -> None:
    """Measure and print."""
    args = harness.arguments(__doc__, 300)
    updates = 60 if args.quick else args.repetitions
    seconds, _, _ = in_turn(updates)
    ratios = np.divide(seconds["jaxdae.tune"], seconds["by hand"])
    for code, x in seconds.items():
        print(f"{code:12s} {harness.shown(x, 1e-3)} ms an update")
    print(f"ratio        {median(ratios):8.3f} (median of {ratios.size} pairs)")
    rows = [
        {"code": code, "problem": "cart-pole", "seconds": x, "missing": None}
        for code, x in seconds.items()
    ]
    harness.finish("training", args, rows, "one update, codes in turn")


if __name__ == "__main__":
    harness.run(main)
