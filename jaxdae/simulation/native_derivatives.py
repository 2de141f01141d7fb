"""Native runs by diffrax, for the derivatives that no kernel has."""

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.functions import FORWARD, Function, REVERSE
from jaxdae.derivatives.perturbation import stopped, tolerances
from jaxdae.kernels.integration.arguments import jumps_of, StepSummary
from jaxdae.kernels.integration.run import KernelRun
from jaxdae.simulation.problem import Times
from jaxdae.simulation.saving import STEP_ENDS
from jaxdae.solvers.chosen_steps import ChosenSteps, following
from jaxdae.solvers.grid import Grid, ToKnownEnds
from jaxdae.solvers.monitored import solve_until
from jaxdae.solvers.perturbed import PerturbedSteps

# What derivatives of a mode go through; `DirectAdjoint` has all of them, but takes more time.
_ADJOINTS: dict[str, Callable[[], diffrax.AbstractAdjoint]] = {
    FORWARD: diffrax.ForwardMode,
    REVERSE: diffrax.RecursiveCheckpointAdjoint,
}


def plain_run(
    run: KernelRun,
    term_of: Callable,
    solver,
    parts: Callable,
    sign: Callable,
    *,
    perturbed: bool,
) -> Function:
    """What a native run computes, by diffrax.

    Args:
        run: the native run.
        term_of: what a solver steps, from the solver.
        solver: the method.
        parts: `args`, the step size controller and the event, from the parameters.
        sign: 1 or -1, from the parameters: kernels take times as increasing.
        perturbed: whether adaptive steps suit derivatives as well.

    Returns:
        A function of the arguments of the kernel, with its results.
    """
    count = len(run.problem.parameters)
    one_way = any(x.one_way for x in run.problem.own_rules)

    def base(mode: str, y, *values) -> list[jax.Array]:
        parameters, s = values[:count], sign(values[:count])
        times, ends = _times(run, list(values[count:]), s)
        args, controller, event = parts(parameters)
        if ends is not None:
            ends, jumps = (s * x for x in jumps_of(ends))
            if isinstance(controller, ToKnownEnds):
                controller = Grid(ends)
            else:
                controller = diffrax.ClipStepSizeController(controller, ends, jumps)
        t0, t1, dt = times.start, times.end, times.first_step
        steps, y0 = solver, run.problem.unravel(y)
        # Rows at the steps are those of the kernel's.
        suited = perturbed and run.adaptive and not (one_way or run.saving.every)
        if suited and tolerances(controller) is not None:
            steps = PerturbedSteps(solver, controller, event is not None)
            if event is None:  # steps are chosen by a run without derivatives
                fixed: Any = stopped((term_of(solver), t0, t1, dt, y0, args))
                terms, begin, end, first, start, parts_there = fixed
                made, _ = solve_until(
                    None, s, terms, steps, begin, end, first, start, args=parts_there,
                    saveat=STEP_ENDS, adjoint=diffrax.ForwardMode(),
                    stepsize_controller=stopped(controller), max_steps=run.max_steps, throw=False,
                )  # fmt: skip
                chosen = ChosenSteps.of(made.ts, t0, t1, made.result)
                steps, controller = solver, following(controller, chosen)
        adjoint = _ADJOINTS.get(mode, diffrax.DirectAdjoint)()
        result, misfit = solve_until(
            event, s, term_of(solver), steps, t0, t1, dt, y0, args=args,
            saveat=_saveat(run, times.saved), adjoint=adjoint,
            stepsize_controller=controller if times.grid is None else Grid(times.grid),
            max_steps=run.max_steps, throw=False,
        )  # fmt: skip
        more = [] if misfit is None else [jnp.stack(misfit)]
        more += [jnp.zeros(run.problem.counted, run.problem.dtype)] if run.counts_steps else []
        return [*_as_kernels_do(run, result, s), *more]

    shapes = (jax.ShapeDtypeStruct(x, run.problem.dtype) for x in run.results())
    return Function(base, tuple(shapes), one_way=one_way)


def _times(run: KernelRun, times: list, s) -> tuple[Times, Any]:
    """Times of the run; those at which adaptive steps end, as the kernel takes them, or `None`."""
    ts = s * times.pop() if run.saving.times else None
    ends = times.pop() if run.step_ends else None
    times = [s * x for x in times]
    if not run.adaptive:
        (grid,) = times
        return Times(grid[0], grid[-1], None, grid, ts), ends
    t0, t1, _, *first = times
    return Times(t0, t1, first[0] if first else None, None, ts), ends


def _saveat(run: KernelRun, ts) -> diffrax.SaveAt:
    saving = run.saving
    end = diffrax.SubSaveAt(t1=True)
    if not run.rows:
        return diffrax.SaveAt(subs=(end,))
    return diffrax.SaveAt(subs=(diffrax.SubSaveAt(t0=saving.start, ts=ts, steps=saving.every), end))


def _as_kernels_do(run: KernelRun, result, s) -> list[jax.Array]:
    """Rows, final state, and of adaptive steps the times of both."""
    dtype = run.problem.dtype
    flat = jax.vmap(lambda tree: ravel_pytree(tree)[0])
    final, end = flat(result.ys[-1])[0], result.ts[-1][0]
    rows = flat(result.ys[0]) if run.rows else jnp.zeros((0, final.size), dtype)
    if not run.adaptive:
        return [rows, final]
    times = s * result.ts[0] if run.rows else jnp.zeros(0, dtype)
    zero = jnp.zeros((), dtype)
    summary = StepSummary(s * end, zero, zero, zero, zero)
    return [rows, final, times, jnp.stack(summary)]
