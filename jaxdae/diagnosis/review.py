"""What there is to say of a run: its failure, or what to be warned of."""

import warnings

import diffrax
import numpy as np

from jaxdae.diagnosis.assumptions import rank_warning
from jaxdae.diagnosis.backward import end_warning
from jaxdae.diagnosis.diagnostics import judged, Noted, Row, rows_of, surveyed, tolerance_of
from jaxdae.diagnosis.failure import raise_failure, review, review_controller
from jaxdae.diagnosis.preconditions import rest_along
from jaxdae.results.trajectory import Trajectory
from jaxdae.simulation.problem import Method, Problem
from jaxdae.systems.checks import is_concrete


def reviewed(
    problem: Problem, method: Method, trajectory: Trajectory, *, throw: bool
) -> Trajectory:
    """A run of which it was said what there is to say.

    Args:
        problem: what was simulated.
        method: how.
        trajectory: what it gave.
        throw: whether a failure is an error.

    Raises:
        SimulationError: if it failed and `throw` is true.
    """
    if not is_concrete(problem, trajectory.result):
        return trajectory
    if throw:
        raise_failure(trajectory, method.solver)
    if trajectory.final_time.ndim == 0 and bool(trajectory.success):
        texts = [review(trajectory), rank_warning(trajectory)]
        if problem.times.grid is not None:  # an adaptive run stops at a singularity
            texts.append(review_controller(trajectory))
        if throw and trajectory.plain:
            texts.append(rest_along(trajectory))
            rows = rows_of(trajectory, _tolerance(problem, method))
            state, survey = surveyed(*problem.parts, rows)
            texts += judged(problem.system, problem.formulation, rows, state, survey)
            texts.append(end_warning(*problem.parts, rows.ts, state))
            _note(trajectory, survey)
        for text in texts:
            if text is not None:
                warnings.warn(text, RuntimeWarning, stacklevel=3)
    return trajectory


def _note(trajectory: Trajectory, survey: Row) -> None:
    """Keep what was read, for the prompt alone: beside the fields, so that no program sees it."""
    change = np.abs(survey.energy - survey.energy[0]).max()
    noted = Noted(float(survey.residual.max()), float(change))
    object.__setattr__(trajectory, "noted", noted)


def _tolerance(problem: Problem, method: Method) -> float | None:
    """Of the step control; `None` for fixed steps."""
    asked, times = method.stepsize_controller, problem.times
    fixed = times.grid is not None or (asked is None and times.first_step is not None)
    if fixed or isinstance(asked, diffrax.ConstantStepSize):
        return None
    return tolerance_of(asked, problem.state.q.dtype)
