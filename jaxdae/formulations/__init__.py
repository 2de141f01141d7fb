"""Formulations: equations of motion a solver can integrate, with their stabilization."""

from jaxdae.formulations.base import AbstractFormulation as AbstractFormulation
from jaxdae.formulations.lagrange import (
    AugmentedLagrangian as AugmentedLagrangian,
    Multipliers as Multipliers,
    Penalty as Penalty,
)
from jaxdae.formulations.stabilization import (
    AbstractStabilization as AbstractStabilization,
    Baumgarte as Baumgarte,
    LinearStabilization as LinearStabilization,
)
