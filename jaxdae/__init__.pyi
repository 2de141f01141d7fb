"""Differentiable simulation of constrained mechanical systems in JAX."""

from . import (
    analysis as analysis,
    control as control,
    environments as environments,
    formulations as formulations,
    identification as identification,
    kernels as kernels,
    models as models,
    multibody as multibody,
    optimal_control as optimal_control,
    parallel as parallel,
    plotting as plotting,
    solvers as solvers,
    stability as stability,
    systems as systems,
    tuning as tuning,
)
from .analysis import (
    dlqr as dlqr,
    equilibrium as equilibrium,
    linearize as linearize,
    lqr as lqr,
    lyapunov_certificate as lyapunov_certificate,
    spectrum as spectrum,
    step_limit as step_limit,
)
from .control import (
    Held as Held,
    Interpolated as Interpolated,
    PD as PD,
    PID as PID,
    Sampled as Sampled,
    ServoConstraint as ServoConstraint,
    StateFeedback as StateFeedback,
)
from .dae_runs import solve as solve
from .diagnosis.failure import SimulationError as SimulationError
from .events.declaration import Event as Event
from .events.impact import impact as impact
from .events.stick_slip import stick_slip as stick_slip
from .events.switching import switching as switching
from .exports.compile import compile_run as compile_run
from .exports.export import export as export, ExportedFiles as ExportedFiles
from .formulations import (
    AugmentedLagrangian as AugmentedLagrangian,
    Baumgarte as Baumgarte,
    Hamiltonian as Hamiltonian,
    LinearStabilization as LinearStabilization,
    Multipliers as Multipliers,
    NullSpace as NullSpace,
    Penalty as Penalty,
    QuasiVelocities as QuasiVelocities,
    RealizingForces as RealizingForces,
    VelocityElimination as VelocityElimination,
)
from .identification import identify as identify
from .linalg.saddle_point import (
    MinimumNormSolve as MinimumNormSolve,
    SingularityRobust as SingularityRobust,
    SingularMassSolve as SingularMassSolve,
)
from .optimal_control import mpc as mpc, optimize_trajectory as optimize_trajectory
from .references import citation as citation
from .results.dae_trajectory import DAETrajectory as DAETrajectory
from .results.trajectory import Trajectory as Trajectory
from .runs import simulate as simulate
from .simulation.backends import BackendError as BackendError
from .solvers import Projected as Projected
from .systems import (
    check_system as check_system,
    ConsistencyError as ConsistencyError,
    consistent_start as consistent_start,
    consistent_state as consistent_state,
    DAE as DAE,
    Dynamics as Dynamics,
    evaluate as evaluate,
    Labels as Labels,
    Points as Points,
    State as State,
    System as System,
    Variables as Variables,
)
from .tuning import (
    certify as certify,
    GradientCertificate as GradientCertificate,
    tune as tune,
    TuningResult as TuningResult,
)
from .version import __version__ as __version__
