"""Optimal control: inputs that make a cost small."""

from .predictive import (
    CompiledPolicy as CompiledPolicy,
    mpc as mpc,
    Plan as Plan,
    PredictivePolicy as PredictivePolicy,
)
from .trajectories import (
    Bounds as Bounds,
    OptimalTrajectory as OptimalTrajectory,
    optimize_trajectory as optimize_trajectory,
)
