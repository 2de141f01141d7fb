"""The two backends of a simulation: diffrax, compiled by XLA, or a native kernel."""

import threading
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.formulations import SparseMultipliers
from jaxdae.kernels.integration.run import BackendError as BackendError, TIMES
from jaxdae.kernels.integration.saving import Saving, Summary
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.memory import Memory
from jaxdae.solvers.kernel_steps import step_method
from jaxdae.solvers.projected import Projected
from jaxdae.systems.checks import is_concrete

Backend = Literal["auto", "plain", "native"]
_STANDARD_SAVE = diffrax.SubSaveAt(t1=True).fn
# The time to compile a kernel grows with its operations: at this many states it is seconds.
_MOST_STATES = 256
# Programs of this many systems, formulations and methods are kept.
_REMEMBERED = 64


class Unsuited(Exception):  # noqa: N818
    """Why a simulation cannot be made a kernel."""


class Solution(NamedTuple):
    """What a native run gives, in the shape of `diffrax.Solution`.

    Args:
        ts: times of the rows, and of the end.
        ys: the rows, and the end.
        stats: numbers of steps.
        result: how it ended.
        left: what the plain program does for it, in words; `None` for nothing that is known here.
        interpolation: none.
    """

    ts: Any
    ys: Any
    stats: dict[str, Any]
    result: diffrax.RESULTS
    left: str | None = None
    interpolation: None = None


def obstacle(formulation, solver, stepsize_controller, saveat, adjoint, meter) -> str | None:
    """Why settings do not suit the native backend; `None` where they do.

    Args:
        formulation: of `simulate`.
        solver: of `simulate`.
        stepsize_controller: of `simulate`; `None` for its default or for fixed steps.
        saveat: of `simulate`, or `None`.
        adjoint: of `simulate`.
        meter: progress meter.

    Returns:
        The reason in words.
    """
    missing = machine_code.obstacle()
    if missing is not None:
        return missing
    if jax.default_backend() != "cpu":
        return f"JAX computes on {jax.default_backend()}, native kernels on processors"
    if isinstance(formulation, SparseMultipliers):
        return "SparseMultipliers is for more bodies than can be taken apart"
    checks = (
        _of_solver(solver),
        _of_controller(stepsize_controller),
        _of_saveat(saveat, stepsize_controller),
        _of_settings(adjoint, meter),
    )
    return next((x for x in checks if x is not None), None)


def _of_solver(solver) -> str | None:
    method = step_method(_parts(solver)[0])
    return method if isinstance(method, str) else None


def _parts(solver) -> tuple[Any, Projected | None]:
    """The method, and what projects its steps."""
    return (solver.solver, solver) if isinstance(solver, Projected) else (solver, None)


def _of_controller(controller) -> str | None:
    if controller is None or type(controller) is diffrax.PIDController:
        return None
    return f"steps are chosen by {type(controller).__name__}, not by diffrax.PIDController"


def _of_saveat(saveat, controller) -> str | None:
    if saveat is None:
        return None
    sub = saveat.subs
    if saveat.dense or not isinstance(sub, diffrax.SubSaveAt) or sub.fn is not _STANDARD_SAVE:
        return "SaveAt asks for more than plain states"
    if sub.steps and sub.ts is not None:
        return "SaveAt asks for times and steps together"
    if sub.steps > 1 and sub.t1 and controller is not None:
        return "SaveAt asks for some of the steps and the end"
    return None


def _of_settings(adjoint, meter) -> str | None:
    kinds = (diffrax.RecursiveCheckpointAdjoint, diffrax.ForwardMode, diffrax.DirectAdjoint)
    if type(adjoint) not in kinds:
        return f"{type(adjoint).__name__} is an adjoint of its own"
    quiet = isinstance(meter, diffrax.NoProgressMeter)
    return None if quiet else "a progress meter is to be shown"


class Plan(NamedTuple):
    """A run for the native backend.

    Args:
        field: `dy/dt = field(t, y, run)` on pytrees.
        plain_field: the same, as the plain backend takes it.
        run: what the field depends on; its arrays are parameters.
        y0: start.
        solver: explicit Runge-Kutta method.
        controller: step size controller, or `None` for fixed steps.
        grid: ends of fixed steps, or `None`.
        t0: start time.
        t1: end time.
        dt: first step, or `None`.
        sub: what is saved.
        direction: 1 or -1, or `None` where it is known only when the run is made.
        max_steps: largest number of steps.
        strict: whether derivatives that no kernel has are refused.
    """

    field: Callable
    plain_field: Callable
    run: Any
    y0: Any
    solver: Any
    controller: Any
    grid: Any
    t0: Any
    t1: Any
    dt: Any
    sub: diffrax.SubSaveAt
    direction: int | None
    max_steps: int
    strict: bool


def choose(backend: Backend, why_not: str | None) -> str:
    """The backend to try.

    Args:
        backend: what was asked for.
        why_not: an obstacle to the native backend, or `None`.

    Returns:
        `"plain"` or `"native"`.

    Raises:
        BackendError: when the native backend is asked for and cannot serve.
        ValueError: for a backend that does not exist.
    """
    if backend not in ("auto", "plain", "native"):
        raise ValueError(f"backend is {backend!r}; give 'auto', 'plain' or 'native'.")
    if backend == "auto" and why_not is not None and why_not == machine_code.without_llvm():
        machine_code.warn_without_llvm(why_not)
    if backend == "plain" or (backend == "auto" and why_not is not None):
        return "plain"
    if why_not is not None:
        raise BackendError(f"{_REFUSAL} {why_not}. Use backend='auto' or 'plain'.")
    return "native"


_REFUSAL = "the native backend cannot serve this simulation:"


def checked(saveat, t0, t1, dt):
    """Times that are computed on the way, to be checked when the program runs, as diffrax does.

    Args:
        saveat: of `simulate`, or `None`.
        t0: start time.
        t1: end time.
        dt: first step, or `None`.

    Returns:
        `saveat` and `t1`, which raise an error where a time does not fit.
    """
    if dt is not None and not is_concrete(t0, t1, dt):
        t1 = eqx.error_if(t1, (t1 - t0) * dt < 0, "dt does not lead from t0 to t1.")
    ts = None if saveat is None else saveat.subs.ts
    if ts is None or np.size(ts) == 0 or is_concrete(t0, t1, ts):
        return saveat, t1
    low, high = jnp.minimum(t0, t1), jnp.maximum(t0, t1)
    wrong = jnp.any(jnp.diff(ts) * jnp.sign(t1 - t0) < 0) | jnp.any((ts < low) | (ts > high))
    ts = eqx.error_if(
        jnp.asarray(ts),
        wrong,
        "SaveAt(ts=...) must lie between t0 and t1, in the order in which the times are reached.",
    )
    return eqx.tree_at(lambda s: s.subs.ts, saveat, ts), t1


def left_to_plain(backend: Backend, task, saveat) -> str | None:
    """What the plain program does for a native run, in words; `None` for nothing.

    Args:
        backend: what was asked for.
        task: times of the run, among other things.
        saveat: of `simulate`, or `None`.
    """
    times = (task.t0, task.t1, task.dt, None if saveat is None else saveat.subs.ts)
    return None if backend == "native" or is_concrete(times) else f"only {TIMES}"


def direction(t0, t1) -> int | None:
    """1 for a run forward in time, -1 backward; `None` where that is not known yet."""
    if not is_concrete(t0, t1):
        return None
    return 1 if t0 <= t1 else -1


def refused(reason: Unsuited) -> BackendError:
    """The error where the native backend was asked for by name."""
    return BackendError(f"{_REFUSAL} {reason} Use backend='auto' or 'plain'.")


def solve(plan: Plan) -> Solution:
    """Carry a run out by a native kernel.

    Args:
        plan: the run.

    Returns:
        `Solution`, whose rows are arranged as diffrax arranges them.

    Raises:
        Unsuited: when it cannot be made a kernel.
    """
    from jaxdae.kernels.integration.integrate import integrate

    sign = jnp.where(plan.t0 <= plan.t1, 1.0, -1.0).astype(plan.t0.dtype)
    given, static = eqx.partition((plan.run, plan.controller), eqx.is_array)
    leaves, structure = jax.tree.flatten(given)
    if any(not jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
        raise Unsuited("a parameter is an array that holds no floating-point numbers")
    flat, unravel = ravel_pytree(plan.y0)
    if flat.size > _MOST_STATES:
        raise Unsuited(f"{flat.size} states are more than {_MOST_STATES}, too many to take apart.")
    if plan.grid is None and plan.max_steps * jnp.finfo(flat.dtype).eps > 1:
        raise Unsuited(f"{plan.max_steps} steps cannot be counted in {flat.dtype}.")
    with _LOCK:  # JAX may trace in several threads
        run = _remembered(plan, static, structure, leaves, flat, unravel)
    parameters = [*leaves, *([sign] if plan.direction is None else [])]
    found = integrate(run, flat, parameters, _times(plan, run, sign))
    return _solution(plan, run, found, unravel, sign)


def native_reading(function: Callable, *examples) -> Callable | None:
    """A function of one row of a native run as a kernel.

    Args:
        function: of arrays in any pytrees.
        examples: its arguments.

    Returns:
        The kernel; `None` where the function cannot be made one, or has so many parameters that
        its derivatives by all of them would fill the memory.
    """
    from jaxdae.kernels import native
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError

    if sum(x.size for x in jax.tree.leaves(examples)) > _MOST_STATES:
        return None
    try:
        return native(function, *examples, strict=False)
    except (UnsupportedOperationError, TypeError):  # a TypeError tells of numbers of other types
        return None


def _times(plan: Plan, run, sign) -> list:
    """Times as the kernel takes them, increasing."""
    ts = [sign * plan.sub.ts] if run.saving.times else []
    if not run.adaptive:
        return [sign * plan.grid, *ts]
    end = sign * plan.t1
    # Diffrax, too, goes to the end from so close to it.
    floor = jax.lax.fori_loop(0, 100, lambda _, x: eqxi.prevbefore(x), jax.lax.stop_gradient(end))
    first = [] if plan.dt is None else [sign * plan.dt]
    return [sign * plan.t0, end, floor, *first, *ts]


def _remembered(plan: Plan, static, structure, leaves, flat, unravel):
    """The compiled form; that of an equal plan is used again."""
    pieces, shape = jax.tree.flatten(static)
    starts, start_shape = jax.tree.flatten(plan.y0)
    # Of equal entries in all, states may still be divided differently among their parts.
    kinds = tuple((x.shape, str(x.dtype)) for x in (*leaves, *starts))
    key = (
        plan.field, tuple(pieces), shape, structure, plan.solver, plan.direction, kinds,
        start_shape, str(flat.dtype), _saving(plan), plan.grid is None, plan.dt is None,
        plan.max_steps, plan.strict,
    )  # fmt: skip
    return _RUNS.get(
        key,
        (static, plan.solver, plan.field),
        lambda: _made(plan, static, structure, leaves, flat, unravel),
    )


_RUNS = Memory(_REMEMBERED)
_LOCK = threading.RLock()


def _saving(plan: Plan):
    """What the kernel saves, and in how many rows; the state at the end is added afterwards."""
    sub = plan.sub
    steps = plan.max_steps if plan.grid is None else len(plan.grid) - 1
    rows = int(sub.t0) + (steps // sub.steps if sub.steps else 0)
    rows += 0 if sub.ts is None else int(np.size(sub.ts))
    return Saving(sub.t0, sub.steps, sub.ts is not None and np.size(sub.ts) > 0), rows


def _made(plan: Plan, static, structure, leaves, flat, unravel):
    from jaxdae.kernels.integration.initial_value import InitialValueProblem
    from jaxdae.kernels.integration.run import Run
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError
    from jaxdae.simulation.plain_runs import plain_run

    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves]
    if plan.direction is None:
        shapes.append(jax.ShapeDtypeStruct((), flat.dtype))

    def parts(parameters):
        return eqx.combine(jax.tree.unflatten(structure, parameters[: len(leaves)]), static)

    def rhs(t, y, *parameters):
        sign = parameters[-1] if plan.direction is None else plan.direction

        def field(s):
            # Constants of double precision may stand in a system of single precision.
            rate = ravel_pytree(plan.field(s, unravel(y), parts(parameters)[0]))[0]
            return rate.astype(flat.dtype)

        return field(t) if isinstance(sign, int) and sign == 1 else sign * field(sign * t)

    def moved(t, y, *parameters):
        assert projected is not None
        sign = parameters[-1] if plan.direction is None else plan.direction
        return ravel_pytree(projected.project(sign * t, unravel(y), parts(parameters)[0]))[0]

    controller = None if plan.grid is not None else lambda *parameters: parts(parameters)[1]
    solver, projected = _parts(plan.solver)
    problem = InitialValueProblem(
        rhs, flat.size, tuple(shapes), step_method(solver), controller, unravel, flat.dtype,
        project=None if projected is None else moved,
    )  # fmt: skip
    saving, rows = _saving(plan)
    run = Run(problem, saving, rows, plan.max_steps, plan.dt is not None, strict=plan.strict)
    try:
        run.programs()
    except UnsupportedOperationError as error:
        raise Unsuited(str(error)) from None
    sign = lambda parameters: parameters[-1] if plan.direction is None else plan.direction  # noqa: E731
    return run._replace(plain=plain_run(run, plan.plain_field, plan.solver, parts, sign))


def _solution(plan: Plan, run, found, unravel, sign) -> Solution:
    rows, final, *more = found
    describe = _adaptive if run.adaptive else _fixed
    ts, final_time, counts, result = describe(plan, sign, *more)
    sub = plan.sub
    if sub.t1 and not (sub.steps and _ends_on_a_row(plan, run)):
        # Behind the last row that was reached.
        at = Summary(*more[1]).rows.astype(int) if run.adaptive else len(ts)
        rows, ts = _with_row(rows, final, at), _with_row(ts, final_time, at)
    end = (jax.tree.map(lambda x: x[None], unravel(final)),)
    names = ("num_steps", "num_accepted_steps", "num_rejected_steps")
    stats: dict[str, Any] = dict(zip(names, map(jnp.asarray, counts), strict=True))
    stats["max_steps"] = plan.max_steps
    rule = None if plan.strict else run.own_rule
    left = None if rule is None else f"only second derivatives are not native: {rule}"
    saved = (_rows(rows, unravel, final), end)
    return Solution((ts, (final_time[None],)), saved, stats, result, left)


def _rows(rows, unravel, final):
    """States of all rows, as pytrees."""
    if rows.shape[0]:
        return jax.vmap(unravel)(rows)
    return jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), unravel(final))


def _adaptive(plan: Plan, sign, times, numbers):
    """Times of the rows and of the end, numbers of steps, result: of adaptive steps."""
    del plan
    ts = jnp.where(jnp.isfinite(times), sign * times, jnp.inf)
    summary = Summary(*numbers)
    steps, accepted = summary.steps.astype(int), summary.accepted.astype(int)
    counts = (steps, accepted, steps - accepted)
    return ts, sign * summary.time, counts, _result(summary.result)


def _fixed(plan: Plan, sign):
    """The same of fixed steps."""
    del sign
    steps = len(plan.grid) - 1
    successful: Any = diffrax.RESULTS.successful
    final_time = jnp.asarray(plan.grid[-1], plan.t0.dtype)
    return _grid_times(plan), final_time, (steps, steps, 0), successful


def _with_row(rows, row, at):
    """One row more, at a place behind which there is nothing yet."""
    return jnp.concatenate([rows, jnp.full_like(row, jnp.inf)[None]]).at[at].set(row)


def _ends_on_a_row(plan: Plan, run) -> bool:
    return plan.sub.steps == 1 or (not run.adaptive and (len(plan.grid) - 1) % plan.sub.steps == 0)


def _grid_times(plan: Plan):
    """Times of the rows of a run with fixed steps."""
    sub, dtype = plan.sub, plan.t0.dtype
    parts = [jnp.asarray(plan.t0)[None]] if sub.t0 else []
    if sub.steps:
        parts.append(jnp.asarray(plan.grid)[sub.steps :: sub.steps])
    if sub.ts is not None:
        parts.append(jnp.asarray(sub.ts))
    return jnp.concatenate([x.astype(dtype) for x in parts]) if parts else jnp.zeros(0, dtype)


def _result(code):
    found: Any = diffrax.RESULTS.successful
    for item in (diffrax.RESULTS.max_steps_reached, diffrax.RESULTS.dt_min_reached):
        one: Any = item
        found = diffrax.RESULTS.where(code == one._value, one, found)
    return found
