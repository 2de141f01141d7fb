"""The native backend: a kernel of machine code that integrates a run."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox.internal as eqxi
import jax
import jax.numpy as jnp

from jaxdae.compiled import BRIEFLY
from jaxdae.kernels.integration.arguments import StepCounts, StepSummary
from jaxdae.kernels.launch import obstacles
from jaxdae.memory import Memory
from jaxdae.simulation.backends import AbstractBackend
from jaxdae.simulation.kernel_plan import KernelPlan, planned
from jaxdae.simulation.plain import PlainBackend
from jaxdae.simulation.problem import Integration, Method, Times
from jaxdae.simulation.saving import is_plain, row_times
from jaxdae.solvers.constrained_term import enforces_constraints
from jaxdae.solvers.counted import IterationTotals
from jaxdae.solvers.grid import known_ends
from jaxdae.solvers.kernel_steps import step_method
from jaxdae.solvers.monitored import Misfit
from jaxdae.solvers.projected import is_symmetric, stepping
from jaxdae.solvers.sampled import SampleSteps

# Numbers that a function of one row takes: its derivatives by all of them are written out.
_MOST_READ = 256
# Integrations of this many systems, formulations and methods are kept.
_INTEGRATIONS = Memory(64)
_LOCK = threading.RLock()


class NativeBackend(AbstractBackend):
    """Runs by native kernels: Runge-Kutta methods, explicit or diagonally implicit, and Rodas5P."""

    name: ClassVar[str] = "native"
    # All that takes time is in the kernel.
    options: ClassVar[dict[str, Any]] = BRIEFLY

    @property
    def kernel(self) -> Callable | None:
        return kernel_of if obstacles.obstacle() is None else None

    def obstacle(self, formulation, method: Method) -> str | None:
        missing = obstacles.obstacle()
        return unsuited(formulation, method) if missing is None else missing

    def solve(self, problem: Any, method: Method, y0) -> Integration:
        from jaxdae.kernels.integration.run import integrate

        times = problem.times
        saveat = diffrax.SaveAt(ts=times.saved) if method.saveat is None else method.saveat
        sub: Any = saveat.subs
        plan, numbers = planned(problem, method, sub, y0)
        with _LOCK:  # JAX may trace in several threads
            run = _INTEGRATIONS.get(plan.key(), (plan.static, plan.solver), plan.integration)
        sign = jnp.where(times.start <= times.end, 1.0, -1.0).astype(times.start.dtype)
        asked = _increasing(times, plan, sub, sign, method.stepsize_controller)
        rows, final, *more = integrate(run, *numbers, asked)
        misfit, counts = None, more.pop() if run.counts_steps else None
        if problem.event is not None:
            size, which, at = more.pop()
            misfit = Misfit(size, which, sign * at)
        steps = _adaptive(sign, more, counts) if plan.adaptive else _fixed(times, sub)
        if sub.t1 and not (sub.steps == 1 or steps.on_rows):
            # Behind the last row that was reached.
            rows = _with_row(rows, final, steps.reached)
            steps = steps._replace(ts=_with_row(steps.ts, steps.end_time, steps.reached))
        end = plan.unravel(final)
        return Integration(
            self, steps.ts, _as_trees(rows, plan.unravel, end), steps.end_time, end[0],
            _stats(steps, method), steps.result, why_not=_why_not(method, run.own_rule),
            misfit=misfit,
        )  # fmt: skip

    def reader(self, function: Callable, row, parts, *, by_system: bool) -> Callable:
        # The controller's arrays, which come last, are not read.
        *read, rest = parts

        def of_arrays(t, y, arrays):
            return function(t, y, (*arrays, rest))

        kernel = row_kernel(of_arrays, *row, tuple(read)) if by_system else None
        if kernel is None:
            return PlainBackend().reader(function, row, parts, by_system=by_system)
        return lambda t, y: kernel(t, y, tuple(read))


# What it can integrate.


def unsuited(formulation, method: Method) -> str | None:
    """Why no kernel of any machine can be made of a run, in words; `None` where one can."""
    checks = (
        formulation.capabilities.obstacle,
        _of_solver(method.solver),
        _of_constraints(formulation, method.solver),
        _of_controller(method.stepsize_controller),
        _of_saveat(method.saveat, method.stepsize_controller),
        _of_settings(method.adjoint, method.meter),
    )
    return next((x for x in checks if x is not None), None)


def _of_solver(solver) -> str | None:
    method = step_method(stepping(solver))
    return method if isinstance(method, str) else None


def _of_constraints(formulation, solver) -> str | None:
    symmetric = is_symmetric(solver)
    if formulation.capabilities.independent_constraints or not (
        symmetric or enforces_constraints(solver)
    ):
        return None
    # Of one solution among many an elimination without choice of pivots has no digits.
    name = "a symmetric projection" if symmetric else type(solver).__name__
    return f"constraints may depend on each other, which {name} solves by pivoting"


def _of_controller(controller) -> str | None:
    controller = known_ends(controller).controller
    controller = controller.controller if isinstance(controller, SampleSteps) else controller
    if controller is None or type(controller) is diffrax.PIDController:
        return None
    return f"steps are chosen by {type(controller).__name__}, not by diffrax.PIDController"


def _of_saveat(saveat, controller) -> str | None:
    if saveat is None:
        return None
    sub = saveat.subs
    if saveat.dense or not is_plain(saveat):
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


# Times and rows.


def _increasing(times: Times, plan: KernelPlan, sub, sign, controller) -> list:
    """Times as the kernel takes them."""
    from jaxdae.kernels.integration.arguments import step_ends

    ts = [sign * sub.ts] if plan.saving.times else []
    if not plan.adaptive:
        return [sign * times.grid, *ts]
    end = sign * times.end
    # Diffrax, too, goes to the end from so close to it.
    floor = jax.lax.fori_loop(0, 100, lambda _, x: eqxi.prevbefore(x), jax.lax.stop_gradient(end))
    first = [] if times.first_step is None else [sign * times.first_step]
    ends = known_ends(controller)
    if plan.step_ends:
        steps, jumps = (None if x is None else sign * x for x in (ends.steps, ends.jumps))
        first.append(step_ends(steps, jumps, times.start.dtype))
    return [sign * times.start, end, floor, *first, *ts]


class _Steps(NamedTuple):
    """Steps that were made, times and number of the rows; `on_rows` where the end is the last."""

    ts: Any
    end_time: Any
    made: Any
    accepted: Any
    result: Any
    reached: Any
    on_rows: bool
    counts: IterationTotals | None = None


def _adaptive(sign, more, counts) -> _Steps:
    times, numbers = more
    summary = StepSummary(*numbers)
    return _Steps(
        jnp.where(jnp.isfinite(times), sign * times, jnp.inf),
        sign * summary.time,
        summary.steps.astype(int),
        summary.accepted.astype(int),
        _result(summary.result),
        summary.rows.astype(int),
        on_rows=False,
        counts=None if counts is None else IterationTotals(*StepCounts(*counts)),
    )


def _fixed(times: Times, sub) -> _Steps:
    ts = row_times(sub, times)
    steps = len(times.grid) - 1
    end = jnp.asarray(times.grid[-1], times.start.dtype)
    on_rows = bool(sub.steps) and steps % sub.steps == 0
    return _Steps(ts, end, steps, steps, diffrax.RESULTS.successful, len(ts), on_rows)


def _stats(steps: _Steps, method: Method) -> dict[str, Any]:
    counts = (steps.made, steps.accepted, steps.made - steps.accepted)
    names = ("num_steps", "num_accepted_steps", "num_rejected_steps")
    stats: dict[str, Any] = dict(zip(names, map(jnp.asarray, counts), strict=True))
    took = {} if steps.counts is None else steps.counts.stats()
    return {**stats, **took, "max_steps": method.max_steps}


def _why_not(method: Method, own_rule: str | None) -> str | None:
    """What derivatives are left to the plain program, in words."""
    rule = None if method.strict else own_rule
    left = None if rule is None else f"only second derivatives are not native: {rule}"
    return " ".join(x for x in (method.why_not, left) if x) or None


def _as_trees(rows, unravel, end):
    """States of all rows, as pytrees."""
    if rows.shape[0]:
        return jax.vmap(unravel)(rows)
    return jax.tree.map(lambda x: jnp.zeros((0, *x.shape), x.dtype), end)


def _with_row(rows, row, at):
    """One row more, at a place behind which there is nothing yet."""
    return jnp.concatenate([rows, jnp.full_like(row, jnp.inf)[None]]).at[at].set(row)


def _result(code):
    result: Any = diffrax.RESULTS.successful
    for item in (
        diffrax.RESULTS.max_steps_reached,
        diffrax.RESULTS.dt_min_reached,
        diffrax.RESULTS.event_occurred,
    ):
        one: Any = item
        result = diffrax.RESULTS.where(code == one._value, one, result)
    return result


# Functions of rows.


def row_kernel(function: Callable, *examples) -> Callable | None:
    """A function of one row of a native run as a kernel.

    Args:
        function: of arrays in any pytrees.
        examples: its arguments.

    Returns:
        The kernel; `None` where the function cannot be made one, or has so many parameters that
        its derivatives by all of them would fill the memory.
    """
    if sum(x.size for x in jax.tree.leaves(examples)) > _MOST_READ:
        return None
    return kernel_of(function, *examples)


def kernel_of(function: Callable, *examples) -> Callable | None:
    """The same of a function that nobody differentiates, of any number of parameters."""
    from jaxdae.kernels import native
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError

    try:
        return native(function, *examples, strict=False)
    except (UnsupportedOperationError, TypeError):  # a TypeError tells of numbers of other types
        return None
