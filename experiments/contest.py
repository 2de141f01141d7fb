"""What contests of controllers share: candidates tuned on random plants, judged on others.

All candidates are judged by one cost; the plants that are judged on, and their starts, are not
those that were tuned on. A candidate may choose the design of the plants beside its law.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, fenced, finish, listed, options
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jaxdae import State, System, Trajectory, tune
from jaxdae.formulations import AbstractFormulation
from jaxdae.tables import table
from jaxdae.tuning import Conditions, CVaR, Logarithm, resolve, SimulationObjective, trainable
from jaxdae.tuning.risk import at_risk, in_words, Risk

# What the tables show beside the mean and the worst.
TAIL = CVaR(0.25)


class Uniform(NamedTuple):
    """Bounds of random numbers of a plant.

    Args:
        low: least.
        high: largest.
        shape: of the numbers of one plant.
    """

    low: float
    high: float
    shape: tuple[int, ...] = ()


class Task(NamedTuple):
    """What is to be controlled, and at what cost.

    Args:
        nominal: what the controllers know.
        random: what differs among plants and their starts, by name.
        plant: maps a design, such as `nominal`, and such numbers to the system that is run.
        start: maps them to the state it is run from.
        formulation: of the runs.
        cost: of a `Trajectory`; NaN for a plant that is lost.
        settings: `t1`, `dt`, `solver` and such, of `SimulationObjective`.
    """

    nominal: System
    random: dict[str, Uniform]
    plant: Callable[[Any, dict[str, Array]], System]
    start: Callable[[Any, dict[str, Array]], State]
    formulation: AbstractFormulation
    cost: Callable[[Trajectory], Float[Array, ""]]
    settings: dict[str, Any]

    def plants(self, key: PRNGKeyArray, count: int) -> dict[str, Array]:
        """Random numbers of so many plants.

        Args:
            key: random key.
            count: of plants; the leading axis.
        """
        keys = jax.random.split(key, len(self.random))
        drawn = zip(keys, self.random.items(), strict=True)
        return {
            name: jax.random.uniform(k, (count, *x.shape), float, x.low, x.high)
            for k, (name, x) in drawn
        }


class Candidate(NamedTuple):
    """A controller and what is tuned of it.

    Args:
        name: heading of its row.
        params: with parametrizations; they are not tuned where `steps` is 0.
        law: maps resolved parameters to a controller.
        steps: of the optimizer.
        mode: how to differentiate.
        design: maps resolved parameters to the design of all plants; the nominal one by default.
        risk: what is made small of the costs of all plants: "mean", "worst" or `CVaR`.
    """

    name: str
    params: Any
    law: Callable[[Any], Callable]
    steps: int = 0
    mode: Literal["forward", "reverse"] = "forward"
    design: Callable[[Any], System] | None = None
    risk: Risk = "mean"


def objective(task: Task, candidate: Candidate, plants: PyTree) -> SimulationObjective:
    """The cost of a candidate over plants, each from its own start.

    Args:
        task: what is to be controlled.
        candidate: what controls it.
        plants: random numbers, from `Task.plants`.
    """

    def designed(params) -> System:
        return task.nominal if candidate.design is None else candidate.design(params)

    def build(params, plant):
        return task.plant(designed(params), plant), task.formulation, candidate.law(params)

    first = task.start(task.nominal, jax.tree.map(lambda x: x[0], plants))
    return SimulationObjective(
        task.cost,
        jax.tree.map(lambda x: jnp.asarray(x)[None], first),
        build=build,
        start=lambda params, _state, plant: task.start(designed(params), plant),
        mode=candidate.mode,
        conditions=Conditions(variations=plants),
        risk=candidate.risk,
        **task.settings,
    )


def trajectory(task: Task, candidate: Candidate, params, plant) -> Trajectory:
    """The motion of one plant.

    Args:
        task: what is to be controlled.
        candidate: what controls it.
        params: resolved.
        plant: random numbers of one plant.
    """
    one = objective(task, candidate, jax.tree.map(lambda x: x[None], plant))
    return eqx.filter_jit(one.trajectories)(params).member(0)


def costs(task: Task, candidate: Candidate, params, plants) -> np.ndarray:
    """Cost of every plant; NaN for one that is lost.

    Args:
        task: what is to be controlled.
        candidate: what controls it.
        params: resolved.
        plants: random numbers of all.
    """
    return np.asarray(eqx.filter_jit(objective(task, candidate, plants).costs)(params))


class Row(NamedTuple):
    """What became of a candidate.

    Args:
        name: of the candidate.
        tuned: numbers that were tuned.
        params: after tuning.
        training: cost of each plant that was tuned on.
        held_out: cost of each plant that was not.
        risk: what was made small.
    """

    name: str
    tuned: int
    params: Any
    training: np.ndarray
    held_out: np.ndarray
    risk: Risk = "mean"

    @property
    def lost(self) -> int:
        """Plants lost among those held out."""
        return int((~np.isfinite(self.held_out)).sum())

    def at(self, risk: Risk) -> float:
        """The risk of the plants held out that were not lost; NaN where all were.

        Args:
            risk: "mean", "worst" or `CVaR`.
        """
        kept = self.held_out[np.isfinite(self.held_out)]
        return float(at_risk(jnp.asarray(kept), risk)) if kept.size else float("nan")

    @property
    def mean(self) -> float:
        """Mean cost of the plants held out that were not lost."""
        return self.at("mean")

    @property
    def tail(self) -> float:
        """Mean of the worst quarter of them."""
        return self.at(TAIL)

    @property
    def worst(self) -> float:
        """Largest of them."""
        return self.at("worst")


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is simulated.

    Args:
        training: plants to tune on.
        held_out: plants to judge on.
    """

    training: int = 16
    held_out: int = 64


class Outcome(NamedTuple):
    """What a contest found.

    Args:
        rows: by candidate.
        held_out: random numbers of the plants held out.
        runs: by candidate, on the plant held out that costs the first candidate most; none of a
            brief contest.
    """

    rows: dict[str, Row]
    held_out: dict[str, Array]
    runs: dict[str, Trajectory]


def contest(
    task: Task, candidates: Sequence[Candidate], size: Size, brief: bool = False
) -> Outcome:
    """Tune every candidate on some plants, and judge it on them and on others.

    Args:
        task: what is to be controlled.
        candidates: at least one; the others are compared with the first.
        size: numbers of plants.
        brief: neither bars nor runs for pictures.
    """
    training, held_out = (
        task.plants(jax.random.key(seed), count)
        for seed, count in enumerate((size.training, size.held_out))
    )
    rows = {x.name: _judged(task, x, training, held_out, not brief) for x in candidates}
    if brief:
        return Outcome(rows, held_out, {})
    hardest = int(np.nanargmax(next(iter(rows.values())).held_out))
    plant = jax.tree.map(lambda x: x[hardest], held_out)
    runs = {x.name: trajectory(task, x, rows[x.name].params, plant) for x in candidates}
    return Outcome(rows, held_out, runs)


def _judged(task: Task, candidate: Candidate, training, held_out, progress) -> Row:
    params, tuned = resolve(candidate.params), 0
    if candidate.steps:
        aim = Logarithm(objective(task, candidate, training))
        result = tune(aim, candidate.params, steps=candidate.steps, progress=progress)
        params = result.params
        arrays = eqx.filter(candidate.params, trainable(candidate.params))
        tuned = sum(x.size for x in jax.tree.leaves(arrays))
    # One program judges both.
    both = jax.tree.map(lambda *parts: jnp.concatenate(parts), training, held_out)
    count = len(jax.tree.leaves(training)[0])
    seen, unseen = np.split(costs(task, candidate, params, both), [count])
    return Row(candidate.name, tuned, params, seen, unseen, candidate.risk)


HEADINGS = (
    "controller", "tuned numbers", "for", "training: mean", "lost", "held out: mean",
    "worst quarter", "worst", "lost", "better than the first",
)  # fmt: skip


def lines(rows: dict[str, Row]) -> list[list]:
    """The table of the report; the first row is what the others are compared with."""
    first = next(iter(rows.values()))
    return [
        [
            x.name,
            x.tuned,
            (in_words(x.risk) or "the mean") if x.tuned else "-",
            f"{np.nanmean(x.training):.4g}",
            int((~np.isfinite(x.training)).sum()),
            *(f"{part:.4g}" for part in (x.mean, x.tail, x.worst)),
            x.lost,
            f"{int((x.held_out < first.held_out).sum())} of {x.held_out.size}",
        ]
        for x in rows.values()
    ]


def recorded(rows: dict[str, Row]) -> dict:
    """What goes into `result.json`."""
    return {
        x.name: {
            "training": x.training,
            "held_out": x.held_out,
            "lost": x.lost,
            "mean": x.mean,
            "worst_quarter": x.tail,
            "worst": x.worst,
            "tuned": x.tuned,
            "for": in_words(x.risk) or "the mean",
        }
        for x in rows.values()
    }


def designs_in_words(rows: dict[str, Row], numbers: Mapping[str, str]) -> list[str]:
    """A line for each candidate that chose a design.

    Args:
        rows: of all candidates.
        numbers: of a design, what stands for them in words, by their names in the parameters.
    """
    chosen = {
        x.name: {what: x.params[name] for name, what in numbers.items() if name in x.params}
        for x in rows.values()
        if isinstance(x.params, dict)
    }
    return [
        f"Design by {name}: "
        + ", ".join(f"{what} {np.array2string(np.asarray(v), precision=4)}" for what, v in found)
        for name, found in ((name, list(x.items())) for name, x in chosen.items())
        if found
    ]


class Report(NamedTuple):
    """What a contest's script writes beside its table.

    Args:
        name: folder in `results`.
        title: heading.
        text: what the cost and the plants are.
        claims: of the results of the study.
        draw: `(results, path)`; a figure.
        design: numbers of a design in words, by their names in the parameters.
        recorded: what else of the results goes into `result.json`.
    """

    name: str
    title: str
    text: str
    claims: Callable[[dict], list[Claim]]
    draw: Callable[[dict, Path], None]
    design: Mapping[str, str] = MappingProxyType({})
    recorded: tuple[str, ...] = ()


def main(doc: str | None, study: Callable[..., dict], steps: int, size: Size, report: Report):
    """Run a study and write what it found.

    Args:
        doc: docstring of the script.
        study: `(steps, size)` to its results, `rows` among them.
        steps: default of the command line.
        size: numbers of plants.
        report: what to write.
    """
    chosen = options(doc, f"results/{report.name}", steps=(steps, "steps of the optimizer"))
    results = study(chosen.steps, size)
    sentences, rows = report.claims(results), results["rows"]
    text = "\n".join(
        [
            f"# {report.title}: tuned on {size.training} plants, judged on {size.held_out} others",
            *("", *fenced(table(HEADINGS, lines(rows))), report.text),
            *(*designs_in_words(rows, report.design), "", listed(sentences)),
        ]
    )
    report.draw(results, chosen.out / "hardest.png")
    extra = {name: results[name] for name in report.recorded}
    finish(chosen.out, text, recorded(rows) | extra, sentences)
