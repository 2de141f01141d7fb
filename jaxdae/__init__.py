"""Differentiable simulation of constrained mechanical systems in JAX.

Declare a mechanism:

    check_system          Check that every function of a system returns what it should
    ConsistencyError      A state does not satisfy the constraints and could not be brought to.
    consistent_state      The consistent state nearest to a given one in the mass metric.
    Dynamics              The equations of motion of a system at one state.
    evaluate              Mass matrix, forces and constraint terms of a system at one state.
    Labels                Names and units of coordinates, constraints, actuators and inputs.
    Points                A position of a system as a drawing, returned by `System.points(t, q)`.
    State                 A state of a system: coordinates, velocities, actuator state.
    System                A constrained mechanical system.

Declare differential-algebraic equations that are not mechanics:

    consistent_start      Values that satisfy differential-algebraic equations, next to given ones.
    DAE                   Differential-algebraic equations, declared by their functions.
    Variables             Values of differential and algebraic variables at one time.

Choose equations of motion:

    AugmentedLagrangian   Augmented Lagrangian iteration [Bayo1988].
    Baumgarte             Generalized Baumgarte stabilization.
    Hamiltonian           Hamilton's equations with multipliers and constraint stabilization.
    LinearStabilization   General linear constraint perturbation equations.
    Multipliers           Lagrange multipliers with constraint stabilization.
    NullSpace             Projection on a basis `N` of `ker J`.
    Penalty               Modified Lagrange equation (penalty form).
    QuasiVelocities       Gibbs-Appell equations in quasi-velocities.
    RealizingForces       The free system, with realizing forces in place of constraints.
    VelocityElimination   Shulgin's equations, and Voronets' for nonholonomic constraints.

Choose how they are solved:

    MinimumNormSolve      Regular mass matrix, dependent constraints allowed.
    SingularityRobust     Singular positions allowed.
    SingularMassSolve     Mass matrix that may be singular off `ker J`.

Choose steps, beside the solvers of diffrax:

    Projected             A solver whose steps end on the constraints.

Simulate:

    BackendError          The native backend was asked for and cannot serve this simulation.
    DAETrajectory         What `solve` gives.
    compile_run           Compile a run of `simulate` as a function of NumPy arrays.
    Event                 What happens in a run where a function of time and state crosses zero.
    export                Write a run of `simulate` as code for programs without Python.
    ExportedFiles         Files of an exported run.
    impact                An impact of two bodies, by Newton's law of restitution.
    SimulationError       A simulation ended before its end time.
    simulate              Simulate a constrained system.
    solve                 Solve differential-algebraic equations.
    stick_slip            Dry friction on the constraint functions, with sticking and sliding
    switching             Constraints that are released and caught again, as one run.
    Trajectory            A simulated motion.

Control:

    Held                  An input that jumps at given times and is held between them.
    Interpolated          An input that is interpolated between given times.
    mpc                   Model predictive control as a policy of `jaxdae.control.Sampled`
    optimize_trajectory   Inputs that take a system to a goal at least cost, by multiple shooting
    PD                    Proportional-derivative control.
    PID                   Proportional-integral-derivative control.
    Sampled               A digital controller: a policy that is asked at samples.
    ServoConstraint       Controller that enforces program constraints `f(t, q, v) = 0`.
    StateFeedback         Linear state feedback around an equilibrium or a trajectory.

Tune:

    tune                  Minimize an objective over the arrays of a pytree.
    certify               Whether the gradient of a function of runs may be followed, and why not.
    GradientCertificate   Whether a gradient may be followed, what is known of it, and why not.
    TuningResult          The best parameters seen by `tune`, and how they were found.

Identify:

    identify              Estimate parameters, and starts that are not known, from measured motions.

Analyze:

    dlqr                  The sampled regulator that minimizes `int (s^T Q s + u^T R u) dt`.
    equilibrium           The equilibrium near a guess: a state of rest in which all forces balance.
    linearize             Linear equations of the perturbed motion about an equilibrium.
    lqr                   The regulator that minimizes `int (s^T Q s + u^T R u) dt`.
    lyapunov_certificate  Certificate of constraint perturbation equations, of gains or a matrix.
    spectrum              Roots, and the verdict on the stability of the equilibrium.
    step_limit            The largest step of a method that contracts the violation.

Cite:

    citation              BibTeX entry of jaxdae, or of a reference that its docstrings cite.

Packages, loaded when they are first used:

    analysis              Analysis: equilibria, mobility, linearization, spectra, certificates.
    control               Control: feedback laws, servo-constraints, given integrals.
    environments          Environments: a system as reinforcement learning takes it.
    formulations          Formulations: equations of motion a solver can integrate.
    identification        Identification: parameters, their errors, and unknown starts.
    kernels               Kernels: functions of small arrays as scalar programs.
    models                Ready systems, each with its source and reference.
    multibody             Multibody: rigid bodies, joints and loops, declared or read from files.
    optimal_control       Optimal control: inputs that make a cost small.
    parallel              Batches over members, devices, processes and hosts, stored beyond memory.
    plotting              Pictures of trajectories and tuning runs, as matplotlib `Figure` objects.
    solvers               Solvers that diffrax does not ship, one for stiff equations too.
    stability             Stability of step methods: their stability functions.
    systems               Systems: the declaration, its derived dynamics, consistent states.
    tuning                Tuning of gains and parameters by gradients.

`jaxdae.__version__` is the version, and `jaxdae.citation(run)` the literature of a run.
"""

import lazy_loader

# The names stand in the stub beside this file, each once; what one needs is loaded when it is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
