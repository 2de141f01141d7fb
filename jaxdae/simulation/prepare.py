"""What `simulate` is asked for, checked and completed: a problem and a method."""

import warnings

import diffrax
import equinox as eqx
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxdae.control.base import closed_loop
from jaxdae.kernels.integration.run import TIMES
from jaxdae.simulation import arguments, backends, preconditions, starts
from jaxdae.simulation.backward import start_warning
from jaxdae.simulation.invalid import invalidated
from jaxdae.simulation.problem import DEFAULT_TIMES, Method, Problem, Times
from jaxdae.simulation.run import NATIVE
from jaxdae.simulation.saving import asked_times, is_end
from jaxdae.simulation.starts import Start
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.projected import parts_of, Projected
from jaxdae.systems.checks import is_concrete
from jaxdae.systems.precision import in_dtype, known_array


def prepare(
    system, formulation, state, *, t0, t1, dt, solver, stepsize_controller, saveat, controller,
    adjoint, backend, progress, throw, work, start_tolerance, max_steps,
) -> tuple[Problem, Method]:  # fmt: skip
    """Check the arguments of `simulate`, complete them by its defaults, and choose the backend.

    Raises:
        ValueError: as `simulate` does, and its other errors before any work.
    """
    begun = state
    system, state, inner, plant = closed_loop(system, controller, state, t0)
    arguments.check_kinds(system, formulation, state, inner, adjoint, saveat, progress, throw, work)
    arguments.check_times(t0, t1, dt, stepsize_controller, saveat, max_steps)
    solver = diffrax.Dopri8() if solver is None else solver
    preconditions.check_solver(solver, formulation, stepsize_controller, dt, work)
    if formulation.capabilities.passes_singular_positions and parts_of(solver).projection is None:
        solver = Projected(solver)
    preconditions.check_projection(solver, formulation)
    dtype = state.q.dtype
    system, formulation, inner = in_dtype((system, formulation, inner), dtype)
    preconditions.check_declaration(system, formulation, inner, state, t0)

    times = _times(t0, t1, dt, stepsize_controller, saveat, dtype)
    fixed = times.grid is not None
    start = Start(plant(system), begun, known_array(t0, dtype))
    formulation, judged = starts.judged(formulation, start, start_tolerance)
    direction = _direction(t0, t1, stepsize_controller)
    problem = Problem(system, formulation, inner, state, times)
    for text in _step_warnings(problem, start.t, solver, direction):
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    # What stabilizes constraints acts in the direction of integration.
    sign = jnp.where(t1 < t0, -1, 1).astype(dtype) if direction is None else direction
    problem = problem._replace(formulation=formulation.in_direction(sign))
    method = Method(
        solver,
        None if fixed else stepsize_controller,
        diffrax.SaveAt(t0=True, steps=True) if saveat is None and fixed else saveat,
        diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        _meter(progress),
        len(times.grid) - 1 if fixed else int(max_steps),
        work,
        direction=direction,
        judged=judged,
    )
    problem, method = _with_checked_times(problem, method, bool(throw))
    return _watched(*_with_backend(problem, method, backend), throw=throw)


def _times(t0, t1, dt, stepsize_controller, saveat, dtype) -> Times:
    grid = None
    if isinstance(stepsize_controller, Grid):
        grid = stepsize_controller.ts
    elif _is_constant(stepsize_controller) and dt is not None and is_concrete((t0, t1, dt)):
        grid = step_ends(t0, t1, dt, dtype)
    saved = jnp.linspace(t0, t1, DEFAULT_TIMES) if saveat is None and grid is None else None
    times = Times(t0, t1, dt if grid is None else None, grid, saved)
    return Times(*(None if x is None else jnp.asarray(x, dtype) for x in times))


def _is_constant(stepsize_controller) -> bool:
    """Whether all steps are of one length, where one is given."""
    return stepsize_controller is None or isinstance(stepsize_controller, diffrax.ConstantStepSize)


def step_ends(t0, t1, dt, dtype) -> np.ndarray:
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


def _step_warnings(problem: Problem, t, solver, direction: int | None) -> list[str]:
    """Gains that grow, steps beyond their limit, and damping backward in time, in words."""
    known = (*problem.parts, problem.state, t)
    if not is_concrete(known):
        return []
    grid = problem.times.grid
    with jax.core.eval_context():
        law = problem.system, problem.formulation, problem.state, t
        backward = direction == -1
        results = [
            preconditions.growth_warning(*known, backward=backward),
            preconditions.rest_warning(*law),
        ]
        if grid is not None and is_concrete(grid):
            step = abs(float(grid[1] - grid[0]))
            results.append(preconditions.step_warning(*known, solver, step, backward=backward))
        if backward and is_concrete(problem.times.end):
            duration = abs(float(problem.times.end - problem.times.start))
            results.append(start_warning(*known, duration))
    return [x for x in results if x is not None]


def _with_backend(problem: Problem, method: Method, backend) -> tuple[Problem, Method]:
    """The backend chosen, and times that it does not check itself."""
    times = problem.times
    why_not = NATIVE.obstacle(problem.formulation, method)
    if _is_constant(method.stepsize_controller) and times.first_step is not None:
        why_not = "the number of fixed steps is known only when the run is made"
    chosen = backends.choose(backend, why_not)
    strict = backend == NATIVE.name
    if chosen == NATIVE.name:
        why_not = None if strict else _left_to_plain(times, method.saveat)
    return problem, method._replace(backend=chosen, strict=strict, why_not=why_not)


def _with_checked_times(problem: Problem, method: Method, throw: bool) -> tuple[Problem, Method]:
    """What is known only when the program runs, times and tolerances, checked there.

    With `throw` what does not fit raises an error then. Otherwise it is the failure of the members
    of a batch that it belongs to: their times and states are NaN.
    """
    times, controller = problem.times, method.stepsize_controller
    saved, rest = eqx.partition(method.saveat, eqx.is_inexact_array)
    settings = [x for x in jax.tree.leaves(controller) if eqx.is_inexact_array(x)]
    if is_concrete(times, saved, settings):
        return problem, method
    wrong = arguments.wrong_times(times, jax.tree.leaves(saved), settings, controller)
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


def _left_to_plain(times: Times, saveat) -> str | None:
    """What the plain program does for a native run, in words; `None` for nothing."""
    varying = (times.start, times.end, times.first_step, None if saveat is None else saveat.subs.ts)
    return None if is_concrete(varying) else f"only {TIMES}"


def _watched(problem: Problem, method: Method, *, throw: bool) -> tuple[Problem, Method]:
    """A failure is reported in our own words where it is known outside of the compiled program.

    Where only the end or few times are saved, rows on the way are saved to watch the run.
    """
    traced = not is_concrete(problem)
    method = method._replace(throw=throw and traced)
    if traced or not throw:
        return problem, method
    times = problem.times
    watch = jnp.linspace(times.start, times.end, DEFAULT_TIMES)
    if is_end(method.saveat):
        method = method._replace(saveat=None, only_end=True)
        return problem._replace(times=times._replace(saved=watch)), method
    asked = asked_times(method.saveat)
    if asked is None or not is_concrete(asked) or not 0 < np.size(asked) < DEFAULT_TIMES:
        return problem, method
    asked = np.asarray(asked, watch.dtype)
    sign = -1 if times.end < times.start else 1
    every = sign * np.unique(sign * np.concatenate([asked, np.asarray(watch)]))
    method = method._replace(saveat=None, picked=np.searchsorted(sign * every, sign * asked))
    return problem._replace(times=times._replace(saved=jnp.asarray(every))), method


def _direction(t0, t1, stepsize_controller) -> int | None:
    """1 for a run forward in time, -1 backward; `None` where that is not known yet."""
    if isinstance(stepsize_controller, Grid) and stepsize_controller.direction is not None:
        return stepsize_controller.direction
    if not is_concrete(t0, t1):
        return None
    return 1 if t0 <= t1 else -1


def _meter(progress) -> diffrax.AbstractProgressMeter:
    if isinstance(progress, bool):
        return diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter()
    return progress
