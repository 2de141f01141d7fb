"""Optimal control: motions to order, and prediction in real time."""

from jaxdae import names as _names
from jaxdae.optimal_control.nonlinear_programs import Multipliers as Multipliers
from jaxdae.optimal_control.trajectories import (
    Bounds as Bounds,
    OptimalTrajectory as OptimalTrajectory,
    optimize_trajectory as optimize_trajectory,
    PlannedInputs as PlannedInputs,
)

__all__ = _names.public(globals())
