"""What studies of controllers share: candidates tuned on random plants, judged on others.

All candidates are judged by one cost; the plants that are judged on, and their starts, are not
those that were tuned on.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae import resolve, State, Trajectory, tune
from jaxdae.tuning import Logarithm, trainable


class Candidate(NamedTuple):
    """A controller and what is tuned of it.

    Args:
        name: heading of its row.
        params: with parametrizations; the first is not tuned where `steps` is 0.
        build: maps resolved parameters to a controller.
        steps: of the optimizer.
        mode: how to differentiate.
    """

    name: str
    params: Any
    build: Callable[[Any], Callable]
    steps: int = 0
    mode: str = "forward"


class Plants(NamedTuple):
    """Random plants, each with its start.

    Args:
        systems: a system whose arrays have a leading axis of plants.
        states: the starts, likewise.
    """

    systems: Any
    states: State


class Contest(eqx.Module):
    """Mean cost of a controller over plants; NaN where one of them is lost.

    Args:
        plants: what it must control.
        run: `(system, state, controller, mode)` to a `Trajectory`, failures being values.
        cost: of a `Trajectory`.
        build: maps parameters to a controller.
        mode: how to differentiate.
    """

    plants: Plants
    run: Callable[..., Trajectory]
    cost: Callable[[Trajectory], Float[Array, ""]]
    build: Callable[[Any], Callable]
    mode: str = eqx.field(static=True, default="forward")

    def costs(self, params) -> Float[Array, " plants"]:
        """Cost of every plant; NaN for one that is lost."""
        controller = self.build(params)

        def one(system, state):
            run = self.run(system, state, controller, self.mode)
            return jnp.where(run.success, self.cost(run), jnp.nan)

        return eqx.filter_vmap(one)(*self.plants)

    def __call__(self, params) -> Float[Array, ""]:
        return jnp.mean(self.costs(params))


class Row(NamedTuple):
    """What became of a candidate.

    Args:
        name: of the candidate.
        tuned: numbers that were tuned.
        params: after tuning.
        training: cost of each plant that was tuned on.
        held_out: cost of each plant that was not.
    """

    name: str
    tuned: int
    params: Any
    training: np.ndarray
    held_out: np.ndarray

    @property
    def lost(self) -> int:
        """Plants lost among those held out."""
        return int((~np.isfinite(self.held_out)).sum())

    @property
    def mean(self) -> float:
        """Mean cost of the plants held out that were not lost."""
        return float(np.nanmean(self.held_out))

    @property
    def worst(self) -> float:
        """Largest of them."""
        return float(np.nanmax(self.held_out))


def contest(
    candidates: Sequence[Candidate], run, cost, training: Plants, held_out: Plants
) -> dict[str, Row]:
    """Tune every candidate on the first plants, and judge it on both.

    Args:
        candidates: at least one.
        run: as in `Contest`.
        cost: as in `Contest`.
        training: plants to tune on.
        held_out: plants to judge on.
    """
    rows = {}
    # One program judges both.
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), training, held_out)
    for x in candidates:
        params = resolve(x.params)
        if x.steps:
            aim = Contest(training, run, cost, x.build, x.mode)
            params = tune(Logarithm(aim), x.params, steps=x.steps, progress=True).params
        judge = Contest(both, run, cost, x.build, x.mode)
        costs = np.split(np.asarray(eqx.filter_jit(judge.costs)(params)), [_count(training)])
        tuned = sum(p.size for p in jax.tree.leaves(eqx.filter(x.params, trainable(x.params))))
        rows[x.name] = Row(x.name, tuned if x.steps else 0, params, *costs)
    return rows


def _count(plants: Plants) -> int:
    return len(plants.states.q)


HEADINGS = (
    "controller", "tuned numbers", "training: mean", "lost", "held out: mean", "worst", "lost",
    "better than the first",
)  # fmt: skip


def lines(rows: dict[str, Row]) -> list[list]:
    """The table of the report; the first row is what the others are compared with."""
    first = next(iter(rows.values()))
    return [
        [
            x.name,
            x.tuned,
            f"{np.nanmean(x.training):.4g}",
            int((~np.isfinite(x.training)).sum()),
            f"{x.mean:.4g}",
            f"{x.worst:.4g}",
            x.lost,
            f"{int((x.held_out < first.held_out).sum())} of {x.held_out.size}",
        ]
        for x in rows.values()
    ]


def recorded(rows: dict[str, Row]) -> dict:
    """What goes into `result.json`."""
    return {
        x.name: {"training": x.training, "held_out": x.held_out, "lost": x.lost, "tuned": x.tuned}
        for x in rows.values()
    }
