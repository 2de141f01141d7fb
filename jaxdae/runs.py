"""Simulation: what a user asks for, checked and completed; a run; what there is to say of it."""

import dataclasses
import operator
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known, EXAMINATION, is_eager, is_outside
from jaxdae.compiled import jit
from jaxdae.control.base import (
    AbstractDynamicController,
    clocks_of,
    closed_loop,
    ControllerOutput,
    hybrid_part,
)
from jaxdae.diagnosis import observation, preconditions, starts
from jaxdae.diagnosis.backward import start_warning
from jaxdae.diagnosis.diagnose import diagnose, says_more
from jaxdae.diagnosis.failure import failures_of_steps, SimulationError
from jaxdae.diagnosis.findings import Findings
from jaxdae.diagnosis.starts import DEPENDENT_START, FAILED_START, Start
from jaxdae.events.declaration import check_events, Event
from jaxdae.events.records import REASONS
from jaxdae.formulations import AbstractFormulation
from jaxdae.linalg.saddle_point import AutomaticSolve, SingularityRobust
from jaxdae.memory import kinds, Memory, settings as traced_settings
from jaxdae.results.trajectory import Trajectory
from jaxdae.simulation import backends
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.invalid import invalidated
from jaxdae.simulation.plain import step_control
from jaxdae.simulation.problem import (
    DEFAULT_TIMES,
    MAX_EVENTS,
    MAX_STEPS,
    Method,
    Problem,
    START_TOLERANCE,
    structure_of,
    Times,
)
from jaxdae.simulation.run import backend_of, run
from jaxdae.simulation.saving import asked_times, is_end
from jaxdae.simulation.split import check_split
from jaxdae.solvers import sampled as sampling
from jaxdae.solvers.clocks import step_ends as clocks_and_steps
from jaxdae.solvers.constrained_term import splits
from jaxdae.solvers.grid import Grid, known_ends, with_known_ends
from jaxdae.solvers.projected import parts_of, Projected
from jaxdae.systems import State, System
from jaxdae.systems.kinematics import refuse_rates
from jaxdae.systems.precision import in_dtype

# What is taken where nothing is given; made once, modules take longer to make than to use.
_SOLVER, _ADJOINT = diffrax.Dopri8(), diffrax.RecursiveCheckpointAdjoint()
_NO_METER, _EVERY_STEP = diffrax.NoProgressMeter(), diffrax.SaveAt(t0=True, steps=True)


def simulate(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    t0=0.0,
    t1,
    dt=None,
    solver: diffrax.AbstractSolver | str | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | AbstractDynamicController | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    backend: Backend = "auto",
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
    work: bool = False,
    start_tolerance: float | None = START_TOLERANCE,
    max_steps: int = MAX_STEPS,
    events: Sequence[Event] | Event = (),
    max_events: int = MAX_EVENTS,
) -> Trajectory:
    """Simulate a constrained system.

    The precision is that of `state`. Called again with other numbers of the same kind and shape
    (parameters, gains, start, times with the same number of steps or saved times) it compiles
    nothing. Integers that count something, settings of solver and step controller, and
    functions defined anew are compiled anew: write controllers as `eqx.Module`, or define them
    once.

    Args:
        system: what moves.
        formulation: how its constraints are enforced, for example `Multipliers(Baumgarte(…))`.
        state: start, `State(q, v, w)`; see `consistent_state`.
        t0: start time [s].
        t1: end time [s], before `t0` for a run backward in time. Stabilizations act in the
            direction of integration, with the gains of a run forward: residuals decay toward
            `t1`. What damps the motion itself lets deviations grow backward in time
            (`Trajectory.backward_growth`).
        dt: step [s]. With it, and without a `stepsize_controller`, the time is divided into equal
            steps, none longer than `dt`.
        solver: any diffrax solver of ordinary differential equations, or `jaxdae.solvers.RK4`;
            by default `diffrax.Dopri8()`. `jaxdae.solvers.Projected(solver)` takes every step, and
            every saved state, onto the constraints. `"auto"` takes `diffrax.Dopri8()`, or
            `Rodas5P()` for stiff equations: where the fastest root at the start asks the former for
            more than thousand steps, and a trial of the latter shows that its steps cost a third of
            these at most; `Projected(Rodas5P())` for constraints that nothing stabilizes. A run by
            it that a singular position stops, or leaves in doubt, is made again with
            `solve=SingularityRobust()` where the formulation leaves its solve open. Inside
            `jax.jit` and other transformations, where no numbers are known, it is
            `diffrax.Dopri8()`. `Trajectory.solver` and `why_solver` say what was taken and why.
        stepsize_controller: any of diffrax's; by default `PIDController` with `rtol = atol = 1e-8`
            in float64, `1e-5` in float32. Times at which the input jumps, or a step should end, are
            given by `diffrax.ClipStepSizeController(diffrax.PIDController(…), jump_ts=…)` or
            `step_ts=…`: a step then ends there instead of being rejected again and again.
        saveat: any `diffrax.SaveAt`; by default every step of a fixed-step run (when `t0`, `t1`
            and `dt` are plain numbers), else 201 equally spaced times. A `fn(t, y, args)` in it
            receives the `State` as `y`. Times between steps are interpolated to the solver's order
            of dense output, which may be below that of its steps (about 6 of `diffrax.Dopri8`, 4 of
            `RadauIIA`; `step_ts=…`, above, ends steps there), without projection on the constraints
            unless the solver is `Projected` or enforces them itself. `SaveAt(steps=True)` of an
            adaptive run has `max_steps` rows, most of them unused: give a smaller `max_steps`.
        controller: `u = controller(t, q, v, w)`; any callable, an `eqx.Module` if it has weights.
            An `AbstractDynamicController` keeps its internal state behind the actuators' in `w`.
        adjoint: any of diffrax's but `BacksolveAdjoint`; by default `RecursiveCheckpointAdjoint()`
            (reverse mode, many parameters). Give `diffrax.ForwardMode()` for forward mode (few), or
            `diffrax.DirectAdjoint()` for both and for second derivatives. It decides what the plain
            backend can do; the native one has both modes to every order whatever is given. Its
            gradients of adaptive runs keep their steps in memory, and are NaN where `max_steps` is
            too large for it.
        backend: `"plain"` for diffrax compiled by XLA; `"native"` for a kernel of machine code that
            integrates all of the run: on processors one lane of a vector register for each batch
            member, on GPUs by NVIDIA one thread. `"auto"` takes the native one where it can serve.
            It needs llvmlite, which loads here, an explicit Runge-Kutta method, a Kvaerno method or
            Rodas5P (up to some thirty states), fixed steps or diffrax's `PIDController`, with known
            ends of steps or without, and saved states; on a GPU compute capability 7.0 and a driver
            of CUDA 12.0 at least, and no toolkit. `Trajectory.backend` says what was used and why.
            Both give the same numbers to round-off. The plain program makes the derivatives of
            native runs by times, and others that no kernel has; `"native"` refuses them.
        progress: `True` for a progress bar, or one of diffrax's progress meters.
        throw: raise an error when the run fails: a `SimulationError` that says where and why, or,
            inside a JAX transformation, the runtime error of the compiled program. Otherwise the
            failure is a value: `success` is false, unreached rows are marked; under `vmap` for each
            batch member.
        work: integrate also the work of forces, dissipation and constraints (`Trajectory.work`).
        start_tolerance: largest constraint residual of the start, relative to `1 + max |q|, |v|`;
            `None` allows any (stabilization from a start off the constraints).
        max_steps: largest number of steps; with events, of each part between two of them.
        events: what happens where functions of the state cross zero, `jaxdae.Event` and
            `jaxdae.impact`: the run ends there, or goes on from another state. What happened is
            `Trajectory.events`. A saved time at which an event happens has the state behind it.
            Two crossings of one function within a step that undo each other are not seen.
        max_events: largest number of events; a run in which there are more fails. Derivatives in
            reverse mode, and members of a batch, take time and memory for so many.

    Returns:
        `Trajectory`.

    Warns:
        RuntimeWarning: when fixed steps are beyond the step limit of the gains (see
            `jaxdae.step_limit`), or a run that reached its end came close to where the formulation
            or the controller ends, had constraints that cannot all be satisfied, passed
            near-singular positions, took thousands of steps that stability and not accuracy kept
            short, or has an energy balance that is off by more than its tolerance explains;
            once where this machine keeps `"auto"` from the native backend: no llvmlite, a driver
            or GPU that is too old.

    Raises:
        SimulationError: when the run fails and `throw` is true: what failed, when, the state of the
            constraints there, and what to try.
        ValueError: before any work, for shapes, gains, a start or a combination that do not fit.
        TypeError: before any work, for an argument of the wrong kind.
        BackendError: when the native backend is asked for and cannot serve.
    """
    settings = Given(
        t0, t1, dt, solver, stepsize_controller, saveat, controller, adjoint, backend, progress,
        throw, work, start_tolerance, max_steps, events, max_events,
    )  # fmt: skip
    if EXAMINATION.value is not None:
        return _observed(system, formulation, state, settings)
    ready = _ready(system, formulation, state, settings)
    trajectory = ready.run()
    findings = _examined(ready, trajectory, settings)
    if findings is not None and isinstance(settings.solver, str):
        ready, trajectory, findings = _past_singular_positions(
            system, formulation, state, settings, (ready, trajectory, findings)
        )
    for text in ready.warnings:
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    object.__setattr__(trajectory, "why", ready.why)  # also of a run that was made again
    if findings is not None and (throw or bool(trajectory.success)):
        _announce(findings, trajectory, rows=bool(throw))
    return trajectory


def _observed(system, formulation, state, settings: "Given") -> Trajectory:
    """A run as an examination asks for it, which says of it what there is to say."""
    asked = observation.as_observed(settings._asdict(), jnp.result_type(float, state.q))
    ready = _ready(system, formulation, state, settings._replace(**asked))
    trajectory = ready.run()
    given = ready.problem, ready.method, trajectory, ready.warnings
    observation.hand_over(*given, settings.start_tolerance)
    return trajectory


def _examined(ready: "_Ready", trajectory: Trajectory, settings: "Given") -> Findings | None:
    """What is found of a run; `None` where nothing is looked for."""
    # Beside the fields, so that no program sees it: of other numbers it is another text.
    object.__setattr__(trajectory, "why", ready.why)
    chosen = isinstance(settings.solver, str)
    asked, rows = ready.announced or chosen, bool(settings.throw) or chosen
    steps = ready.method.stepsize_controller
    if not (asked and are_known(ready.problem, steps, trajectory.result_code)):
        return None
    if not (rows or bool(trajectory.success)):
        return None
    return diagnose(ready.problem, ready.method, trajectory, rows=rows)


def _past_singular_positions(system, formulation, state, settings: "Given", first):
    """A run by an automatic choice, made again for singular positions where these were in its way.

    Args:
        system: as it was given.
        formulation: as it was given.
        state: as it was given.
        settings: as they were given.
        first: the run made ready, its result, and what was found of it.
    """
    ready, _, findings = first
    said = (findings.failure, *findings.warnings)
    found = next((x for x in said if x is not None and x.passable), None)
    solve = getattr(formulation, "solve", None)
    if found is None or not isinstance(solve, AutomaticSolve):
        return first
    robust = dataclasses.replace(formulation, solve=SingularityRobust())
    again = _ready(system, robust, state, settings)
    trajectory = again.run()
    now = _examined(again, trajectory, settings)
    if now is None or now.failure is not None:
        return first
    what = "stopped at" if findings.failure is not None else "passed"
    why = (
        f"{ready.why}; made again by SingularityRobust(), as the run {what} a near-singular "
        f"position at t = {found.time:.6g} s"
    )
    return again._replace(why=why), trajectory, now


class Given(NamedTuple):
    """What `simulate` takes beside system, formulation and state, as its docstring has it."""

    t0: Any
    t1: Any
    dt: Any
    solver: Any
    stepsize_controller: Any
    saveat: Any
    controller: Any
    adjoint: Any
    backend: Any
    progress: Any
    throw: Any
    work: Any
    start_tolerance: Any
    max_steps: Any
    events: Any = ()
    max_events: Any = MAX_EVENTS


class _Ready(NamedTuple):
    """A run whose arguments are checked and completed.

    Args:
        problem: what is simulated.
        method: how.
        warnings: of gains and steps, before it.
        announced: whether there may be something to say of it: its numbers are known.
        run: makes it.
        why: why its solver was chosen, in words; `None` for one that was given.
    """

    problem: Problem
    method: Method
    warnings: tuple[str, ...]
    announced: bool
    run: Callable[[], Trajectory]
    why: str | None


# Of the last calls. The checks of a run take a millisecond, a short run itself ten microseconds.
_MOST_READY = 16
_READY = Memory(_MOST_READY)


def _ready(system, formulation, state, settings: Given) -> _Ready:
    """A run made ready, or as it was when the same arguments were given before."""
    calls = _LAST.get(traced_settings(), {}) if is_outside() else {}
    last = calls.get((id(system), id(formulation), id(state)))
    if last is not None and all(map(operator.is_, settings, last.arguments[3])):
        return last.ready

    first = []

    def make() -> _Ready:
        first.append(True)
        chosen, why = _with_solver(system, formulation, state, settings)
        frame = _frame(system, formulation, state, chosen)
        suited, known, said = _for_start(frame, state, chosen)
        problem, method, run, _ = _bound(frame, suited, known, chosen)
        announced = are_known(problem) and (bool(chosen.throw) or says_more(problem, method))
        return _Ready(problem, method, said, announced, run, why)

    arguments = (system, formulation, state, settings)
    leaves, structure = jax.tree.flatten(arguments)
    if not _are_constant(leaves):
        return make()
    ready = _READY.get((structure, *map(_Same, leaves)), arguments, make)
    if not first and not _holds_containers(structure):
        calls = _LAST.setdefault(traced_settings(), {})
        if len(calls) >= _MOST_READY:
            calls.clear()
        calls[id(system), id(formulation), id(state)] = _LastCall(arguments, ready)
    return ready


class _LastCall(NamedTuple):
    """A run for the very objects of an earlier call, none of which can be changed.

    Args:
        arguments: `(system, formulation, state, settings)`.
        ready: the run.
    """

    arguments: tuple
    ready: "_Ready"


# By the settings of JAX, and the identity of system, formulation and state, which it keeps alive.
_LAST: Any = weakref.WeakKeyDictionary()


def _holds_containers(structure) -> bool:
    """Whether there are lists or dictionaries in a pytree, which may be changed in their place."""
    about = structure.node_data()
    changeable = about is not None and about[0] in (list, dict)
    return changeable or any(map(_holds_containers, structure.children()))


def _are_constant(leaves: list) -> bool:
    """Whether objects hold the same numbers as long as they live, and are not being traced."""
    return is_outside() and not any(isinstance(x, np.ndarray | jax.core.Tracer) for x in leaves)


class _Same:
    """A leaf as a key: plain values are the same where they are equal, others where they are one.

    Args:
        leaf: an array of JAX, a number, a function or another object.
    """

    __slots__ = ("leaf",)

    def __init__(self, leaf: Any):
        self.leaf = leaf

    def __hash__(self) -> int:
        return hash(self.leaf) if isinstance(self.leaf, _PLAIN) else id(self.leaf)

    def __eq__(self, other) -> bool:
        a, b = self.leaf, other.leaf
        if a is b:
            return True
        return isinstance(a, _PLAIN) and kinds(a) == kinds(b) and a == b


_PLAIN = (bool, int, float, complex, str, np.generic)


def _announce(findings: Findings, trajectory: Trajectory, *, rows: bool) -> None:
    """Raise the failure of a run, or warn of what was found of it.

    Args:
        findings: of the run.
        trajectory: what it gave.
        rows: whether what was found along its rows is said, too.
    """
    if findings.failure is not None:
        raise SimulationError(findings.failure.message)
    if rows or findings.residual is None:
        for one in findings.warnings:
            warnings.warn(one.message, RuntimeWarning, stacklevel=3)
    # For the prompt alone: beside the fields, so that no program sees it.
    object.__setattr__(trajectory, "findings", findings)


@jit(options=lambda run: run.made_by.options)
def integrated(problem: Problem, method: Method) -> Trajectory:
    """A run and its result as one program for all of one kind; pure, a failure is a value.

    Args:
        problem: what is simulated.
        method: how.
    """
    return Trajectory.of(problem, method, run(problem, method))


@eqx.filter_jit
def _raising(problem: Problem, method: Method, declared) -> Trajectory:
    """The same inside a transformation, where an error is raised when the program runs.

    Args:
        problem: what is simulated.
        method: how.
        declared: kinds of the plain numbers in the problem.
    """
    del declared  # programs of 1, 1.0 and True are different ones
    solution = run(problem, method)
    # All of it, so that whatever is read of a failed run inside a transformation raises.
    trajectory = Trajectory.of(problem, method, solution)
    if solution.dependent is not None:
        trajectory = eqx.error_if(trajectory, solution.dependent, DEPENDENT_START)
    for code, words in failures_of_steps(method):
        trajectory = eqx.error_if(trajectory, trajectory.result_code == code, words)
    stayed = ~trajectory.success & (solution.final_time == problem.times.start)
    every_step = getattr(getattr(method.saveat, "subs", None), "steps", 0)
    if method.only_end or method.picked is not None or not every_step:
        # Of fixed steps that are not saved it is not known which of them was the last finite one.
        stayed = stayed & (trajectory.result_code != diffrax.RESULTS.nonfinite)
    trajectory = eqx.error_if(trajectory, stayed, FAILED_START)
    if solution.events is not None:
        for code, reason in REASONS.items():
            stopped = solution.events.ending == code
            trajectory = eqx.error_if(trajectory, stopped, f"{reason}.")
    return trajectory.result_code.error_if(trajectory, ~trajectory.success)


def chosen_solver(system, formulation, state, **settings) -> tuple[diffrax.AbstractSolver, str]:
    """The solver that `simulate(..., solver="auto")` takes, and why, in words.

    Raises:
        ValueError: as `simulate` does, and its other errors before any work.
    """
    chosen, why = _with_solver(system, formulation, state, Given(**settings, solver="auto"))
    return chosen.solver, str(why)


def _with_solver(system, formulation, state, settings: Given) -> tuple[Given, str | None]:
    """The arguments with a solver in the place of `"auto"`, and why that one."""
    if not isinstance(settings.solver, str):
        return settings, None
    if settings.solver != "auto":
        raise ValueError(
            f"solver is {settings.solver!r}; give 'auto', or a solver such as diffrax.Dopri8()."
        )
    from jaxdae.simulation import automatic  # loaded where it is asked for, with its methods

    def complete(solver) -> tuple[Problem, Method]:
        plain = settings._replace(solver=solver, throw=False, saveat=None, progress=False)
        return _completed(system, formulation, state, plain)[:2]

    solver, why = automatic.choose(complete, is_eager)
    return settings._replace(solver=solver), why


def prepare(system, formulation, state, **settings) -> tuple[Problem, Method]:
    """Check the arguments of `simulate`, complete them by its defaults, and choose the backend.

    Raises:
        ValueError: as `simulate` does, and its other errors before any work.
    """
    if EXAMINATION.value is not None:
        settings |= observation.as_observed(settings, jnp.result_type(float, state.q))
    chosen, _ = _with_solver(system, formulation, state, Given(**settings))
    problem, method, said = _completed(system, formulation, state, chosen)
    if EXAMINATION.value is None:
        for text in said:
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return problem, method


def _completed(
    system, formulation, state, settings: Given
) -> tuple[Problem, Method, tuple[str, ...]]:
    """The same, and what is to be warned of before the run."""
    frame = _frame(system, formulation, state, settings)
    suited, known, said = _for_start(frame, state, settings)
    return *_finished(frame, suited, known, settings), said


def _for_start(frame: "_Frame", begun: State, settings: Given) -> tuple[Any, bool, tuple[str, ...]]:
    """A formulation for a start, whether nothing of it is left to examine, and warnings of it."""
    start = Start(frame.plant, begun, frame.times.start)
    eager = is_eager(frame.formulation, start)
    kernel = None if settings.backend == "plain" else backend_of("native").kernel
    suited, known = starts.suited_to_start(
        frame.formulation, start, settings.start_tolerance, eager=eager, kernel=kernel
    )
    problem = Problem(frame.system, suited, frame.controller, frame.state, frame.times)
    return (
        suited,
        known,
        tuple(_step_warnings(problem, start.t, frame.method.solver, frame.direction)),
    )


def _finished(frame: "_Frame", suited, known: bool, settings: Given) -> tuple[Problem, Method]:
    """A problem and a method, the backend chosen, with a formulation that suits the start."""
    # What stabilizes constraints acts in the direction of integration.
    sign = frame.direction
    if sign is None:
        sign = jnp.where(settings.t1 < settings.t0, -1, 1).astype(frame.state.q.dtype)
    problem = Problem(
        frame.system, suited.in_direction(sign), frame.controller, frame.state, frame.times,
        events=frame.events,
    )  # fmt: skip
    method = frame.method._replace(start_is_known=known)
    problem, method = with_checked_times(problem, method, bool(settings.throw))
    problem, method = with_backend(problem, method, settings.backend)
    return _monitored(problem, method, throw=bool(settings.throw))


def _bound(frame: "_Frame", suited, known: bool, settings: Given) -> "_BoundRun":
    """The same with a call that makes the run, as it was for another start where that is all."""
    leaves, structure = jax.tree.flatten(suited)
    last = frame.kept.get((structure, known))
    if last is not None and all(map(operator.is_, leaves, last.leaves)):
        states = jax.tree.leaves(last.problem.state), jax.tree.leaves(frame.state)
        run = last.run.with_arrays(*states)
        if run is not None:
            return last._replace(problem=last.problem._replace(state=frame.state), run=run)
    problem, method = _finished(frame, suited, known, settings)
    method = method._replace(structure=structure_of(problem.system))
    if settings.throw and not is_eager(problem):
        run = partial(_raising, problem, method, kinds(problem.parts))
        return _BoundRun(problem, method, run, leaves)
    frame.kept[structure, known] = _BoundRun(
        problem, method, integrated.bind(problem, method), leaves
    )
    return frame.kept[structure, known]


class _BoundRun(NamedTuple):
    """A run to be made.

    Args:
        problem: what is simulated.
        method: how.
        run: makes it.
        leaves: of the formulation, as it suits the start.
    """

    problem: Problem
    method: Method
    run: Any
    leaves: list


class _Frame(NamedTuple):
    """What of a completed call does not depend on the numbers of its start.

    Args:
        system: of one precision, with the internal state of a controller attached.
        plant: without it.
        formulation: of one precision, as it was given otherwise.
        controller: the part without internal state.
        state: the start, with the internal state of a controller, which does depend on its numbers.
        times: of the run.
        events: of one precision.
        direction: see `run_direction`.
        method: before the backend is chosen.
        kept: runs from the last starts, by the kind of the formulation that suits them.
    """

    system: System
    plant: System
    formulation: AbstractFormulation
    controller: Any
    state: State
    times: Times
    events: tuple[Event, ...]
    direction: int | None
    method: Method
    kept: dict[Any, "_BoundRun"]


# Of the last calls, as `_READY`: starts vary more often than what moves from them.
_FRAMES = Memory(16)


def _frame(system, formulation, state, settings: Given) -> _Frame:
    """A frame, or as it was when another start of the same kind was given with it."""
    make = partial(_framed, system, formulation, state, settings)
    leaves, structure = jax.tree.flatten((system, formulation, settings))
    dynamic = AbstractDynamicController | ControllerOutput
    own = isinstance(settings.controller, dynamic) or settings.events
    if own or not _are_constant(leaves) or not isinstance(state, State) or not are_known(state):
        return make()
    kind = tuple(map(preconditions.signature, jax.tree.leaves(state)))
    declared = (system, formulation, settings)
    frame = _FRAMES.get((structure, kind, *map(_Same, leaves)), declared, make)
    return frame._replace(state=state)


def _framed(system, formulation, state, settings: Given) -> _Frame:
    """A frame, checked."""
    (t0, t1, dt, solver, stepsize_controller, saveat, controller, adjoint, _, progress,
     throw, work, start_tolerance, max_steps, events, max_events) = settings  # fmt: skip
    refuse_rates(system, controller)
    for part in jax.tree.leaves(controller):
        preconditions.check_closure("controller", part)
    system, state, inner, plant = closed_loop(system, controller, state, t0)
    preconditions.check_kinds(
        system, formulation, state, inner, adjoint, saveat, progress, throw, work
    )
    preconditions.check_times(t0, t1, dt, stepsize_controller, saveat, max_steps)
    solver = _SOLVER if solver is None else solver
    preconditions.check_solver(solver, formulation, stepsize_controller, dt, work)
    if formulation.capabilities.passes_singular_positions and parts_of(solver).projection is None:
        solver = Projected(solver)
    hybrid = hybrid_part(inner, state)
    clocks = clocks_of(inner)
    if hybrid is not None:
        goes_on = isinstance(controller, ControllerOutput)
        dtype = state.q.dtype
        sampling.check(hybrid[0], t0, t1, dt, stepsize_controller, dtype, goes_on=goes_on)
        solver = sampling.SampledEnds(solver, hybrid[1])
    preconditions.check_projection(solver, formulation)
    if splits(solver):
        check_split(type(parts_of(solver).method).__name__, system, formulation)
    dtype = state.q.dtype
    system, formulation, inner = in_dtype((system, formulation, inner), dtype)
    preconditions.check_declaration(system, formulation, inner, state, t0, solver)
    events = in_dtype(check_events(events, max_events, t0, state), dtype)

    times = run_times(t0, t1, dt, stepsize_controller, saveat, dtype, clocks)
    fixed = times.grid is not None
    if events:
        preconditions.check_with_events(events, saveat, progress, fixed=fixed)
    if hybrid is not None and not fixed:
        control = step_control(stepsize_controller, times)
        stepsize_controller = sampling.with_samples(control, clocks, hybrid[1])
    direction = run_direction(t0, t1, stepsize_controller)
    method = Method(
        solver,
        None if fixed else with_known_ends(stepsize_controller, times),
        _EVERY_STEP if saveat is None and fixed else saveat,
        _ADJOINT if adjoint is None else adjoint,
        meter_of(progress),
        len(times.grid) - 1 if fixed else int(max_steps),
        work,
        direction=direction,
        times_are_known=are_known(t0, t1, dt, saveat),
        max_events=max_events,
        reset_tolerance=start_tolerance,
    )
    return _Frame(
        system, plant(system), formulation, inner, state, times, events, direction, method, {}
    )


def run_times(t0, t1, dt, stepsize_controller, saveat, dtype, clocks=()) -> Times:
    """Times of a run of a precision: fixed steps where they are known, else what is saved."""
    grid = None
    if isinstance(stepsize_controller, Grid):
        grid = stepsize_controller.ts
    elif is_constant_step(stepsize_controller) and dt is not None and are_known((t0, t1, dt)):
        grid = step_ends(t0, t1, dt, dtype, clocks)
    xp = np if are_known((t0, t1)) else jnp
    saved = xp.linspace(t0, t1, DEFAULT_TIMES) if saveat is None and grid is None else None
    times = Times(t0, t1, dt if grid is None else None, grid, saved)
    array = lambda x: np.asarray(x, dtype) if are_known(x) else jnp.asarray(x, dtype)  # noqa: E731
    return Times(*(None if x is None else array(x) for x in times))


def is_constant_step(stepsize_controller) -> bool:
    """Whether all steps are of one length, where one is given."""
    return stepsize_controller is None or isinstance(stepsize_controller, diffrax.ConstantStepSize)


def step_ends(t0, t1, dt, dtype, clocks=()) -> np.ndarray:
    """Ends of the fixed steps: as many as `dt` needs, all of one size, the last at `t1`.

    With the clocks of a sampled controller they are of one size from sample to sample.

    Given as numbers they are the same in the backward pass, which repeats steps. Where they are
    computed on the way (`diffrax.ConstantStepSize`), a saved time at the end of a step may by
    round-off lie on its other side there, and that row is lost from the gradient.
    """
    if clocks:
        return clocks_and_steps(float(t0), float(t1), float(dt), clocks).astype(dtype)
    t0, t1, dt = (np.asarray(x, dtype) for x in (t0, t1, dt))
    steps = int(np.ceil(np.abs(t1 - t0) / np.nextafter(np.abs(dt), np.inf, dtype=dtype)))
    grid = np.linspace(t0, t1, max(steps, 1) + 1, dtype=dtype)
    if not np.all(np.diff(grid) * np.sign(t1 - t0) > 0):
        raise ValueError(
            f"dt = {dt} s is below the round-off of times from {t0} to {t1} s in {dtype}; take "
            "longer steps, a time nearer to zero, or float64."
        )
    return grid


def _step_warnings(problem: Problem, t, solver, direction: int | None) -> list[str]:
    """Gains that grow, steps beyond their limit, and damping backward in time, in words."""
    known = (*problem.parts, problem.state, t)
    if not are_known(known):
        return []
    grid = problem.times.grid
    with jax.core.eval_context():
        law = problem.system, problem.formulation, problem.state, t
        backward = direction == -1
        results = [
            preconditions.growth_warning(*known, backward=backward),
            preconditions.rest_warning(*law),
        ]
        if grid is not None and are_known(grid):
            step = float(np.abs(np.diff(grid)).max())
            results.append(preconditions.step_warning(*known, solver, step, backward=backward))
        if backward and are_known(problem.times.end):
            duration = abs(float(problem.times.end - problem.times.start))
            results.append(start_warning(*known, duration))
    return [x for x in results if x is not None]


def with_backend(problem: Any, method: Method, backend) -> tuple[Any, Method]:
    """The backend chosen, and times that it does not check itself."""
    times = problem.times
    if backend == "plain":
        return problem, method._replace(backend=backend)
    backends.check_name(backend)
    why_not = backend_of("native").obstacle(problem.needs(method.solver), method)
    if is_constant_step(method.stepsize_controller) and times.first_step is not None:
        why_not = "the number of fixed steps is known only when the run is made"
    chosen = backends.choose(backend, why_not)
    strict = backend == "native"
    if chosen == "native":
        control = method.stepsize_controller
        # Parts of a run with events begin and end at times without derivatives.
        plain_times = not (strict or problem.events)
        why_not = _left_to_plain(times, method.saveat, control) if plain_times else None
    return problem, method._replace(backend=chosen, strict=strict, why_not=why_not)


def with_checked_times(problem: Any, method: Method, throw: bool) -> tuple[Any, Method]:
    """What is known only when the program runs, times and tolerances, checked there.

    With `throw` what does not fit raises an error then. Otherwise it is the failure of the members
    of a batch that it belongs to: their times and states are NaN.
    """
    times, controller = problem.times, method.stepsize_controller
    clocks = clocks_of(getattr(problem, "controller", None))
    if are_known(times, method.saveat, controller, clocks):
        return problem, method
    saved, rest = eqx.partition(method.saveat, eqx.is_inexact_array)
    settings = [x for x in jax.tree.leaves(controller) if eqx.is_inexact_array(x)]
    wrong = preconditions.wrong_times(times, jax.tree.leaves(saved), settings, controller)
    wrong |= sampling.wrong_clocks(clocks)
    if throw:
        end = times.end
        for words, bad in wrong.items():
            end = eqx.error_if(end, bad, words)
        return problem._replace(times=times._replace(end=end)), method
    bad = jnp.any(jnp.stack([*wrong.values()]))
    state = invalidated(problem.state, bad)
    if not isinstance(controller, diffrax.StepTo):  # it compares its times with these
        times, saved = invalidated((times, saved), bad)
    problem = problem._replace(state=state, times=times)
    return problem, method._replace(saveat=eqx.combine(saved, rest))


def _left_to_plain(times: Times, saveat, controller) -> str | None:
    """What the plain program does for a native run, in words; `None` for nothing."""
    from jaxdae.kernels.integration.run import TIMES  # loaded with the native backend alone

    saved = None if saveat is None else saveat.subs.ts
    ends = known_ends(controller)
    varying = (times.start, times.end, times.first_step, saved, ends.steps, ends.jumps)
    return None if are_known(varying) else f"only {TIMES}"


def _monitored(problem: Problem, method: Method, *, throw: bool) -> tuple[Problem, Method]:
    """Where only the end or few times are saved, rows on the way are saved to monitor the run."""
    times, asked = problem.times, EXAMINATION.value
    seen = asked is not None and asked.sees and are_known(times)
    if not seen and not (throw and is_eager(problem)):
        return problem, method
    monitor = np.linspace(times.start, times.end, DEFAULT_TIMES, dtype=problem.state.q.dtype)
    if is_end(method.saveat):
        method = method._replace(saveat=None, only_end=True)
        return problem._replace(times=times._replace(saved=monitor)), method
    asked = asked_times(method.saveat)
    if asked is None or not are_known(asked) or not 0 < np.size(asked) < DEFAULT_TIMES:
        return problem, method
    asked = np.asarray(asked, monitor.dtype)
    sign = -1 if times.end < times.start else 1
    every = sign * np.unique(sign * np.concatenate([asked, monitor]))
    method = method._replace(saveat=None, picked=np.searchsorted(sign * every, sign * asked))
    return problem._replace(times=times._replace(saved=every)), method


def run_direction(t0, t1, stepsize_controller) -> int | None:
    """1 for a run forward in time, -1 backward; `None` where that is not known yet."""
    if isinstance(stepsize_controller, Grid) and stepsize_controller.direction is not None:
        return stepsize_controller.direction
    if not are_known(t0, t1):
        return None
    return 1 if t0 <= t1 else -1


def meter_of(progress) -> diffrax.AbstractProgressMeter:
    """What shows the progress of a run, from `simulate(progress=…)`."""
    if isinstance(progress, bool):
        return diffrax.TqdmProgressMeter() if progress else _NO_METER
    return progress
