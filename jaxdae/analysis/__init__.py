"""Analysis: equilibria, mobility, linearization, spectra, certificates, step limits, regulators."""

from jaxdae import names as _names
from jaxdae.analysis.controllability import (
    Controllability as Controllability,
    controllability as controllability,
)
from jaxdae.analysis.discrete_riccati import dlqr as dlqr
from jaxdae.analysis.equilibria import (
    Balance as Balance,
    Equilibrium as Equilibrium,
    equilibrium as equilibrium,
    EquilibriumError as EquilibriumError,
)
from jaxdae.analysis.kalman import KalmanFilter as KalmanFilter
from jaxdae.analysis.linearization import (
    Linearization as Linearization,
    linearize as linearize,
    Partition as Partition,
)
from jaxdae.analysis.lqg import LQG as LQG, lqg as lqg
from jaxdae.analysis.lyapunov import (
    BaumgarteCertificate as BaumgarteCertificate,
    LinearCertificate as LinearCertificate,
    lyapunov_certificate as lyapunov_certificate,
)
from jaxdae.analysis.mobility import (
    Dependence as Dependence,
    Mobility as Mobility,
    mobility as mobility,
)
from jaxdae.analysis.riccati import (
    lqr as lqr,
    Regulator as Regulator,
    RegulatorFeedback as RegulatorFeedback,
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
    perturbation_matrix as perturbation_matrix,
    step_limit as step_limit,
    step_limit_along as step_limit_along,
    StepLimit as StepLimit,
    two_stage_matrix as two_stage_matrix,
    weighted_norm as weighted_norm,
)
from jaxdae.stability.stability_functions import (
    amplification as amplification,
    step_matrix as step_matrix,
    tableau as tableau,
)

__all__ = _names.public(globals())
