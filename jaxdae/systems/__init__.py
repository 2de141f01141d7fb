"""Systems: the declaration, its derived dynamics, consistent states."""

from jaxdae import names as _names
from jaxdae.systems.base import (
    ForwardDynamics as ForwardDynamics,
    Labels as Labels,
    State as State,
    System as System,
)
from jaxdae.systems.checks import check_system as check_system
from jaxdae.systems.consistent import (
    ConsistencyError as ConsistencyError,
    consistent_state as consistent_state,
    Projection as Projection,
)
from jaxdae.systems.dae import DAE as DAE, Variables as Variables
from jaxdae.systems.dae_start import consistent_start as consistent_start
from jaxdae.systems.dynamics import (
    constraint_residuals as constraint_residuals,
    Dynamics as Dynamics,
    evaluate as evaluate,
    generalized_energy as generalized_energy,
    mass_and_jacobian as mass_and_jacobian,
    momentum as momentum,
    Power as Power,
    power_balance as power_balance,
    Violation as Violation,
)
from jaxdae.systems.points import circle as circle, Points as Points

__all__ = _names.public(globals())
