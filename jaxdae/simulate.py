"""One entry point for simulation, over `diffrax.diffeqsolve`."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae import arguments, backends, preconditions
from jaxdae.assumptions import DEPENDENT_START, rank_warning, suited
from jaxdae.compiled import jit, kinds
from jaxdae.control.base import AbstractDynamicController, attach
from jaxdae.diagnostics import rows_of, tolerance_of, warnings_of
from jaxdae.failure import raise_failure, review, review_controller
from jaxdae.formulations import AbstractFormulation, SparseMultipliers
from jaxdae.formulations.held_rank import holding_rank
from jaxdae.kernels.derivatives import shielded
from jaxdae.linalg.singularity_robust import passes_singular_positions
from jaxdae.reverse_only import reverse_only
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.projected import Projected
from jaxdae.systems import Power, power_balance, State, System
from jaxdae.systems.checks import constraint_counts, is_concrete
from jaxdae.systems.independence import are_dependent
from jaxdae.systems.precision import in_dtype
from jaxdae.trajectory import control_input, Trajectory

# Saved times of an adaptive run that asks for none.
DEFAULT_TIMES = 201
_STANDARD_SAVE = diffrax.SubSaveAt(t1=True).fn


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
    nothing. Whole numbers that count something, settings of solver and step controller, and
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
            carries out the whole run, one entry of a vector register for each lane of a batch;
            `"auto"` takes the native one where it can serve. It needs llvmlite, which loads here,
            an explicit Runge-Kutta method, given steps or diffrax's `PIDController`, and saved
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
    """Check what is asked for, and choose what carries it out.

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
    if isinstance(controller, AbstractDynamicController):
        system, state, plain = attach(system, controller, state, t0)
    numbers = (t0, t1, dt)
    arguments.check_kinds(system, formulation, state, plain, adjoint, saveat, progress, throw, work)
    arguments.check_times(*numbers, stepsize_controller, saveat, max_steps)
    max_steps = int(max_steps)
    solver = diffrax.Dopri8() if solver is None else solver
    preconditions.check_solver(solver, stepsize_controller, dt)
    if passes_singular_positions(formulation) and not isinstance(solver, Projected):
        solver = Projected(solver)
    preconditions.check_projection(solver, formulation)
    dtype = state.q.dtype
    system, formulation, plain = in_dtype((system, formulation, plain), dtype)
    preconditions.check_declaration(system, formulation, plain, state, t0)

    save_ts = grid = None
    constant = stepsize_controller is None or isinstance(
        stepsize_controller, diffrax.ConstantStepSize
    )
    if constant and dt is not None and is_concrete(numbers):
        grid, dt = _grid(*numbers, dtype), None
        max_steps = len(grid) - 1
    if saveat is None and grid is not None:
        saveat = diffrax.SaveAt(t0=True, steps=True)
    elif saveat is None:
        save_ts = jnp.linspace(t0, t1, DEFAULT_TIMES)
    times = (None if x is None else jnp.asarray(x, dtype) for x in (t0, t1, dt, grid, save_ts))
    task = _Task(system, formulation, plain, state, *times)
    known = is_concrete(system, formulation, state, task.t0)
    if known:
        formulation = preconditions.check_start(
            system, formulation, state, task.t0, start_tolerance
        )
        task = task._replace(formulation=formulation)
        if is_concrete(plain):
            _warn(preconditions.growth_warning(*task[:4], task.t0))
            if grid is not None:
                step = float(grid[1] - grid[0])
                _warn(preconditions.step_warning(*task[:4], task.t0, solver, step))
    else:
        task = task._replace(formulation=suited(formulation, system, state, task.t0))

    adjoint = diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint
    meter = _meter(progress)
    chooser = None if grid is not None else stepsize_controller
    why_not = backends.obstacle(formulation, solver, chooser, saveat, adjoint, meter)
    if constant and dt is not None:
        why_not = "the number of fixed steps is known only when the run is made"
    chosen = backends.choose(backend, why_not)
    if chosen == "native":
        saveat, end = backends.checked(saveat, task.t0, task.t1, task.dt)
        task = task._replace(t1=end)
        why_not = backends.left_to_plain(backend, task, saveat)
    carrier = _Carrier(chosen, backend == "native", why_not, backends.direction(t0, t1))
    # A failure that can be looked at is reported in our own words; one inside a transformation
    # can only be raised by the compiled program.
    traced = not is_concrete(task)
    ends = throw and not traced and not work and saveat is not None and _is_end(saveat)
    if ends:
        saveat, times = None, jnp.linspace(task.t0, task.t1, DEFAULT_TIMES)
        task = task._replace(save_ts=times)
    method = _Method(
        solver, stepsize_controller, saveat, adjoint, meter, max_steps, work, carrier, ends
    )
    declared = kinds((task.system, task.formulation, task.controller))
    tolerance = None if constant else tolerance_of(stepsize_controller, dtype)
    program = (task, method, throw and traced, known, declared)
    return Prepared(program, throw, grid is not None, tolerance)


def reviewed(prepared: Prepared, trajectory: Trajectory) -> Trajectory:
    """A run of which it was said what there is to say: its failure, or what to be warned of.

    Args:
        prepared: the run, checked.
        trajectory: what it gave.
    """
    task: _Task = prepared.program[0]
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


def _warn(text: str | None) -> None:
    if text is not None:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


class _Task(NamedTuple):
    """What is simulated: everything in it is an argument of the compiled program."""

    system: System
    formulation: AbstractFormulation
    controller: Callable | None
    state: State
    t0: Any
    t1: Any
    dt: Any
    grid: Any
    save_ts: Any


class _Carrier(NamedTuple):
    """What carries the run out: the backend to try, whether it must be that one, what else."""

    backend: str
    strict: bool
    why_not: str | None
    direction: int | None


class _Method(NamedTuple):
    """How it is simulated: settings that decide what is compiled."""

    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController | None
    saveat: diffrax.SaveAt | None
    adjoint: diffrax.AbstractAdjoint
    meter: diffrax.AbstractProgressMeter
    max_steps: int
    work: bool
    carrier: _Carrier
    # Only the end is saved, what is saved on the way is to watch it.
    ends: bool = False


def integrate(task: _Task, method: _Method, throw: bool, known: bool, declared) -> Trajectory:
    """Make a run that was checked; arguments are those of `Prepared.program`."""
    del declared  # programs of 1, 1.0 and True are different ones
    formulation = holding_rank(task.formulation, task.system, task.t0, task.state)
    task = task._replace(formulation=formulation)
    run = (task.system, formulation, task.controller)
    zero = jnp.zeros((), task.state.q.dtype)
    work = Power(zero, zero, zero, zero) if method.work else None
    y0 = (formulation.init(task.system, task.t0, task.state), work)
    begun = y0 if known else _if_independent(task, y0, throw)
    solution, carrier = _carried_out(task, method, run, begun)
    solution = _on_constraints(solution, method, run, (task.t0, y0))
    trajectory = _trajectory(solution, method, run, (task.t0, y0[0]), carrier)
    # All of it, so that whatever is read of a failed run inside a transformation raises.
    return trajectory.result.error_if(trajectory, ~trajectory.success) if throw else trajectory


_compiled_run = eqx.filter_jit(integrate)


def _if_independent(task: _Task, y0, throw: bool):
    """A start, NaN where constraints are dependent and the formulation cannot take that."""
    assumed = task.formulation.assumptions().independent_constraints
    m, r = constraint_counts(task.system, task.state)
    # One by itself is independent but at singular positions, which no run can pass anyway.
    if not assumed or m + r < 2 or isinstance(task.formulation, SparseMultipliers):
        return y0
    bad = are_dependent(task.system, task.t0, task.state)
    y0 = eqx.error_if(y0, bad, DEPENDENT_START) if throw else y0
    return jax.tree.map(lambda x: jnp.where(bad, jnp.nan, x), y0)


def _carried_out(task: _Task, method: _Method, run, y0) -> tuple[Any, _Carrier]:
    """What a run gives, and what carried it out."""
    carrier = method.carrier
    if carrier.backend == "native":
        try:
            solution = _by_kernel(task, method, run, y0)
            left = " ".join(x for x in (carrier.why_not, solution.left) if x) or None
            return solution, carrier._replace(why_not=left)
        except backends.Unsuited as reason:
            if carrier.strict:
                raise backends.refused(reason) from None
            carrier = carrier._replace(backend="plain", why_not=str(reason))
    return _by_diffrax(task, method, run, y0, carrier.why_not), carrier


def _by_kernel(task: _Task, method: _Method, run, y0) -> backends.Solution:
    saveat = diffrax.SaveAt(ts=task.save_ts) if method.saveat is None else method.saveat
    controller = None if task.grid is not None else _controller(method.stepsize_controller, task)
    plan = backends.Plan(
        _field, _vector_field, run, y0, method.solver, controller, task.grid, task.t0, task.t1,
        task.dt, saveat.subs, method.carrier.direction, method.max_steps, method.carrier.strict,
    )  # fmt: skip
    solution = backends.solve(plan)
    rows, ((final, _),) = solution.ys
    return solution._replace(ys=(rows, (final,)))


def _by_diffrax(task: _Task, method: _Method, run, y0, why: str | None) -> diffrax.Solution:
    if type(method.adjoint) is diffrax.RecursiveCheckpointAdjoint:
        stepped = method.solver.solver if isinstance(method.solver, Projected) else method.solver
        task, run, y0 = reverse_only((task, run, y0), stepped, why)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(_vector_field),
        method.solver,
        task.t0,
        task.t1,
        task.dt,
        y0,
        args=run,
        saveat=_with_final(method, task.save_ts),
        stepsize_controller=_controller(method.stepsize_controller, task),
        adjoint=method.adjoint,
        progress_meter=method.meter,
        max_steps=method.max_steps,
        throw=False,
    )


# Compiled apart, it is traced once however often solver and derivatives ask for it.
@jit
def _vector_field(t, y, args):
    return shielded(_field, y, t, y, args)


def _field(t, y, args):
    y, work = y
    system, formulation, controller = args
    state = formulation.recover(system, t, y)
    u = control_input(controller, t, state)
    # At a singularity, infinities become NaN: step controllers reject NaN, but a trial state with
    # infinities makes their scaled error, and then the step itself, NaN.
    clean = lambda rate: jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), rate)  # noqa: E731
    if work is None:
        return clean(formulation.vector_field(system, t, y, u)), None
    rate, lam = formulation.rate_and_multipliers(system, t, y, u)
    return clean(rate), power_balance(system, t, state.q, state.v, state.w, u, lam)


def _on_constraints(solution, method: _Method, run, start):
    """Saved states between the steps of a projected solver go to the constraints as well."""
    saveat, solver = method.saveat, method.solver
    between = saveat is None or (_is_sub(saveat.subs) and saveat.subs.ts is not None)
    if method.ends or not (isinstance(solver, Projected) and between and _is_plain(saveat)):
        return solution
    (ts, _), (saved, final) = solution.ts, solution.ys
    saved = _projected_rows(solver, ts, saved, start, run)
    return eqx.tree_at(lambda s: s.ys, solution, (saved, final))


def _projected_rows(solver: Projected, ts, saved, start, run):
    # Rows that were not reached stay as they are, and their derivatives zero.
    reached = jnp.isfinite(_mark(ts, saved))
    pick = lambda row, safe: jax.tree.map(  # noqa: E731
        lambda a, b: jnp.where(reached.reshape(-1, *[1] * (a.ndim - 1)), a, b), row, safe
    )
    safe = pick((ts, saved), start)
    moved = jax.vmap(lambda t, y: solver.project(t, y, run))(*safe)
    return pick(moved, saved)


def _trajectory(solution, method: _Method, run, start, carrier: _Carrier) -> Trajectory:
    """Mark what was not reached, and separate the final state from what the user saves."""
    saveat, solver = method.saveat, method.solver
    (ts, (final_time,)), (saved, (final,)) = solution.ts, solution.ys
    watched = (ts, saved[0]) if method.ends else None
    if method.ends:
        ts, saved = final_time, (final, None)
    final_time, final = jax.tree.map(lambda x: x[0], (final_time, final))
    # A fixed-step run goes on through NaN; diffrax calls that success.
    broken = ~_all_finite(final) & (solution.result == diffrax.RESULTS.successful)
    nonfinite: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix
    result = diffrax.RESULTS.where(broken, nonfinite, solution.result)
    plain = _is_plain(saveat) and ts is not None
    work, last = None, start
    if plain:
        ts = _mark(ts, saved)
        saved, work = _reached(saved, jnp.isfinite(ts))
        work = jax.tree.map(lambda x: jnp.where(jnp.isfinite(ts), x, jnp.nan), work)
        # The last state that was still finite is the last row that is, or else the start.
        rows = jnp.sum(jnp.isfinite(ts))
        row = jax.tree.map(lambda x: x[jnp.maximum(rows - 1, 0)], (ts, saved))
        last = jax.tree.map(lambda a, b: jnp.where(rows > 0, a, b), row, start)
    pick = lambda a, b: jnp.where(broken, a, b)  # noqa: E731
    final_time, final = jax.tree.map(pick, last, (final_time, final))
    arrays, skeleton = eqx.partition(run, eqx.is_array)
    return Trajectory(
        ts, saved, final_time, final, result, solution.stats, solution.interpolation, work,
        plain, arrays, skeleton, carrier.backend, carrier.why_not,
        solver.iterations if isinstance(solver, Projected) else 0, start, watched,
    )  # fmt: skip


@jax.custom_jvp
def _reached(rows, reached):
    """Rows as they are; those that were not reached depend on nothing."""
    del reached
    return rows


@_reached.defjvp
def _reached_jvp(primals, tangents):
    (rows, reached), (moves, _) = primals, tangents
    column = lambda x: reached.reshape(-1, *[1] * (x.ndim - 1))  # noqa: E731
    return rows, jax.tree.map(lambda x: jnp.where(column(x), x, jnp.zeros_like(x)), moves)


def _all_finite(tree):
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(tree)]))


def _mark(ts, saved):
    """`inf` for the times at which the saved state is not finite."""
    rows = [jnp.isfinite(x).reshape(ts.size, -1).all(axis=1) for x in jax.tree.leaves(saved[0])]
    good = jnp.stack(rows).all(axis=0)
    return jnp.where(good, ts, jnp.inf)


def _controller(given, task: _Task):
    if task.grid is not None:
        return Grid(task.grid)
    if given is not None:
        return given
    if task.dt is not None:
        return diffrax.ConstantStepSize()
    eps = float(jnp.finfo(task.t0.dtype).eps)
    tolerance = 1e-8 if eps < 1e-12 else 1e-5
    # Below this the time no longer advances by much more than its round-off.
    smallest = 64 * eps * jnp.maximum(jnp.abs(task.t0), jnp.abs(task.t1))
    return diffrax.PIDController(rtol=tolerance, atol=tolerance, dtmin=smallest, force_dtmin=False)


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


def _with_final(method: _Method, save_ts):
    """What the user saves, and the last state reached besides."""
    saveat, solver = method.saveat, method.solver
    final = diffrax.SubSaveAt(t1=True, fn=lambda t, y, args: y[0])  # noqa: ARG005
    if saveat is None:
        return diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=save_ts), (final,)))
    project = solver.project if isinstance(solver, Projected) else None
    # Rows of a single one are projected afterwards, all at once.
    later = project is None or _is_sub(saveat.subs)
    subs = jax.tree.map(lambda sub: _on_state(sub, project, later), saveat.subs, is_leaf=_is_sub)
    return eqx.tree_at(lambda s: s.subs, saveat, (subs, (final,)), is_leaf=lambda x: x is None)


def _on_state(sub, project, later: bool):
    """A user's `fn(t, y, args)` sees the state; the standard one saves what was integrated."""
    standard = sub.fn is _STANDARD_SAVE
    if standard and later:
        return sub

    def on_state(t, y, args, fn=sub.fn):
        y = y if project is None else project(t, y, args)
        system, formulation, _ = args
        return y if standard else fn(t, formulation.recover(system, t, y[0]), args)

    return eqx.tree_at(lambda s: s.fn, sub, on_state)


def _is_sub(x) -> bool:
    return isinstance(x, diffrax.SubSaveAt)


def _is_plain(saveat) -> bool:
    if saveat is None:
        return True
    return _is_sub(saveat.subs) and saveat.subs.fn is _STANDARD_SAVE


def _is_end(saveat: diffrax.SaveAt) -> bool:
    """Whether it asks for the state at the end and nothing else."""
    sub = saveat.subs
    asks = _is_plain(saveat) and not saveat.dense and sub.t1
    return asks and not sub.t0 and not sub.steps and sub.ts is None


def _meter(progress):
    if isinstance(progress, bool):
        return diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    return progress
