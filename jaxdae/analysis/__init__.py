"""Analysis: equilibria, linearization, spectra, certificates, step limits, regulators."""

from jaxdae import names as _names
from jaxdae.analysis.controllability import (
    Controllability as Controllability,
    controllability as controllability,
)
from jaxdae.analysis.equilibria import (
    Equilibrium as Equilibrium,
    equilibrium as equilibrium,
    EquilibriumError as EquilibriumError,
)
from jaxdae.analysis.linearization import (
    Linearization as Linearization,
    linearize as linearize,
    Partition as Partition,
)
from jaxdae.analysis.lyapunov import (
    BaumgarteCertificate as BaumgarteCertificate,
    LinearCertificate as LinearCertificate,
    lyapunov_certificate as lyapunov_certificate,
)
from jaxdae.analysis.perturbation import perturbation_matrix as perturbation_matrix
from jaxdae.analysis.rest import Balance as Balance
from jaxdae.analysis.riccati import (
    lqr as lqr,
    Regulator as Regulator,
    RegulatorFeedback as RegulatorFeedback,
    solve_lyapunov as solve_lyapunov,
    solve_riccati as solve_riccati,
)
from jaxdae.analysis.rule_of_thumb import (
    rule_of_thumb as rule_of_thumb,
    rule_of_thumb_table as rule_of_thumb_table,
    ThumbRow as ThumbRow,
)
from jaxdae.analysis.shulgin import (
    characteristic_matrix as characteristic_matrix,
    CharacteristicMatrix as CharacteristicMatrix,
    linearized_constraint as linearized_constraint,
    LinearizedConstraint as LinearizedConstraint,
)
from jaxdae.analysis.spectra import Spectrum as Spectrum, spectrum as spectrum
from jaxdae.analysis.steps import (
    modal_weight as modal_weight,
    step_limit as step_limit,
    StepLimit as StepLimit,
    weighted_norm as weighted_norm,
)
from jaxdae.analysis.steps_along import (
    Contraction as Contraction,
    contraction_along as contraction_along,
    step_limit_along as step_limit_along,
    two_stage_matrix as two_stage_matrix,
)
from jaxdae.stability.stability_functions import (
    amplification as amplification,
    step_matrix as step_matrix,
    tableau as tableau,
)

__all__ = _names.public(globals())
