"""A run is examined: its failure, or what may be wrong with it."""

from typing import Any

import diffrax
import numpy as np

from jaxdae.diagnosis import failure
from jaxdae.diagnosis.assumptions import changed_rank
from jaxdae.diagnosis.backward import growth_along
from jaxdae.diagnosis.diagnostics import (
    passages_of,
    rows_of,
    surveyed,
    tolerance_of,
    warnings_of_rows,
)
from jaxdae.diagnosis.findings import Finding, Findings
from jaxdae.diagnosis.passages import near
from jaxdae.diagnosis.preconditions import rest_along
from jaxdae.simulation.problem import Method, Problem
from jaxdae.solvers.grid import known_ends


def diagnose(problem: Problem, method: Method, trajectory: Any, *, rows: bool = True) -> Findings:
    """What there is to say of a run.

    Args:
        problem: what was simulated, of known numbers.
        method: how.
        trajectory: the `Trajectory` of a single run.
        rows: whether its rows are read, for near-singular positions, contradicting constraints, the
            balance of energy and growth backward in time. Without it only what formulation and
            controller say, and the rank.

    Returns:
        `Findings`; of a run that failed only why.
    """
    if not bool(trajectory.success):
        message = failure.describe_failure(trajectory, method.solver)
        return Findings(Finding(message, time=float(trajectory.final_time)))
    found = [failure.review(trajectory), changed_rank(trajectory)]
    if problem.times.grid is not None:  # an adaptive run stops at a singularity
        found.append(failure.review_controller(trajectory))
    if not (rows and trajectory.plain):
        return Findings(warnings=_known(found))
    found.append(rest_along(trajectory))
    watched = rows_of(trajectory, _tolerance(problem, method))
    state, survey = surveyed(*problem.parts, watched)
    passed = passages_of(problem.system, problem.formulation, watched, state, survey)
    found += warnings_of_rows(problem.system, problem.formulation, watched, state, survey, passed)
    found.append(growth_along(*problem.parts, watched.ts, state))
    change = np.abs(survey.energy - survey.energy[0]).max()
    positions = tuple(near(*passed))
    return Findings(None, _known(found), positions, float(survey.residual.max()), float(change))


def _known(found: list[Finding | None]) -> tuple[Finding, ...]:
    return tuple(x for x in found if x is not None)


def _tolerance(problem: Problem, method: Method) -> float | None:
    """Of the step control; `None` for fixed steps."""
    asked, times = known_ends(method.stepsize_controller).controller, problem.times
    fixed = times.grid is not None or (asked is None and times.first_step is not None)
    if fixed or isinstance(asked, diffrax.ConstantStepSize):
        return None
    return tolerance_of(asked, problem.state.q.dtype)
