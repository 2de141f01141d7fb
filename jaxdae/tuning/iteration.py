"""Solvers of optimistix, driven one evaluation at a time, from several starts at once.

Such a solver evaluates its function once in each of its steps, at its trial point. Here value and
derivative are computed outside of it, in the mode that suits the objective, and the solver is given
the function linearized there: the same value and the same derivative. Of residuals it sees an
equivalent vector as short as the parameters.
"""

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Bool, Float, Int

from jaxdae.linalg.tall import shortened
from jaxdae.reprs import Module
from jaxdae.tuning import endings
from jaxdae.tuning.descent import gradient_step
from jaxdae.tuning.linearization import initialized, stepped
from jaxdae.tuning.problem import (
    HistoryRow,
    Progress,
    strongly_typed,
    TuningMethod,
    TuningProblem,
    where,
)

# Those that evaluate once in each step, at `y_eval` of their state.
LEAST_SQUARES = (optx.AbstractGaussNewton,)
MINIMISERS = (optx.AbstractQuasiNewton, optx.AbstractGradientDescent)


class Local(Module):
    """What is known at a point: a function linearized there, and what its steps promise."""

    # Of the function; the loss in the solver's unit, or the shortened residuals.
    value: Float[Array, "*k"]
    slope: Float[Array, "*k p"]  # its derivative
    point: Float[Array, " p"]  # where
    loss: Float[Array, ""]  # objective
    gradient: Float[Array, " p"]  # of the loss
    # By which fraction of it the next step would lower the loss; for residuals, the best step of
    # their linearization.
    promise: Float[Array, ""]
    span: Float[Array, " p"]  # the next step

    def __call__(self, y, _):
        """The linearized function, as optimistix calls it."""
        return self.value + self.slope @ (y - self.point), None


class Iterate(Module):
    """State of the iteration from one start; stacked over the starts."""

    local: Local  # at the last point that the solver accepted, or the initial one
    trial: Float[Array, " p"]  # point that is evaluated next
    begun: Bool[Array, ""]  # whether the solver has seen a finite value
    slow: Int[Array, ""]  # accepted steps in a row in which the loss hardly fell
    solver: list[Array]  # arrays of the solver's state
    unit: Float[Array, ""]  # what the loss is multiplied with for a solver that minimizes
    largest: Float[Array, " p"]  # gradient so far, entry by entry
    # Residuals and Jacobian at the best point; `None` for other objectives.
    fit: tuple[Float[Array, " m"], Float[Array, "m p"]] | None
    progress: Progress  # best point so far, and whether the start has ended


class _Evaluation(NamedTuple):
    loss: Float[Array, ""]
    gradient: Float[Array, " p"]
    finite: Bool[Array, ""]
    fit: tuple[Float[Array, " m"], Float[Array, "m p"]] | None


def initial_state(problem: TuningProblem, starts: int, spread: float, key: Array) -> Iterate:
    """All starts at the initial point; a perturbation is a first step that may be refused."""

    def made(key):
        points, updates = problem.first_points(starts, spread, key)
        progress = Progress.of(points, starts)
        flat, steps = (jax.vmap(problem.vector)(x) for x in (points, updates))
        # Nothing of it but the points is read before the first finite evaluation.
        shapes = jax.eval_shape(jax.vmap(partial(_blank, problem)), flat, progress)
        state = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        places = lambda s: (s.local.point, s.trial, s.progress)  # noqa: E731
        return strongly_typed(eqx.tree_at(places, state, (flat, flat + steps, progress)))

    # One program: each operation by itself would be another.
    return jax.jit(made)(key)


def advance(
    static: TuningProblem, arrays: TuningProblem, state: Iterate
) -> tuple[Iterate, HistoryRow]:
    """Evaluate at the trial point, let the solver move there or not, and make the next."""
    problem = eqx.combine(arrays, static)
    trial, running = state.trial, state.progress.status == 0
    seen = _evaluate(problem, trial)
    norm, size = jnp.linalg.norm(seen.gradient), jnp.abs(seen.gradient)
    unit = jnp.where(state.begun, state.unit, _unit(problem.optimizer, seen.gradient, trial))
    here = _linearized(seen, trial, unit)
    solver, accepted, following = _solver_step(problem.optimizer, state, here, seen.finite)
    usable = jnp.all(jnp.isfinite(following))
    here = _promising(problem, here, following)
    polished = _is_finer(problem, state, here) & seen.finite & ~accepted
    local = where(accepted | polished, here, state.local)
    following = jnp.where(usable, following, local.point + gradient_step(local.gradient, norm))
    lower = seen.finite & (seen.loss < state.progress.best_loss)
    progress = state.progress.seen(problem.tree(trial), seen.loss, lower, 1)
    progress = eqx.tree_at(
        lambda x: (x.best, x.best_loss),
        progress,
        where(polished, (problem.tree(trial), seen.loss), (progress.best, progress.best_loss)),
    )
    better = polished | (progress.best_loss < state.progress.best_loss)
    least = problem.tolerance**1.5 * jnp.abs(state.local.loss)
    fell = ~state.begun | (state.local.loss - seen.loss > least)
    new = Iterate(
        local=local,
        trial=following,
        begun=state.begun | seen.finite,
        slow=jnp.where(accepted, jnp.where(fell, 0, state.slow + 1), state.slow),
        solver=solver,
        unit=unit,
        largest=jnp.where(accepted, jnp.maximum(state.largest, size), state.largest),
        fit=None if seen.fit is None else where(better, seen.fit, state.fit),
        progress=progress,
    )
    new = eqx.tree_at(
        lambda s: (s.progress.status, s.progress.number),
        new,
        _status(problem, state, new, here, accepted, polished),
    )
    loss, norm = (jnp.where(running, x, jnp.nan) for x in (seen.loss, norm))
    new = jax.tree.map(lambda x, y: jnp.where(running, x.astype(y.dtype), y), new, state)
    return strongly_typed(new), HistoryRow(loss, norm, running & ~(seen.finite & usable))


def program(problem: TuningProblem) -> ClosedJaxpr:
    """One step of the solver as a program."""

    def step(point):
        one, fit = jnp.ones((), point.dtype), None
        if problem.residuals_of is not None:
            fit = (point, jnp.eye(point.size, dtype=point.dtype))
        local = _linearized(_Evaluation(one, point, one > 0, fit), point, one)
        state = initialized(problem.optimizer, local, local.value, point)
        return _arrays(stepped(problem.optimizer, local, point, state)[1])

    return jax.make_jaxpr(step)(problem.vector(problem.trained))


ITERATION = TuningMethod(initial_state, advance, program, lambda state: state.solver)


def _blank(problem: TuningProblem, point: Array, progress: Progress) -> Iterate:
    """A state before the first evaluation, of which only the shapes matter."""
    struct, one = problem.residuals_of, jnp.ones((), point.dtype)
    seen = _Evaluation(progress.best_loss, 0 * point, jnp.asarray(True), None)
    if struct is not None:
        residuals = jnp.zeros(struct.shape, struct.dtype)
        seen = seen._replace(fit=(residuals, jnp.outer(residuals, point).astype(struct.dtype)))
    local = _linearized(seen, point, one)
    solver = _arrays(initialized(problem.optimizer, local, local.value, point))
    begun, slow = jnp.asarray(False), jnp.asarray(0)
    return Iterate(local, point, begun, slow, solver, one, 0 * point, seen.fit, progress)


def _evaluate(problem: TuningProblem, point: Array) -> _Evaluation:
    """Loss and gradient; for least squares from residuals and their Jacobian."""
    if problem.residuals_of is None:
        slopes, loss = problem.differentiate(problem.loss, has_aux=True)(problem.tree(point))
        gradient, fit = problem.vector(slopes), None
    else:
        residuals, jacobian = fit = problem.jacobian(point)
        wide, slopes = residuals.astype(point.dtype), jacobian.astype(point.dtype)
        loss, gradient = wide @ wide, 2 * wide @ slopes
    finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(gradient))
    if fit is not None:
        finite &= jnp.all(jnp.isfinite(fit[1]))
    return _Evaluation(loss, gradient, finite, fit)


def _unit(solver: Any, gradient: Array, point: Array) -> Array:
    """What makes the first step of a quasi-Newton method a tenth of the size of the point."""
    norm = jnp.linalg.norm(gradient)
    if not isinstance(solver, optx.AbstractQuasiNewton):
        return jnp.ones_like(norm)
    return jnp.where(norm > 0, 0.1 * (1 + jnp.linalg.norm(point)) / norm, 1.0)


def _linearized(seen: _Evaluation, point: Array, unit: Array) -> Local:
    """The function that the solver sees; NaN, with a finite slope, where it is not finite."""
    value, slope = (unit * seen.loss).astype(point.dtype), unit * seen.gradient
    slope = jnp.where(seen.finite, slope, 0.0)
    if seen.fit is not None:
        residuals, jacobian = (jnp.where(seen.finite, x, 0.0).astype(point.dtype) for x in seen.fit)
        value, slope = shortened(residuals, jacobian)
    value = jnp.where(seen.finite, value, jnp.nan)
    zero = jnp.zeros((), point.dtype)
    return Local(value, slope, point, seen.loss, seen.gradient, zero, jnp.zeros_like(point))


# Accepted steps in a row that hardly lower the loss, before it is given up.
_MOST_SLOW = 20


def _arrays(state: Any) -> list[Array]:
    """Arrays of a solver's state: what changes, and what a checkpoint keeps."""
    return jax.tree.leaves(eqx.filter(state, eqx.is_array))


def _with_arrays(state: Any, arrays: list[Array]) -> Any:
    leaves, structure = jax.tree.flatten(state)
    rest = iter(arrays)
    return structure.unflatten([next(rest) if eqx.is_array(x) else x for x in leaves])


def _solver_step(
    solver: Any, state: Iterate, here: Local, finite: Array
) -> tuple[list[Array], Array, Array]:
    """The solver's state after a trial, whether it moved there, and its next trial.

    A trial that is not finite is refused by the solver's search, which then makes a shorter step;
    where it has none, or there is no point to return to, the step is halved here.
    """
    trial = here.point
    fresh = initialized(solver, here, here.value, trial)
    before = where(state.begun, state.solver, _arrays(fresh))
    y = jnp.where(state.begun, state.local.point, trial)
    moved_to, after = stepped(solver, here, y, _with_arrays(fresh, before))
    moved = jnp.all(moved_to == trial)
    halve = ~finite & (moved | ~state.begun)
    following = jnp.where(halve, 0.5 * (state.local.point + trial), after.y_eval)
    kept = _with_arrays(fresh, where(halve, before, _arrays(after)))
    return _arrays(eqx.tree_at(lambda s: s.y_eval, kept, following)), finite & moved, following


def _promising(problem: TuningProblem, here: Local, following: Array) -> Local:
    """With what the next step promises, and its size."""
    if problem.residuals_of is not None:
        norms = jnp.linalg.norm(here.slope, axis=0)
        scaled = here.slope / jnp.where(norms > 0, norms, 1.0)
        u, s, _ = jnp.linalg.svd(scaled, full_matrices=False)
        # Directions that the damping leaves alone.
        seen = s > problem.epsilon**0.375 * s[0]
        inside = jnp.sum(jnp.where(seen, here.value @ u, 0.0) ** 2)
        promise = inside / jnp.sum(here.value**2)
    else:
        promise = jnp.abs(here.gradient @ (following - here.point) / (2 * here.loss))
    return eqx.tree_at(lambda x: (x.promise, x.span), here, (promise, following - here.point))


def _is_finer(problem: TuningProblem, state: Iterate, here: Local) -> Array:
    """Whether a trial of the same loss, up to round-off, is nearer to where residuals are least.

    The loss is flat at its minimum: it is the same to round-off in a region as wide as the root of
    that. The angle between the residuals and what the parameters can change is not.
    """
    if problem.residuals_of is None:
        return jnp.asarray(False)
    local, least = state.local, problem.tolerance**1.5 * jnp.abs(state.local.loss)
    same = jnp.abs(here.loss - local.loss) <= least
    same &= here.loss <= state.progress.best_loss + least
    return (
        state.begun & same & (local.promise <= problem.tolerance) & (here.promise < local.promise)
    )


def _status(
    problem: TuningProblem,
    old: Iterate,
    new: Iterate,
    here: Local,
    accepted: Array,
    polished: Array,
) -> tuple[Array, Array]:
    """Whether and why the start ends, and what was compared with the tolerance."""
    tolerance = problem.tolerance
    local, step = old.local, here.point - old.local.point
    moved = accepted & old.begun
    largest = jnp.where(new.largest > 0, new.largest, 1.0)
    ratio = jnp.max(jnp.abs(new.local.gradient) / largest)
    # What a quasi-Newton method promises is worth little before.
    near = (problem.residuals_of is not None) | (ratio <= tolerance**0.5)
    promise = new.local.promise
    same = jnp.abs(here.loss - new.local.loss) <= tolerance * jnp.abs(new.local.loss)
    smallest = problem.epsilon * jnp.maximum(jnp.abs(new.local.point), jnp.abs(new.local.span))
    stuck = new.begun & jnp.all(jnp.abs(new.trial - new.local.point) <= smallest)
    if problem.residuals_of is not None:
        relative, undamped = _relative_step(local, step, here.point)
        # Residuals that are all round-off may not fall by a step that is as short.
        last, free = _relative_step(new.local, new.local.span, new.local.point)
        cases = [
            (endings.ZERO, accepted & (here.loss == 0), here.loss),
            (endings.FLAT, accepted & jnp.all(here.slope == 0), here.loss),
            (
                endings.ANGLE,
                (accepted | polished) & (here.promise <= tolerance**2),
                jnp.sqrt(here.promise),
            ),
            (endings.STEP, moved & (relative <= tolerance) & undamped, relative),
            (endings.STEP, stuck & (last <= tolerance) & free, last),
        ]
    else:
        cases = [
            (endings.FLAT, ~old.begun & accepted & jnp.all(here.gradient == 0), here.loss),
            (endings.GRADIENT, moved & (ratio <= tolerance**1.5), ratio),
            (endings.DECREASE, moved & near & (here.promise <= tolerance**1.5), here.promise),
        ]
    no_more = (new.begun & ~accepted & same | stuck) & near & (promise <= tolerance)
    cases += [
        (endings.ROUND_OFF, no_more, old.local.promise),
        (endings.STALLED, stuck, promise),
        (endings.SLOW, new.slow >= _MOST_SLOW, promise),
    ]
    return endings.first_true(*cases)


def _relative_step(local: Local, step: Array, point: Array) -> tuple[Array, Array]:
    """Length of a step relative to a point, in the residuals' scales, and whether it is undamped.

    A step that is short only because it was damped is no sign of convergence.
    """
    lengths = jnp.linalg.norm(local.slope, axis=0)
    left = jnp.sum((local.value + local.slope @ step) ** 2) / jnp.sum(local.value**2)
    relative = jnp.linalg.norm(lengths * step) / jnp.linalg.norm(lengths * point)
    return relative, 1 - left >= 0.5 * local.promise
