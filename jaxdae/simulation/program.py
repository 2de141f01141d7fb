"""One run as a compiled program, by a kernel or by diffrax."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.held_rank import holding_rank
from jaxdae.kernels.launch.derivatives import shielded
from jaxdae.simulation import backends
from jaxdae.simulation.assumptions import DEPENDENT_START
from jaxdae.simulation.reverse_only import reverse_only
from jaxdae.simulation.starts import depends_on_rank, Start
from jaxdae.simulation.trajectory import control_input, Trajectory
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.projected import Projected
from jaxdae.systems import Power, power_balance, State, System
from jaxdae.systems.independence import are_dependent

_STANDARD_SAVE = diffrax.SubSaveAt(t1=True).fn


class Task(NamedTuple):
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


class Choice(NamedTuple):
    """The backend to try, whether it must be that one, why not the other, the direction of time."""

    backend: str
    strict: bool
    why_not: str | None
    direction: int | None


class Method(NamedTuple):
    """How it is simulated: settings that decide what is compiled."""

    solver: diffrax.AbstractSolver
    stepsize_controller: diffrax.AbstractStepSizeController | None
    saveat: diffrax.SaveAt | None
    adjoint: diffrax.AbstractAdjoint
    meter: diffrax.AbstractProgressMeter
    max_steps: int
    work: bool
    choice: Choice
    # Only the end is saved, what is saved on the way is to watch it.
    ends: bool = False


def integrate(task: Task, method: Method, throw: bool, judged: bool, declared) -> Trajectory:
    """Integrate a task: one compiled program for all that are of one kind.

    Args:
        task: what is simulated.
        method: how.
        throw: raise inside the program where a run fails.
        judged: whether the start is known to suit the formulation.
        declared: kinds of the plain numbers in the task.
    """
    del declared  # programs of 1, 1.0 and True are different ones
    formulation = holding_rank(task.formulation, task.system, task.t0, task.state)
    task = task._replace(formulation=formulation)
    run = (task.system, formulation, task.controller)
    zero = jnp.zeros((), task.state.q.dtype)
    work = Power(zero, zero, zero, zero) if method.work else None
    y0 = (formulation.init(task.system, task.t0, task.state), work)
    begun = y0 if judged else _if_independent(task, y0, throw, method.choice.backend)
    solution, choice = _solution(task, method, run, begun)
    solution = _on_constraints(solution, method, run, (task.t0, y0))
    trajectory = _trajectory(solution, method, run, (task.t0, y0[0]), choice)
    # All of it, so that whatever is read of a failed run inside a transformation raises.
    return trajectory.result.error_if(trajectory, ~trajectory.success) if throw else trajectory


def _if_independent(task: Task, y0, throw: bool, backend: str):
    """A start, NaN where constraints are dependent and the formulation cannot take that."""
    start = Start(task.system, task.state, task.t0)
    assumed = task.formulation.assumptions().independent_constraints
    if not (assumed and depends_on_rank(task.formulation, start)):
        return y0
    kernel = backends.native_reading if backend == "native" else None
    bad = are_dependent(task.system, task.t0, task.state, kernel)
    y0 = eqx.error_if(y0, bad, DEPENDENT_START) if throw else y0
    return jax.tree.map(lambda x: jnp.where(bad, jnp.nan, x), y0)


def _solution(task: Task, method: Method, run, y0) -> tuple[Any, Choice]:
    """What a run gives, and by which backend."""
    choice = method.choice
    if choice.backend == "native":
        try:
            solution = _by_kernel(task, method, run, y0)
            left = " ".join(x for x in (choice.why_not, solution.left) if x) or None
            return solution, choice._replace(why_not=left)
        except backends.Unsuited as reason:
            if choice.strict:
                raise backends.refused(reason) from None
            choice = choice._replace(backend="plain", why_not=str(reason))
    return _by_diffrax(task, method, run, y0, choice.why_not), choice


def _by_kernel(task: Task, method: Method, run, y0) -> backends.Solution:
    saveat = diffrax.SaveAt(ts=task.save_ts) if method.saveat is None else method.saveat
    controller = None if task.grid is not None else _controller(method.stepsize_controller, task)
    plan = backends.Plan(
        _field, _vector_field, run, y0, method.solver, controller, task.grid, task.t0, task.t1,
        task.dt, saveat.subs, method.choice.direction, method.max_steps, method.choice.strict,
    )  # fmt: skip
    solution = backends.solve(plan)
    rows, ((final, _),) = solution.ys
    return solution._replace(ys=(rows, (final,)))


def _by_diffrax(task: Task, method: Method, run, y0, why: str | None) -> diffrax.Solution:
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


def _on_constraints(solution, method: Method, run, start):
    """Saved states between the steps of a projected solver go to the constraints as well."""
    saveat, solver = method.saveat, method.solver
    between = saveat is None or (is_sub(saveat.subs) and saveat.subs.ts is not None)
    if method.ends or not (isinstance(solver, Projected) and between and is_plain(saveat)):
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


def _trajectory(solution, method: Method, run, start, choice: Choice) -> Trajectory:
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
    plain = is_plain(saveat) and ts is not None
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
        plain, arrays, skeleton, choice.backend, choice.why_not,
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


def _controller(given, task: Task):
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


def _with_final(method: Method, save_ts):
    """What the user saves, and the last state reached besides."""
    saveat, solver = method.saveat, method.solver
    final = diffrax.SubSaveAt(t1=True, fn=lambda t, y, args: y[0])  # noqa: ARG005
    if saveat is None:
        return diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=save_ts), (final,)))
    project = solver.project if isinstance(solver, Projected) else None
    # Rows of a single one are projected afterwards, all at once.
    later = project is None or is_sub(saveat.subs)
    subs = jax.tree.map(lambda sub: _on_state(sub, project, later), saveat.subs, is_leaf=is_sub)
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


def is_sub(x) -> bool:
    """Whether something is one of several descriptions of what is saved."""
    return isinstance(x, diffrax.SubSaveAt)


def is_plain(saveat) -> bool:
    """Whether states are saved, and not what the user makes of them."""
    if saveat is None:
        return True
    return is_sub(saveat.subs) and saveat.subs.fn is _STANDARD_SAVE
