"""Stability of step methods: their stability functions, and the gains that suit a step."""

from jaxdae.stability.stability_functions import (
    AdamsBashforth as AdamsBashforth,
    amplification as amplification,
    stability_function as stability_function,
    step_matrix as step_matrix,
    tableau as tableau,
    zeros as zeros,
)
from jaxdae.stability.step_gains import step_gains as step_gains, StepGains as StepGains
