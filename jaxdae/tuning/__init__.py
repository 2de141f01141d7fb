"""Tuning of gains and parameters by gradients: parametrizations, objectives, the loop."""

from jaxdae import names as _names
from jaxdae.analysis.stability_certificate import StabilityCertificate as StabilityCertificate
from jaxdae.certification.certificate import (
    GradientCertificate as GradientCertificate,
    GradientCheck as GradientCheck,
)
from jaxdae.storage.checkpoints import CheckpointError as CheckpointError
from jaxdae.systems.random_states import (
    perturbed_states as perturbed_states,
    random_starts as random_starts,
)
from jaxdae.tuning.averaging import parameter_average as parameter_average
from jaxdae.tuning.certificate import (
    Certificate as Certificate,
    certificate as certificate,
)
from jaxdae.tuning.certify import certify as certify
from jaxdae.tuning.conditions import (
    Conditions as Conditions,
    Members as Members,
)
from jaxdae.tuning.constraints import Equality as Equality, Inequality as Inequality
from jaxdae.tuning.costs import (
    AbstractCost as AbstractCost,
    ControlEffort as ControlEffort,
    EnergyDrift as EnergyDrift,
    IntegratedViolation as IntegratedViolation,
    TrackingError as TrackingError,
    WeightedSum as WeightedSum,
)
from jaxdae.tuning.descent import default_optimizer as default_optimizer
from jaxdae.tuning.growth import (
    gradient_growth as gradient_growth,
    GradientGrowth as GradientGrowth,
)
from jaxdae.tuning.loop import tune as tune, TuningStep as TuningStep
from jaxdae.tuning.objectives import (
    Logarithm as Logarithm,
    SimulationObjective as SimulationObjective,
)
from jaxdae.tuning.optimizers import OPTIMIZERS as OPTIMIZERS
from jaxdae.tuning.parametrizations import (
    AbstractParametrization as AbstractParametrization,
    CrankRocker as CrankRocker,
    HurwitzPolynomial as HurwitzPolynomial,
    Interval as Interval,
    is_parametrization as is_parametrization,
    Positive as Positive,
    PositiveDefinite as PositiveDefinite,
    resolve as resolve,
    trainable as trainable,
)
from jaxdae.tuning.problem import LeastSquares as LeastSquares
from jaxdae.tuning.result import TuningHistory as TuningHistory, TuningResult as TuningResult
from jaxdae.tuning.risk import CVaR as CVaR
from jaxdae.tuning.stochastic import Stochastic as Stochastic

__all__ = _names.public(globals())
