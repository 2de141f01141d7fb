"""Budgets in words: a checkpoint is continued where they are the same."""

from collections.abc import Iterable
from typing import Any

import diffrax
import numpy as np

from jaxdae.solvers.projected import parts_of
from jaxdae.tuning.risk import in_words


def budget_of(objective: Any) -> str:
    """Steps or work, conditions and risk of a `SimulationObjective`."""
    made, ends = objective.steps_made, objective.end_times or ()
    if objective.adaptive:
        lasting = _listed(x - objective.t0 for x in ends)
        steps = f"adaptive, at most {objective.max_steps} steps in {lasting} s"
    elif objective.several_grids:
        steps = f"h = {_listed(made)} s, to t = {_listed(ends)} s"
    else:
        steps = f"h = {_listed(made)} s, {objective.fixed_steps} steps"
    price = objective.failure_cost
    failures = "" if price is None else f"failures at {price:g}"
    size, risk = _counted(objective.shape), in_words(objective.risk)
    parts = (_named(objective.solver_used), steps, size, risk, failures)
    return ", ".join(x for x in parts if x)


def _named(solver: diffrax.AbstractSolver) -> str:
    """A solver in words, with the one that it wraps."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractWrappedSolver):
        return name
    projection = parts_of(solver).projection
    more = "" if projection is None else f", {projection.iterations} iterations"
    return f"{name}({_named(solver.solver)}{more})"


def _listed(values: Iterable[float]) -> str:
    """Numbers in a row."""
    return ", ".join(f"{x:g}" for x in values)


def _counted(shape: tuple[int, int, int, int]) -> str:
    """Numbers of variations, starts and runs of a batch of steps, horizons, variations, starts."""
    _, _, variations, starts = shape
    first = f"{variations} variations, " if variations > 1 else ""
    runs = f": {np.prod(shape)} runs" if np.prod(shape) > starts else ""
    return f"{first}{starts} starts{runs}"
