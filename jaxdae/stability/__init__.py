"""Stability of step methods: their stability functions, and the gains that suit a step."""

from jaxdae import names as _names
from jaxdae.stability.measured import motion_frequency as motion_frequency
from jaxdae.stability.stability_functions import (
    amplification as amplification,
    stability_function as stability_function,
    step_matrix as step_matrix,
    tableau as tableau,
    zeros as zeros,
)
from jaxdae.stability.step_gains import (
    largest_turn as largest_turn,
    step_gains as step_gains,
    StepGains as StepGains,
)

__all__ = _names.public(globals())
