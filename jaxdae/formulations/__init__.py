"""Formulations: equations of motion a solver can integrate, with their stabilization."""

from jaxdae import names as _names
from jaxdae.formulations.base import (
    AbstractFormulation as AbstractFormulation,
    Examination as Examination,
)
from jaxdae.formulations.hamiltonian import (
    CanonicalState as CanonicalState,
    Hamiltonian as Hamiltonian,
    hamiltonian as hamiltonian,
)
from jaxdae.formulations.imperfect_laws import (
    BacklashLaw as BacklashLaw,
    DelayedLaw as DelayedLaw,
)
from jaxdae.formulations.lagrange import (
    AugmentedLagrangian as AugmentedLagrangian,
    Multipliers as Multipliers,
    Penalty as Penalty,
)
from jaxdae.formulations.null_space import NullSpace as NullSpace
from jaxdae.formulations.quasi_velocities import (
    QuasiState as QuasiState,
    QuasiVelocities as QuasiVelocities,
)
from jaxdae.formulations.realizing import (
    AbstractLaw as AbstractLaw,
    AbstractMemoryLaw as AbstractMemoryLaw,
    AbstractSetValuedLaw as AbstractSetValuedLaw,
    LaggedLaw as LaggedLaw,
    LinearLaw as LinearLaw,
    LuGreLaw as LuGreLaw,
    RealizedState as RealizedState,
    RealizingForces as RealizingForces,
    SaturatedLaw as SaturatedLaw,
    SignLaw as SignLaw,
    TanhLaw as TanhLaw,
)
from jaxdae.formulations.realizing_bounds import (
    deviation_power as deviation_power,
    linear_decay_bound as linear_decay_bound,
    linear_decay_rate as linear_decay_rate,
    linear_threshold as linear_threshold,
    reaching_time_bound as reaching_time_bound,
    realizing_constants as realizing_constants,
    RealizingConstants as RealizingConstants,
)
from jaxdae.formulations.sparse_solve import SparseSolve as SparseSolve
from jaxdae.formulations.stabilization import (
    AbstractStabilization as AbstractStabilization,
    Baumgarte as Baumgarte,
    LinearStabilization as LinearStabilization,
)
from jaxdae.formulations.velocity_elimination import (
    choose_independent as choose_independent,
    EliminatedState as EliminatedState,
    VelocityElimination as VelocityElimination,
)
from jaxdae.linalg.saddle_point import (
    AutomaticSolve as AutomaticSolve,
    Capabilities as Capabilities,
    FullRankSolve as FullRankSolve,
    MinimumNormSolve as MinimumNormSolve,
    SingularityRobust as SingularityRobust,
    SingularMassSolve as SingularMassSolve,
)

__all__ = _names.public(globals())
