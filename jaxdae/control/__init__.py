"""Control: feedback laws, servo-constraints, given integrals."""

from jaxdae import names as _names
from jaxdae.control.base import (
    AbstractController as AbstractController,
    AbstractDynamicController as AbstractDynamicController,
    AbstractHybridController as AbstractHybridController,
    AbstractSampledController as AbstractSampledController,
    attach as attach,
    ControlledSystem as ControlledSystem,
    ControllerCapabilities as ControllerCapabilities,
    ControllerOutput as ControllerOutput,
)
from jaxdae.control.cascade import Cascade as Cascade
from jaxdae.control.composition import Parallel as Parallel, Series as Series
from jaxdae.control.digital_filter import DigitalFilter as DigitalFilter
from jaxdae.control.digital_pid import DigitalPID as DigitalPID
from jaxdae.control.feedback import (
    NeuralFeedback as NeuralFeedback,
    PD as PD,
    PID as PID,
    StateFeedback as StateFeedback,
)
from jaxdae.control.first_integrals import (
    PartialIntegrals as PartialIntegrals,
    right_inverse as right_inverse,
    StabilizedIntegrals as StabilizedIntegrals,
)
from jaxdae.control.inputs import Held as Held, Interpolated as Interpolated
from jaxdae.control.inverse_dynamics import (
    Feedforward as Feedforward,
    inverse_dynamics as inverse_dynamics,
    InverseDynamics as InverseDynamics,
    motion_derivatives as motion_derivatives,
    MotionReference as MotionReference,
)
from jaxdae.control.limits import (
    Quantizer as Quantizer,
    RateLimit as RateLimit,
    Saturation as Saturation,
)
from jaxdae.control.plant import Decoupling as Decoupling, Plant as Plant
from jaxdae.control.recorded import Recorded as Recorded
from jaxdae.control.references import MinimumJerk as MinimumJerk
from jaxdae.control.relative_degree import (
    relative_degree as relative_degree,
    RelativeDegree as RelativeDegree,
)
from jaxdae.control.sampled import Sampled as Sampled
from jaxdae.control.servo import ServoConstraint as ServoConstraint, Singularity as Singularity
from jaxdae.control.stabilizers import (
    AbstractServoStabilizer as AbstractServoStabilizer,
    companion_matrix as companion_matrix,
    CoupledGains as CoupledGains,
    HurwitzGains as HurwitzGains,
)

__all__ = _names.public(globals())
