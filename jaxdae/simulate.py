"""One entry point for simulation, over `diffrax.diffeqsolve`."""

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.failure import check_start, raise_failure
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.gains import is_number
from jaxdae.systems import check_system, Power, power_balance, State, System
from jaxdae.systems.checks import is_concrete
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
    controller: Callable | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
    work: bool = False,
    start_tolerance: float | None = 1e-4,
    max_steps: int = 2**16,
) -> Trajectory:
    """Simulate a constrained system.

    The precision is that of `state`. Called again with other numbers and the same shapes, nothing
    is compiled.

    Args:
        system: what moves.
        formulation: how its constraints are enforced, for example `Multipliers(Baumgarte(…))`.
        state: start, `State(q, v, w)`; see `consistent_state`.
        t0: start time [s].
        t1: end time [s].
        dt: step [s]. With it, and without a `stepsize_controller`, steps are of that fixed size.
        solver: any diffrax solver of ordinary differential equations, or `jaxdae.solvers.RK4`;
            by default `diffrax.Dopri8()`.
        stepsize_controller: any of diffrax's; by default `PIDController` with `rtol = atol = 1e-8`
            in float64, `1e-5` in float32.
        saveat: any `diffrax.SaveAt`; by default every step of a fixed-step run (when `t0`, `t1`
            and `dt` are plain numbers), else 201 equally spaced times. A `fn(t, y, args)` in it
            receives the `State` as `y`. Times between steps are interpolated to the solver's order
            of dense output, without projection on the constraints.
        controller: `u = controller(t, q, v, w)`; any callable, an `eqx.Module` if it has weights.
        adjoint: any of diffrax's; by default `RecursiveCheckpointAdjoint()` (reverse mode, many
            parameters). Give `diffrax.ForwardMode()` for forward mode (few parameters).
        progress: `True` for a progress bar, or one of diffrax's progress meters.
        throw: raise an error when the run fails. Otherwise the failure is a value: `success` is
            false, unreached rows are marked; under `vmap` for each lane apart.
        work: integrate also the work of forces, dissipation and constraints (`Trajectory.work`).
        start_tolerance: largest constraint residual of the start, relative to `1 + max |q|, |v|`;
            `None` allows any (stabilization from a start off the constraints).
        max_steps: largest number of steps.

    Returns:
        `Trajectory`.

    Raises:
        SimulationError: when the run fails and `throw` is true: what failed, when, the state of the
            constraints there, and what to try.
        ValueError: before any work, for shapes, gains, a start or a combination that do not fit.
    """
    _check_structure(system, formulation, controller, state, t0)
    solver = diffrax.Dopri8() if solver is None else solver
    _check_solver(solver, stepsize_controller, dt)
    numbers = (t0, t1, dt)
    _check_times(*numbers, stepsize_controller, max_steps)
    dtype = state.q.dtype
    save_ts = grid = None
    constant = stepsize_controller is None or isinstance(
        stepsize_controller, diffrax.ConstantStepSize
    )
    if constant and dt is not None and is_concrete(numbers):
        grid, dt = _grid(*numbers, dtype), None
    if saveat is None and grid is not None:
        saveat, max_steps = diffrax.SaveAt(t0=True, steps=True), len(grid) - 1
    elif saveat is None:
        save_ts = jnp.linspace(t0, t1, DEFAULT_TIMES)
    system, formulation, controller = in_dtype((system, formulation, controller), dtype)
    t0, t1, dt, grid, save_ts = (
        None if x is None else jnp.asarray(x, dtype) for x in (t0, t1, dt, grid, save_ts)
    )
    if is_concrete(system, formulation, state, t0):
        check_start(system, formulation, state, t0, start_tolerance)

    parts = (system, formulation, controller, state, t0, t1, dt, grid, save_ts)
    method = (solver, stepsize_controller, saveat, adjoint, _meter(progress), max_steps, work)
    # A failure that can be looked at is reported in our own words; one inside a transformation
    # can only be raised by diffrax.
    traced = not is_concrete(parts)
    trajectory = _integrate(parts, method, throw and traced)
    if throw and not traced and is_concrete(trajectory.result):
        raise_failure(trajectory)
    return trajectory


# Declarations that were checked: checking traces every function, which takes longer than many runs.
_checked: set = set()


def _check_structure(system, formulation, controller, state, t0) -> None:
    """Shapes of everything declared, once for each declaration and its shapes."""
    leaves, structure = jax.tree.flatten((system, formulation, controller, state))
    key = (
        structure,
        *((jnp.shape(x), str(jnp.result_type(x))) if is_number(x) else x for x in leaves),
    )
    if key in _checked:
        return
    check_system(system, state, u=_example_input(controller, t0, state), t=t0)
    formulation.check(system, state)
    _checked.add(key)


@eqx.filter_jit
def _integrate(parts, method, throw: bool) -> Trajectory:
    system, formulation, controller, state, t0, t1, dt, grid, save_ts = parts
    solver, stepsize_controller, saveat, adjoint, meter, max_steps, work = method
    y0 = formulation.init(system, t0, state)
    zero = jnp.zeros((), state.q.dtype)
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_vector_field),
        solver,
        t0,
        t1,
        dt,
        (y0, Power(zero, zero, zero, zero) if work else None),
        args=(system, formulation, controller),
        saveat=_with_final(saveat, save_ts),
        stepsize_controller=_controller(stepsize_controller, dt, grid, t0, t1),
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        progress_meter=meter,
        max_steps=max_steps,
        throw=throw,
    )
    return _trajectory(solution, saveat, (system, formulation, controller))


def _vector_field(t, y, args):
    y, work = y
    system, formulation, controller = args
    state = formulation.recover(system, t, y)
    u = control_input(controller, t, state)
    # At a singularity, infinities become NaN: step controllers reject NaN, but a trial state with
    # infinities makes their scaled error, and then the step itself, NaN.
    rate = formulation.vector_field(system, t, y, u)
    rate = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), rate)
    if work is None:
        return rate, None
    lam = formulation.multipliers(system, t, y, u)
    return rate, power_balance(system, t, state.q, state.v, state.w, u, lam)


def _trajectory(solution, saveat, run) -> Trajectory:
    """Mark what was not reached, and separate the final state from what the user saves."""
    (ts, (final_time,)), (saved, (final,)) = solution.ts, solution.ys
    final = jax.tree.map(lambda x: x[0], final)
    finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(final)]))
    # A fixed-step run goes on through NaN; diffrax calls that success.
    broken = ~finite & (solution.result == diffrax.RESULTS.successful)
    nonfinite: Any = diffrax.RESULTS.nonfinite  # inherited from optimistix
    result = diffrax.RESULTS.where(broken, nonfinite, solution.result)
    plain = _is_plain(saveat)
    work = None
    if plain and ts is not None:
        (saved, work), ts = saved, _mark(ts, saved)
    arrays, skeleton = eqx.partition(run, eqx.is_array)
    interpolation = solution.interpolation
    return Trajectory(
        ts, saved, final_time[0], final, result, solution.stats, interpolation, work,
        plain and ts is not None, arrays, skeleton,
    )  # fmt: skip


def _mark(ts, saved):
    """`inf` for the times at which the saved state is not finite."""
    rows = [jnp.isfinite(x).reshape(ts.size, -1).all(axis=1) for x in jax.tree.leaves(saved[0])]
    good = jnp.stack(rows).all(axis=0)
    return jnp.where(good, ts, jnp.inf)


def in_dtype(tree, dtype):
    """Every floating-point number and array of a pytree as an array of one precision.

    Python numbers would otherwise be compiled in, and a new value compile everything anew.
    """

    def convert(leaf):
        if isinstance(leaf, float) or eqx.is_inexact_array(leaf):
            return jnp.asarray(leaf, dtype)
        return leaf

    return jax.tree.map(convert, tree)


def _controller(given, dt, grid, t0, t1):
    if grid is not None:
        return diffrax.StepTo(grid)
    if given is not None:
        return given
    if dt is not None:
        return diffrax.ConstantStepSize()
    eps = float(jnp.finfo(t0.dtype).eps)
    tolerance = 1e-8 if eps < 1e-12 else 1e-5
    # Below this the time no longer advances by much more than its round-off.
    smallest = 64 * eps * jnp.maximum(jnp.abs(t0), jnp.abs(t1))
    return diffrax.PIDController(rtol=tolerance, atol=tolerance, dtmin=smallest, force_dtmin=False)


def _grid(t0, t1, dt, dtype) -> np.ndarray:
    """Ends of the fixed steps: as many as `dt` needs, all of one size, the last at `t1`.

    Given as numbers they are the same in the backward pass, which repeats steps. Where they are
    computed on the way (`diffrax.ConstantStepSize`), a saved time at the end of a step may by
    round-off lie on its other side there, and that row is lost from the gradient.
    """
    t0, t1, dt = (np.asarray(x, dtype) for x in (t0, t1, dt))
    steps = int(np.ceil(np.abs(t1 - t0) / np.nextafter(np.abs(dt), np.inf, dtype=dtype)))
    return np.linspace(t0, t1, max(steps, 1) + 1, dtype=dtype)


def _with_final(saveat, save_ts):
    """What the user saves, and the last state reached besides."""
    final = diffrax.SubSaveAt(t1=True, fn=lambda t, y, args: y[0])  # noqa: ARG005
    if saveat is None:
        return diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=save_ts), (final,)))
    subs = jax.tree.map(_on_state, saveat.subs, is_leaf=_is_sub)
    return eqx.tree_at(lambda s: s.subs, saveat, (subs, (final,)), is_leaf=lambda x: x is None)


def _on_state(sub):
    """A user's `fn(t, y, args)` sees the state; the standard one saves what was integrated."""
    if sub.fn is _STANDARD_SAVE:
        return sub

    def on_state(t, y, args, fn=sub.fn):
        system, formulation, _ = args
        return fn(t, formulation.recover(system, t, y[0]), args)

    return eqx.tree_at(lambda s: s.fn, sub, on_state)


def _is_sub(x) -> bool:
    return isinstance(x, diffrax.SubSaveAt)


def _is_plain(saveat) -> bool:
    if saveat is None:
        return True
    return _is_sub(saveat.subs) and saveat.subs.fn is _STANDARD_SAVE


def _meter(progress):
    if isinstance(progress, bool):
        return diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    return progress


def _example_input(controller, t, state):
    if controller is None:
        return None
    return eqx.filter_eval_shape(control_input, controller, jnp.asarray(t, state.q.dtype), state)


def _check_solver(solver, stepsize_controller, dt) -> None:
    """Refuse combinations of solver and step size that cannot work."""
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractSolver):
        raise ValueError(f"solver must be a diffrax solver; got {solver!r}.")
    structure = getattr(solver, "term_structure", None)
    if not (isinstance(structure, type) and issubclass(diffrax.ODETerm, structure)):
        raise ValueError(
            f"{name} does not integrate ordinary differential equations of one vector field, which "
            "is what a formulation gives; use an explicit or implicit Runge–Kutta method such as "
            "diffrax.Dopri8() or diffrax.Kvaerno5()."
        )
    if isinstance(stepsize_controller, diffrax.ConstantStepSize) and dt is None:
        raise ValueError("ConstantStepSize needs the step: give dt.")
    adaptive = isinstance(solver, diffrax.AbstractAdaptiveSolver)
    if isinstance(solver, diffrax.AbstractRungeKutta):
        adaptive = _has_error_estimate(solver)
    chooses = (
        dt is None
        if stepsize_controller is None
        else not isinstance(stepsize_controller, diffrax.ConstantStepSize | diffrax.StepTo)
    )
    if chooses and not adaptive:
        raise ValueError(
            f"{name} has no error estimate, so its step cannot be chosen automatically; give dt, "
            "or use a solver with one, such as diffrax.Dopri8()."
        )


def _has_error_estimate(solver: diffrax.AbstractRungeKutta) -> bool:
    tableaux = solver.tableau
    single = isinstance(tableaux, diffrax.ButcherTableau)
    parts = (tableaux,) if single else tableaux.tableaus
    return any(np.any(np.asarray(part.b_error)) for part in parts)


def _check_times(t0, t1, dt, stepsize_controller, max_steps: int) -> None:
    if not is_concrete(t0, t1, dt):
        return
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if value is not None and not np.isfinite(value):
            raise ValueError(f"{name} is not finite: {value}.")
    if dt is None:
        return
    if dt == 0 or (t1 - t0) * dt < 0:
        raise ValueError(f"dt = {dt} does not lead from t0 = {t0} to t1 = {t1}.")
    if stepsize_controller is None and (t1 - t0) / dt > max_steps:
        raise ValueError(
            f"{(t1 - t0) / dt:.0f} steps of {dt} s are more than max_steps = {max_steps}; "
            "give a larger max_steps."
        )
