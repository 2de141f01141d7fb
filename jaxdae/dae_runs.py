"""Solving differential-algebraic equations: arguments checked and completed, a run, its failure."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known, EXAMINATION, is_eager
from jaxdae.compiled import jit
from jaxdae.diagnosis import events as event_findings, observation, preconditions
from jaxdae.diagnosis.dae_failure import describe_dae_failure
from jaxdae.diagnosis.failure import SimulationError
from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.steps import unsolved_steps
from jaxdae.events.declaration import check_events, DAE_NAMES, Event
from jaxdae.events.records import REASONS
from jaxdae.linalg.lu import MOST_PIVOTED
from jaxdae.memory import kinds, Memory
from jaxdae.results.dae_trajectory import DAETrajectory
from jaxdae.runs import meter_of, run_direction, run_times, with_backend, with_checked_times
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.dae_problem import DAEProblem
from jaxdae.simulation.dae_run import run_dae
from jaxdae.simulation.invalid import invalidated
from jaxdae.simulation.problem import MAX_EVENTS, MAX_STEPS, Method, START_TOLERANCE
from jaxdae.simulation.saving import is_plain
from jaxdae.solvers.constrained_term import AbstractConstrainedTerm
from jaxdae.solvers.grid import with_known_ends
from jaxdae.solvers.radau import RadauIIA
from jaxdae.solvers.rodas5p import Rodas5P
from jaxdae.systems.calls import check_instance, described
from jaxdae.systems.checks import check_tolerance
from jaxdae.systems.dae import DAE, Variables
from jaxdae.systems.dae_checks import as_variables, check_shapes, index_of, is_of_index
from jaxdae.systems.dae_equations import DAEEquations, dtype_of
from jaxdae.systems.dae_start import check_start, is_near
from jaxdae.systems.precision import in_dtype

_SOLVER, _ADJOINT = RadauIIA(), diffrax.RecursiveCheckpointAdjoint()
_EVERY_STEP = diffrax.SaveAt(t0=True, steps=True)
_HIGHER = (
    "the index of the equations is higher than solve takes, or their mass matrix is singular, at "
    "the start; solve them outside of the transformation to see which."
)
_OFF = (
    "the start is not consistent to start_tolerance; begin at jaxdae.consistent_start(dae, y, z)."
)
# Declarations whose shapes were checked: checking traces every function.
_CHECKED = Memory(256)


def solve(
    dae: DAE,
    y,
    z=None,
    *,
    t0=0.0,
    t1,
    dt=None,
    solver: diffrax.AbstractSolver | str | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    backend: Backend = "auto",
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
    start_tolerance: float | None = START_TOLERANCE,
    max_steps: int = MAX_STEPS,
    events: Sequence[Event] | Event = (),
    max_events: int = MAX_EVENTS,
) -> DAETrajectory:
    """Solve differential-algebraic equations that are declared as `jaxdae.DAE`.

    The index is found at the start, by the ranks of derivatives, and equations of a higher one are
    refused; inside of a JAX transformation that, and the start, are checked when the program runs.
    Rows between steps, too, satisfy the algebraic equations, and `z` is computed from `y`: with
    steps `h` of one length both are of order `h^5`, at index 1 and 2; between steps `h^4`.
    Arguments, precision, compiling and derivatives are as in `jaxdae.simulate`.

    Args:
        dae: the declaration.
        y: start, differential variables in any pytree; of a `residual` all variables.
        z: start, algebraic variables, `None` where there are none; of a `residual` the rates
            `dy/dt`, zero by default. See `consistent_start`.
        t0: start time [s].
        t1: end time [s], before `t0` for a run backward in time.
        dt: step [s]. With it, and without a `stepsize_controller`, the time is divided into equal
            steps, none longer than `dt`.
        solver: `jaxdae.solvers.RadauIIA()`, which is the default, or, for semi-explicit equations
            of index 1, `Rodas5P()`, whose steps need no iteration; `"auto"` takes the latter for up
            to 16 variables of such equations, else the former. `DAETrajectory.why_solver` says
            which, and why.
        stepsize_controller: any of diffrax's; by default `PIDController` with `rtol = atol = 1e-8`
            in float64, `1e-5` in float32. `atol` is one number for all variables: choose units
            in which they are of comparable size. Times at which `u` jumps are given by
            `diffrax.ClipStepSizeController(diffrax.PIDController(…), jump_ts=…)`.
        saveat: `diffrax.SaveAt` of times, steps, both ends, or dense output; by default every step
            of a fixed-step run, else 201 equally spaced times.
        controller: `u = controller(t, y, z)`, with `None` for `z` where the declaration is a
            `residual`; any callable, an `eqx.Module` if it has weights.
        adjoint: any of diffrax's but `BacksolveAdjoint`, for the plain backend; the native one has
            derivatives in both modes to every order.
        backend: `"plain"` for diffrax compiled by XLA, `"native"` for a kernel of machine code, up
            to 16 variables; `"auto"` takes the native one where it can serve.
        progress: `True` for a progress bar, or one of diffrax's progress meters.
        throw: raise an error when the run fails. Otherwise the failure is a value: `success` is
            false, unreached rows are NaN; under `vmap` for each batch member.
        start_tolerance: largest distance of the start from satisfying the equations, to first order
            in the variables, relative to `1 + max |variables|`; `None` allows any.
        max_steps: largest number of steps; with events, of each part between two of them.
        events: what happens where functions of the variables cross zero, `jaxdae.Event`: the run
            ends there, or goes on from other variables. What happened is in `DAETrajectory.events`.
            A saved time at which an event happens has the variables behind it.
        max_events: largest number of events; a run in which there are more fails.

    Returns:
        `DAETrajectory`, with `ts`, `y`, `z` or `y_dot`, `success`, `violation`, `names`, `events`.

    Warns:
        RuntimeWarning: of events at the same time, that graze, or that steps may not have seen.

    Raises:
        SimulationError: when the run fails and `throw` is true: when, why, and what to try.
        ConsistencyError: for a start that does not satisfy the equations: which, and by how much.
        ValueError: before any work, for equations that are not square, of a higher index than 2 (a
            `residual`: 1), or arguments that do not fit.
        TypeError: before any work, for an argument of the wrong kind.
        BackendError: when the native backend is asked for and cannot serve.
    """
    if EXAMINATION.value is not None:
        throw, progress, start_tolerance = False, False, None
    problem, method = prepare(
        dae, Variables(y, z), t0=t0, t1=t1, dt=dt, solver=solver,
        stepsize_controller=stepsize_controller, saveat=saveat, controller=controller,
        adjoint=adjoint, backend=backend, progress=progress, throw=throw,
        start_tolerance=start_tolerance, max_steps=max_steps, events=events, max_events=max_events,
    )  # fmt: skip
    if throw and not is_eager(problem):
        return _raising(problem, method, kinds(problem.parts))
    found = solved(problem, method)
    if EXAMINATION.value is not None:
        observation.hand_over(problem, method, found)
        return found
    if isinstance(solver, str):
        # Beside the fields, so that no program sees it.
        equations = DAEEquations(problem.dae, problem.controller)
        _, why = automatic_solver(equations, problem.times.start, problem.state)
        object.__setattr__(found, "why", why)
    if not (throw and are_known(found.result_code)):
        return found
    failure, said = findings_of(problem, method, found)
    if failure is not None:
        raise SimulationError(failure)
    for one in said:
        warnings.warn(one.message, RuntimeWarning, stacklevel=2)
    return found


def findings_of(
    problem: DAEProblem, method: Method, found: DAETrajectory
) -> tuple[str | None, tuple[Finding, ...]]:
    """Why a run failed, in words, or `None` and what may be wrong with it."""
    failed = not bool(found.success)
    unsolved = unsolved_steps(found.stats, method.solver, failed=failed)
    if failed:
        message = describe_dae_failure(found)
        return (message if unsolved is None else f"{message} {unsolved.message}"), ()
    said = [] if unsolved is None else [unsolved]
    if found.events is not None:
        reached = np.isfinite(found.ts)
        rows = jax.tree.map(lambda x: x[reached], found.saved)
        pieces = event_findings.segments(found.ts[reached], rows, None, found.events)
        said += event_findings.findings(problem, found, pieces)
    return None, tuple(said)


def prepare(
    dae: DAE, variables: Variables, *, t0, t1, dt, solver, stepsize_controller, saveat, controller,
    adjoint, backend, progress, throw, start_tolerance, max_steps, events=(),
    max_events=MAX_EVENTS,
) -> tuple[DAEProblem, Method]:  # fmt: skip
    """Check the arguments of `solve`, complete them by its defaults, and choose the backend.

    Raises:
        ValueError: as `solve` does, and its other errors before any work.
    """
    given = as_variables(dae, *variables)
    asked = {"adjoint": adjoint, "backend": backend, "stepsize_controller": stepsize_controller}
    asked |= observation.as_observed({**asked, "dt": dt}, dtype_of(given))
    adjoint, backend, stepsize_controller = (
        asked[x] for x in ("adjoint", "backend", "stepsize_controller")
    )
    if isinstance(solver, str) and solver != "auto":
        raise ValueError(
            f"solver is {solver!r}; give 'auto', or a solver such as jaxdae.solvers.RadauIIA()."
        )
    automatic = isinstance(solver, str)
    solver = _SOLVER if solver is None or automatic else solver
    _check_arguments(solver, stepsize_controller, saveat, controller, adjoint, progress, throw, dt)
    preconditions.check_times(t0, t1, dt, stepsize_controller, saveat, max_steps)
    check_tolerance("start_tolerance", start_tolerance)
    dtype = dtype_of(given)
    dae, controller = in_dtype((dae, controller), dtype)
    equations = DAEEquations(dae, controller)
    times = run_times(t0, t1, dt, stepsize_controller, saveat, dtype)
    _check_once(equations, times.start, given)
    if automatic:
        solver, _ = automatic_solver(equations, times.start, given)
    if type(solver) is Rodas5P:
        _check_linearly_implicit(equations, times.start, given)
    if is_eager(equations, times.start, given):
        index = index_of(equations, times.start, given)
        check_start(equations, index, times.start, given, start_tolerance)
    else:
        given = _checked(equations, times.start, given, start_tolerance, throw=bool(throw))
    names = ("t", "y", "y_dot") if equations.implicit else DAE_NAMES
    events = in_dtype(check_events(events, max_events, t0, given, names), dtype)
    fixed = times.grid is not None
    if events:
        preconditions.check_with_events(events, saveat, progress, fixed=fixed)
    problem = DAEProblem(dae, controller, given, times, events=events)
    method = Method(
        solver,
        None if fixed else with_known_ends(stepsize_controller, times),
        _EVERY_STEP if saveat is None and fixed else saveat,
        _ADJOINT if adjoint is None else adjoint,
        meter_of(progress),
        len(times.grid) - 1 if fixed else int(max_steps),
        work=False,
        direction=run_direction(t0, t1, stepsize_controller),
        start_is_known=True,
        times_are_known=are_known(t0, t1, dt, saveat),
        max_events=max_events,
        reset_tolerance=start_tolerance,
    )
    problem, method = with_checked_times(problem, method, bool(throw))
    return with_backend(problem, method, backend)


def automatic_solver(
    equations: DAEEquations, t, variables: Variables
) -> tuple[diffrax.AbstractSolver, str]:
    """The solver that `solve(solver="auto")` takes, and why, in words."""
    if equations.implicit:
        return RadauIIA(), "RadauIIA, as the equations are a residual"
    if equations.index(t, variables) == 2:
        return RadauIIA(), "RadauIIA, as the constraints do not depend on z: they are of index 2"
    count = sum(x.size for x in jax.tree.leaves(variables))
    if count > MOST_PIVOTED:
        return RadauIIA(), f"RadauIIA, as {count} variables are more than {MOST_PIVOTED}"
    return Rodas5P(), (
        f"Rodas5P, as the equations are semi-explicit, of index 1 at most, in {count} variables: "
        "its steps need no iteration"
    )


@jit(options=lambda run: run.made_by.options)
def solved(problem: DAEProblem, method: Method) -> DAETrajectory:
    """A run and its result as one program for all of one kind; pure, a failure is a value.

    Args:
        problem: what is solved.
        method: how.
    """
    return DAETrajectory.of(problem, run_dae(problem, method))


@eqx.filter_jit
def _raising(problem: DAEProblem, method: Method, declared) -> DAETrajectory:
    """The same inside a transformation, where an error is raised when the program runs."""
    del declared  # programs of 1, 1.0 and True are different ones
    found = DAETrajectory.of(problem, run_dae(problem, method))
    if found.events is not None:
        for code, reason in REASONS.items():
            found = eqx.error_if(found, found.events.ending == code, f"{reason}.")
    return found.result_code.error_if(found, ~found.success)


def _check_arguments(
    solver, stepsize_controller, saveat, controller, adjoint, progress, throw, dt
) -> None:
    """Arguments of the right kind that go together."""
    for name, value, kind, example in (
        ("solver", solver, diffrax.AbstractSolver, "jaxdae.solvers.RadauIIA()"),
        ("stepsize_controller", stepsize_controller, diffrax.AbstractStepSizeController | None,
         "diffrax.PIDController(rtol=1e-6, atol=1e-6)"),
        ("adjoint", adjoint, diffrax.AbstractAdjoint | None, "diffrax.ForwardMode()"),
        ("saveat", saveat, diffrax.SaveAt | None, "diffrax.SaveAt(ts=...)"),
        ("progress", progress, bool | diffrax.AbstractProgressMeter, "True or False"),
        ("throw", throw, bool | np.bool_, "True or False"),
    ):  # fmt: skip
        check_instance(name, value, kind, example)
    constrained = getattr(solver, "term_structure", None) is AbstractConstrainedTerm
    if not (constrained or type(solver) is Rodas5P):
        raise ValueError(
            f"{type(solver).__name__} does not solve differential-algebraic equations; leave "
            "solver out, or give jaxdae.solvers.RadauIIA(), or Rodas5P() at index 1."
        )
    if isinstance(adjoint, diffrax.BacksolveAdjoint):
        raise TypeError(
            "BacksolveAdjoint cannot give the saved rows of a trajectory; use "
            "diffrax.RecursiveCheckpointAdjoint() for reverse mode, diffrax.ForwardMode() for "
            "forward mode."
        )
    if controller is not None and (isinstance(controller, type) or not callable(controller)):
        raise TypeError(
            f"controller is {described(controller)}; give a callable u = controller(t, y, z)."
        )
    preconditions.check_closure("controller", controller)
    preconditions.check_tolerances(stepsize_controller)
    if isinstance(stepsize_controller, diffrax.ConstantStepSize) and dt is None:
        raise ValueError("ConstantStepSize needs the step: give dt.")
    dense = saveat is not None and saveat.dense and saveat.subs is None
    if not (dense or is_plain(saveat)):
        raise ValueError(
            "solve saves variables as they are: leave fn and subs out of SaveAt, and compute what "
            "is wanted from y and z of the trajectory."
        )


def _checked(
    equations: DAEEquations, t, given: Variables, tolerance: float | None, *, throw: bool
) -> Variables:
    """A start whose numbers, or those of the equations, are known only when the program runs.

    With `throw` what does not fit raises an error then. Otherwise it is the failure of the members
    of a batch that it belongs to: their start is NaN.
    """
    t = jnp.asarray(t, dtype_of(given))
    index = equations.index(t, given)
    right = is_of_index(equations, index, t, given)
    near = is_near(equations, index, t, given, tolerance)
    if throw:
        given = eqx.error_if(given, ~right, _HIGHER)
        return eqx.error_if(given, ~near, _OFF)
    return invalidated(given, ~(right & near))


def _check_linearly_implicit(equations: DAEEquations, t, given: Variables) -> None:
    """Refuse what a method without iterations does not solve, which the structure tells."""
    name = type(equations.dae).__name__
    if equations.implicit:
        raise ValueError(
            f"Rodas5P is for semi-explicit equations, and {name} is declared by a residual: "
            "leave solver out for RadauIIA(), or declare rate and constraints."
        )
    if equations.index(t, given) == 2:
        raise ValueError(
            f"Rodas5P is for equations of index 1, and the constraints of {name} do not depend on "
            "z: they are of index 2. Leave solver out for RadauIIA()."
        )


def _check_once(equations: DAEEquations, t, given) -> None:
    """Shapes of everything declared, once for each declaration."""
    leaves, structure = jax.tree.flatten((equations, given))
    key = (structure, *(preconditions.signature(x) for x in leaves))
    shapes = partial(check_shapes, equations, jnp.asarray(t, dtype_of(given)), given)
    _CHECKED.get(key, equations, shapes)
