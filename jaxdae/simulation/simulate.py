"""One entry point for simulation, over `diffrax.diffeqsolve`."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import kinds
from jaxdae.control.base import AbstractDynamicController, attach
from jaxdae.formulations import AbstractFormulation
from jaxdae.linalg.singularity_robust import passes_singular_positions
from jaxdae.simulation import arguments, backends, preconditions, starts
from jaxdae.simulation.assumptions import rank_warning
from jaxdae.simulation.diagnostics import rows_of, tolerance_of, warnings_of
from jaxdae.simulation.failure import raise_failure, review, review_controller
from jaxdae.simulation.program import Choice, integrate, is_plain, Method, Task
from jaxdae.simulation.starts import Start
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.solvers.projected import Projected
from jaxdae.systems import State, System
from jaxdae.systems.checks import is_concrete
from jaxdae.systems.precision import in_dtype, known_array

# Saved times of an adaptive run that asks for none.
DEFAULT_TIMES = 201


def simulate(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    t0=0.0,
    t1,
    dt=None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | AbstractDynamicController | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    backend: backends.Backend = "auto",
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
    work: bool = False,
    start_tolerance: float | None = 1e-4,
    max_steps: int = 2**16,
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
        t1: end time [s].
        dt: step [s]. With it, and without a `stepsize_controller`, the time is divided into equal
            steps, none longer than `dt`.
        solver: any diffrax solver of ordinary differential equations, or `jaxdae.solvers.RK4`;
            by default `diffrax.Dopri8()`. `jaxdae.solvers.Projected(solver)` takes every step, and
            every saved state, onto the constraints.
        stepsize_controller: any of diffrax's; by default `PIDController` with `rtol = atol = 1e-8`
            in float64, `1e-5` in float32.
        saveat: any `diffrax.SaveAt`; by default every step of a fixed-step run (when `t0`, `t1`
            and `dt` are plain numbers), else 201 equally spaced times. A `fn(t, y, args)` in it
            receives the `State` as `y`. Times between steps are interpolated to the solver's order
            of dense output, without projection on the constraints unless the solver is
            `Projected`. `SaveAt(steps=True)` of an
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
            integrates all of the run, one entry of a vector register for each lane of a batch;
            `"auto"` takes the native one where it can serve. It needs llvmlite, which loads here,
            an explicit Runge-Kutta method, fixed steps or diffrax's `PIDController`, and saved
            states. `Trajectory.backend` says what was used and why. Both give the same numbers to
            round-off. The plain program makes the derivatives of native runs by times, and others
            that no kernel has; `"native"` refuses them.
        progress: `True` for a progress bar, or one of diffrax's progress meters.
        throw: raise an error when the run fails: a `SimulationError` that says where and why, or,
            inside a JAX transformation, the runtime error of the compiled program. Otherwise the
            failure is a value: `success` is false, unreached rows are marked; under `vmap` for
            each lane apart.
        work: integrate also the work of forces, dissipation and constraints (`Trajectory.work`).
        start_tolerance: largest constraint residual of the start, relative to `1 + max |q|, |v|`;
            `None` allows any (stabilization from a start off the constraints).
        max_steps: largest number of steps.

    Returns:
        `Trajectory`.

    Warns:
        RuntimeWarning: when fixed steps are beyond the step limit of the gains (see
            `jaxdae.step_limit`), or a run that reached its end came close to where the formulation
            or the controller ends, passed near-singular positions, or has an energy balance that
            is off by more than its tolerance explains.

    Raises:
        SimulationError: when the run fails and `throw` is true: what failed, when, the state of the
            constraints there, and what to try.
        ValueError: before any work, for shapes, gains, a start or a combination that do not fit.
        TypeError: before any work, for an argument of the wrong kind.
        BackendError: when the native backend is asked for and cannot serve.
    """
    request = Request(
        system, formulation, state, t0, t1, dt, solver, stepsize_controller, saveat, controller,
        adjoint, backend, progress, throw, work, start_tolerance, max_steps,
    )  # fmt: skip
    prepared = prepare(request)
    return reviewed(prepared, _compiled_run(*prepared.program))


class Request(NamedTuple):
    """Arguments of `simulate`."""

    system: Any
    formulation: Any
    state: Any
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
    throw: bool
    work: bool
    start_tolerance: Any
    max_steps: Any


class Prepared(NamedTuple):
    """A run that was checked.

    Args:
        program: arguments of `integrate`: the task first, whose arrays are those of the program.
        throw: whether a failure is an error.
        fixed: whether its steps are given ones.
        tolerance: of its step control, or `None`.
    """

    program: tuple
    throw: bool
    fixed: bool
    tolerance: float | None


def prepare(request: Request) -> Prepared:
    """Check what is asked for, and choose the backend.

    Args:
        request: the arguments of `simulate`.

    Raises:
        ValueError: as `simulate` does, and its other errors before any work.
    """
    (
        system, formulation, state, t0, t1, dt, solver, stepsize_controller, saveat, controller,
        adjoint, backend, progress, throw, work, start_tolerance, max_steps,
    ) = request  # fmt: skip
    plain: Callable | None = controller  # pyright: ignore[reportAssignmentType]
    given, inner = state, lambda system: system
    if isinstance(controller, AbstractDynamicController):
        system, state, plain = attach(system, controller, state, t0)
        inner = lambda system: system.inner  # noqa: E731
    numbers = (t0, t1, dt)
    arguments.check_kinds(system, formulation, state, plain, adjoint, saveat, progress, throw, work)
    arguments.check_times(*numbers, stepsize_controller, saveat, max_steps)
    solver = diffrax.Dopri8() if solver is None else solver
    preconditions.check_solver(solver, stepsize_controller, dt)
    if passes_singular_positions(formulation) and not isinstance(solver, Projected):
        solver = Projected(solver)
    preconditions.check_projection(solver, formulation)
    dtype = state.q.dtype
    system, formulation, plain = in_dtype((system, formulation, plain), dtype)
    start = Start(inner(system), given, known_array(t0, dtype))
    preconditions.check_declaration(system, formulation, plain, state, t0)

    constant = stepsize_controller is None or isinstance(
        stepsize_controller, diffrax.ConstantStepSize
    )
    grid = _grid(*numbers, dtype) if constant and dt is not None and is_concrete(numbers) else None
    max_steps = int(max_steps) if grid is None else len(grid) - 1
    if saveat is None and grid is not None:
        saveat = diffrax.SaveAt(t0=True, steps=True)
    save_ts = jnp.linspace(t0, t1, DEFAULT_TIMES) if saveat is None else None
    times = (t0, t1, dt if grid is None else None, grid, save_ts)
    times = (None if x is None else jnp.asarray(x, dtype) for x in times)
    formulation, judged = starts.judged(formulation, start, start_tolerance)
    run = system, formulation, plain, state, start.t
    if is_concrete(run):
        with jax.core.eval_context():
            _warn(preconditions.growth_warning(*run))
            if grid is not None:
                step = float(grid[1] - grid[0])
                _warn(preconditions.step_warning(*run, solver, step))
    task = Task(system, formulation, plain, state, *times)

    adjoint = diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
    meter = _meter(progress)
    chooser = None if grid is not None else stepsize_controller
    why_not = backends.obstacle(formulation, solver, chooser, saveat, adjoint, meter)
    if constant and task.dt is not None:
        why_not = "the number of fixed steps is known only when the run is made"
    chosen = backends.choose(backend, why_not)
    if chosen == "native":
        saveat, end = backends.checked(saveat, task.t0, task.t1, task.dt)
        task = task._replace(t1=end)
        why_not = backends.left_to_plain(backend, task, saveat)
    choice = Choice(chosen, backend == "native", why_not, backends.direction(t0, t1))
    # A failure that can be looked at is reported in our own words; one inside a transformation
    # can only be raised by the compiled program.
    traced = not is_concrete(task)
    ends = throw and not traced and not work and saveat is not None and _is_end(saveat)
    if ends:
        saveat, times = None, jnp.linspace(task.t0, task.t1, DEFAULT_TIMES)
        task = task._replace(save_ts=times)
    method = Method(
        solver, stepsize_controller, saveat, adjoint, meter, max_steps, work, choice, ends
    )
    declared = kinds((task.system, task.formulation, task.controller))
    # A run of traced tolerances is traced as well, and not judged by them.
    unknown = constant or not is_concrete(stepsize_controller)
    tolerance = None if unknown else tolerance_of(stepsize_controller, dtype)
    program = (task, method, throw and traced, judged, declared)
    return Prepared(program, throw, grid is not None, tolerance)


def reviewed(prepared: Prepared, trajectory: Trajectory) -> Trajectory:
    """A run of which it was said what there is to say: its failure, or what to be warned of.

    Args:
        prepared: the run, checked.
        trajectory: what it gave.
    """
    task: Task = prepared.program[0]
    if not is_concrete(task, trajectory.result):
        return trajectory
    if prepared.throw:
        raise_failure(trajectory)
    if trajectory.final_time.ndim == 0 and bool(trajectory.success):
        _warn(review(trajectory))
        _warn(rank_warning(trajectory))
        if prepared.fixed:  # an adaptive run stops at a singularity
            _warn(review_controller(trajectory))
        if prepared.throw and trajectory.plain:
            own = (task.system, task.formulation, task.controller)
            for text in warnings_of(*own, rows_of(trajectory, prepared.tolerance)):
                _warn(text)
    return trajectory


_compiled_run = eqx.filter_jit(integrate)


def _warn(text: str | None) -> None:
    if text is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _grid(t0, t1, dt, dtype) -> np.ndarray:
    """Ends of the fixed steps: as many as `dt` needs, all of one size, the last at `t1`.

    Given as numbers they are the same in the backward pass, which repeats steps. Where they are
    computed on the way (`diffrax.ConstantStepSize`), a saved time at the end of a step may by
    round-off lie on its other side there, and that row is lost from the gradient.
    """
    t0, t1, dt = (np.asarray(x, dtype) for x in (t0, t1, dt))
    steps = int(np.ceil(np.abs(t1 - t0) / np.nextafter(np.abs(dt), np.inf, dtype=dtype)))
    grid = np.linspace(t0, t1, max(steps, 1) + 1, dtype=dtype)
    if not np.all(np.diff(grid) * np.sign(t1 - t0) > 0):
        raise ValueError(
            f"dt = {dt} s is below the round-off of times from {t0} to {t1} s in {dtype}; take "
            "longer steps, a time nearer to zero, or float64."
        )
    return grid


def _is_end(saveat: diffrax.SaveAt) -> bool:
    """Whether it asks for the state at the end and nothing else."""
    sub = saveat.subs
    asks = is_plain(saveat) and not saveat.dense and sub.t1
    return asks and not sub.t0 and not sub.steps and sub.ts is None


def _meter(progress):
    if isinstance(progress, bool):
        return diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    return progress
