"""Accuracy against work: the cost that gains reach at several steps, and what dominates what."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from jaxdae.reprs import shown
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.stability_functions import tableau
from jaxdae.tuning.certificate import Certificate
from jaxdae.tuning.conditions import Conditions
from jaxdae.tuning.loop import tune
from jaxdae.tuning.objectives import SimulationObjective
from jaxdae.tuning.parametrizations import resolve


class FrontPoint(NamedTuple):
    """What gains reach with one method at one step.

    Args:
        solver: name of the step method.
        dt: step [s].
        steps: fixed steps of a run, of the longest horizon.
        evaluations: of the right-hand side in these steps.
        cost: the objective; NaN where a member failed, whatever its price.
        failed: number of members whose run failed.
        dominated: whether another point costs no more for no more evaluations, and one of both is
            less; points with failures are.
        params: the gains, resolved.
        certificate: of these gains at this step.
    """

    solver: str
    dt: float
    steps: int
    evaluations: int
    cost: float
    failed: int
    dominated: bool
    params: PyTree
    certificate: Certificate

    def __repr__(self) -> str:
        return shown(self)


class Front(NamedTuple):
    """Points of accuracy against work.

    Args:
        points: of all methods and steps, in the order in which they were asked for.
    """

    points: tuple[FrontPoint, ...]

    def __repr__(self) -> str:
        return shown(self)

    @property
    def best(self) -> tuple[FrontPoint, ...]:
        """The points that no other dominates, least work first."""
        kept = [x for x in self.points if not x.dominated]
        return tuple(sorted(kept, key=lambda x: x.evaluations))

    def to_json(self) -> list[dict[str, Any]]:
        """Points as numbers and texts, without gains; `None` for a cost that is not finite."""
        names = ("solver", "dt", "steps", "evaluations", "failed", "dominated")
        return [
            {name: getattr(x, name) for name in names}
            | {"cost": x.cost if np.isfinite(x.cost) else None}
            | {"certificate": x.certificate.to_json()}
            for x in self.points
        ]


def front(
    objective: SimulationObjective,
    params: PyTree | Callable[[diffrax.AbstractSolver, float], PyTree],
    dt: float | Sequence[float],
    *,
    solvers: Sequence[diffrax.AbstractSolver] = (),
    tuned: bool = True,
    progress: bool = False,
    **settings: Any,
) -> Front:
    """The cost that is reached at each of several steps, by tuned gains or by given ones.

    Args:
        objective: a `SimulationObjective`; its own steps are replaced.
        params: parameters to start from, or a function `params(solver, dt)` that gives those for a
            method and a step, such as theory's:
            `lambda solver, dt: Multipliers(Baumgarte.for_step(solver, dt))`.
        dt: fixed steps [s].
        solvers: step methods with a tableau; by default the objective's.
        tuned: whether gains are tuned at every point from there, or taken as they are.
        progress: show a progress bar.
        **settings: of `tune`, such as `steps` and `optimizer`.

    Returns:
        `Front`.

    Raises:
        TypeError: for an objective that is no `SimulationObjective`.
        ValueError: for no steps, adaptive steps, a method without a tableau, or settings of `tune`
            where nothing is tuned.
    """
    from tqdm import tqdm

    if not isinstance(objective, SimulationObjective):
        raise TypeError(
            f"front: the objective is a {type(objective).__name__}, must be a SimulationObjective, "
            "whose method and step can be replaced; of one that is wrapped give what it wraps."
        )
    methods = tuple(solvers) or (objective.solver_used,)
    each = [(solver, float(x)) for solver in methods for x in np.ravel(np.asarray(dt, float))]
    if not each:
        raise ValueError("front: there are no steps; give dt, such as dt=(0.005, 0.01, 0.02).")
    if objective.adaptive:
        raise ValueError(
            "front: the objective's steps are adaptive; give it a fixed step dt, and leave out its "
            "stepsize_controller."
        )
    if settings and not tuned:
        raise ValueError(
            f"front: {', '.join(settings)} are settings of tune, but nothing is tuned with "
            "tuned=False; leave them out."
        )
    counts = {id(x): _evaluations(x) for x in methods}
    points = []
    for solver, step in tqdm(each, disable=not progress, unit="point"):
        one = _at(objective, solver, step)
        start = params(solver, step) if _is_function(params) else params  # pyright: ignore[reportCallIssue]
        found = tune(one, start, **settings).params if tuned else resolve(start)
        points.append(_point(one, found, step, counts[id(solver)]))
    costs = np.array([x.cost for x in points])
    dominated = are_dominated(np.array([x.evaluations for x in points]), costs)
    return Front(
        tuple(x._replace(dominated=bool(y)) for x, y in zip(points, dominated, strict=True))
    )


def are_dominated(work: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Whether others cost no more for no more work, and one of both is less; all NaN are.

    Args:
        work: shape (points,).
        costs: shape (points,).
    """
    # Row for the point, column for the other; comparisons with NaN are false.
    no_more = (work <= work[:, None]) & (costs <= costs[:, None])
    less = (work < work[:, None]) | (costs < costs[:, None])
    return (no_more & less).any(axis=1) | np.isnan(costs)


def _at(objective, solver, step: float):
    """The objective at one step of one method."""
    conditions = Conditions(None, objective.conditions.t1, objective.conditions.variations)
    return dataclasses.replace(objective, dt=step, solver=solver, conditions=conditions)


def _point(objective, params: PyTree, step: float, evaluations: int) -> FrontPoint:
    known = objective.certificate(params)
    cost = float("nan") if known.failed else float(_value(objective, params))
    steps = objective.fixed_steps
    name, made = type(objective.solver_used).__name__, steps * evaluations
    return FrontPoint(name, step, steps, made, cost, known.failed, False, params, known)


@eqx.filter_jit
def _value(objective, params):
    return objective(params)


def _evaluations(solver) -> int:
    """Of the right-hand side in each step; the last of a step may be the first of the next."""
    method = parts_of(solver).method
    table = getattr(method, "tableau", None)
    return tableau(method)[1].size - int(getattr(table, "fsal", False))


def _is_function(params: Any) -> bool:
    return callable(params) and not isinstance(params, eqx.Module)
