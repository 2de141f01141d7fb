"""Stability of step methods: their stability functions, and the gains that suit a step."""

from jaxdae import names as _names
from jaxdae.stability.adaptive import (
    adaptive_gains as adaptive_gains,
    expected_step as expected_step,
)
from jaxdae.stability.error_constants import (
    error_constant as error_constant,
    ErrorConstant as ErrorConstant,
)
from jaxdae.stability.linear_range import (
    constraint_mobility as constraint_mobility,
    linear_range as linear_range,
    LinearRange as LinearRange,
)
from jaxdae.stability.motion import motion_frequency as motion_frequency
from jaxdae.stability.stability_functions import (
    amplification as amplification,
    stability_function as stability_function,
    step_matrix as step_matrix,
    tableau as tableau,
    zeros as zeros,
)
from jaxdae.stability.stationary import (
    Motion as Motion,
    stationary_violation as stationary_violation,
)
from jaxdae.stability.step_gains import step_gains as step_gains, StepGains as StepGains
from jaxdae.stability.turning import largest_turn as largest_turn

__all__ = _names.public(globals())
