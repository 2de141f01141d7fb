"""Optimal control: inputs that make a cost small."""

from .predictive import (
    CompiledPolicy as CompiledPolicy,
    mpc as mpc,
    Plan as Plan,
    PredictivePolicy as PredictivePolicy,
)
