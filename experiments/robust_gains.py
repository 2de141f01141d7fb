"""Gains tuned for a range of steps on ten systems, judged on starts and steps they never met.

    python experiments/robust_gains.py [--systems pendulum chain] [--starts 64]

For each ready system the gains of its stabilization are tuned by least squares on 16 starts off the
constraints and several steps. Then they are judged on 64 other starts at half, once and twice the
study's step, against the gains that tuning began with. A case that has become worse ends the script
with an error.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from claims import Claim, finish, listed
from tqdm import tqdm

import jaxdae
from jaxdae.compiled import jit
from jaxdae.models.studies import studies
from jaxdae.models.study import RANGE, Study
from jaxdae.solvers import RK4
from jaxdae.tables import table
from jaxdae.tuning import Conditions, perturbed_states, resolve, SimulationObjective

SYSTEMS = (
    "pendulum",
    "chain",
    "two-link",
    "slider-crank",
    "five-bar",
    "robot",
    "circuit",
    "disk",
    "knife-edge",
    "sleigh",
)
STEPS = (0.5, 1.0, 2.0)
TUNED_ON, EVALUATIONS = 16, 39
OUT = Path(__file__).parents[1] / "results" / "robust_gains"


@dataclasses.dataclass(frozen=True)
class Case:
    """What became of the gains of one system.

    Args:
        name: of the system.
        cuts: mean cost of the first gains over that of the tuned ones, at each of `STEPS`; NaN
            where runs with the first gains fail.
        failed: runs that fail with the first gains and with the tuned ones, where those did not.
        evaluations: of the objective.
        decay: guaranteed rate of a Lyapunov function [1/s].
        margin: step limit over the longest step tuned on.
        cpu_seconds: spent on it.
    """

    name: str
    cuts: tuple[float, ...]
    failed: tuple[int, int]
    evaluations: int
    decay: float | None
    margin: float | None
    cpu_seconds: float

    @property
    def worse(self) -> bool:
        """Whether a step has become worse, or runs fail that did not."""
        return self.failed[1] > 0 or any(cut < 1 for cut in self.cuts)


def objective(study: Study, key: int, count: int, multiples, solver) -> SimulationObjective:
    """The mean cost of some starts at several multiples of the study's step."""
    deviation = study.deviation
    states = perturbed_states(study.start, jax.random.key(key), count, deviation, deviation)
    conditions = Conditions(dt=[x * study.dt for x in multiples])
    return SimulationObjective(
        study.goal.cost,
        states,
        build=study.build,
        t1=study.t1,
        conditions=conditions,
        solver=solver,
    )


@jit
def costs(judge: SimulationObjective, params: Any):
    """Costs by step and start."""
    shape = judge.members.shape
    return judge.costs(params).reshape(shape[0], shape[-1])


def judged(study: Study, starts: int = 64, solver: Any = None) -> Case:
    """Tune the gains of a study for a range of steps, and judge them on other starts and steps.

    Args:
        study: what is tuned.
        starts: number of starts it is judged on.
        solver: the method; RK4 by default.
    """
    began, solver = time.process_time(), RK4() if solver is None else solver
    judge = objective(study, 1, starts, STEPS, solver)
    before = np.asarray(costs(judge, resolve(study.params)))
    held = np.array([np.isfinite(row).all() for row in before])
    longest = max(
        (step for step, good in zip(STEPS, held.tolist(), strict=True) if good), default=0.0
    )
    steps = [x for x in RANGE if x <= 1.05 * longest] or [1.0]
    result = jaxdae.tune(
        objective(study, 0, TUNED_ON, steps, solver), study.params, steps=EVALUATIONS - 1
    )
    after = np.asarray(costs(judge, result.params))
    cuts = np.where(held, before.mean(axis=1) / after.mean(axis=1), np.nan)
    failed = int(np.sum(~np.isfinite(before))), int(np.sum(~np.isfinite(after[held])))
    certified = result.certificate
    return Case(
        "",
        tuple(float(x) for x in cuts),
        failed,
        result.evaluations,
        certified.lyapunov_rate,
        certified.step_margin,
        time.process_time() - began,
    )


def report(cases: list[Case]) -> str:
    """A table of all cases."""
    headings = ("system", *(f"cut at {x:g} h" for x in STEPS), "failed before", "after")
    rows = [
        (
            case.name,
            *(f"{x:.3g}-fold" if np.isfinite(x) else "no run before" for x in case.cuts),
            *case.failed,
            case.evaluations,
            "unknown" if case.decay is None else f"{case.decay:.3g}",
            "unknown" if case.margin is None else f"{case.margin:.3g}",
            f"{case.cpu_seconds:.0f}",
        )
        for case in cases
    ]
    more = ("evaluations", "decay [1/s]", "step margin", "CPU [s]")
    return table((*headings, *more), rows)


def claims(cases: list[Case]) -> list[Claim]:
    """What the cases show, system by system."""
    return [
        Claim(
            f"{case.name}: gains tuned for a range are no worse than the first ones at any step "
            f"({', '.join(f'{x:.3g}' for x in case.cuts)}-fold cuts), and "
            f"{case.failed[1]} runs fail that did not.",
            not case.worse,
        )
        for case in cases
    ]


def main(arguments: list[str] | None = None) -> None:
    """Tune, judge, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--systems", nargs="+", default=SYSTEMS, metavar="NAME")
    parser.add_argument("--starts", type=int, default=64, help="held-out starts (default: 64)")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    cases = []
    for name in tqdm(options.systems, unit="system"):
        study = studies(name)[0]
        cases.append(dataclasses.replace(judged(study, options.starts), name=name))
        tqdm.write(f"{name}: {cases[-1].cuts}")
    sentences = claims(cases)
    text = "\n".join([report(cases), "", listed(sentences)])
    finish(options.out, text, {"cases": [dataclasses.asdict(x) for x in cases]}, sentences)


if __name__ == "__main__":
    main()
