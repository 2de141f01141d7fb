"""Descent from several starts at once: pure functions of a state, traced once."""

from functools import partial
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, PyTree

from jaxdae.reprs import Module
from jaxdae.tuning.averaging import averaged
from jaxdae.tuning.endings import first_true, FLAT, ZERO
from jaxdae.tuning.problem import (
    HistoryRow,
    Progress,
    strongly_typed,
    TuningMethod,
    TuningProblem,
    where,
)

# optax is imported where it is used: many programs that import the package never tune.
if TYPE_CHECKING:
    import optax


def default_optimizer() -> "optax.GradientTransformation":
    """Adam with a learning rate that falls from 0.1, after clipping the gradient to norm 1.

    The first steps change a `Positive` or the scale of a `PositiveDefinite` by about ten per cent.
    The rate is halved whenever the loss has not reached a new minimum in five steps: at a constant
    one the steps end in an oscillation about the minimum. This schedule does not ask how many steps
    there will be, so that a run that is continued with more of them is the same run.

    The clipping keeps one steep gradient, near a stability limit, from filling Adam's memory. Its
    `eps` is 1e-16: squared violations and their gradients are often far below its usual 1e-8,
    which would then slow the steps down.

    Returns:
        An optax optimizer.
    """
    import optax

    # Any fall counts, also of losses below zero, of which relative ones make no sense.
    schedule = optax.contrib.reduce_on_plateau(factor=0.5, patience=5, rtol=0.0, atol=1e-30)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1, eps=1e-16), schedule)


# Length of the gradient step in place of one that overflowed: as long as a step of the default.
_FALLBACK_STEP = 0.05


class DescentState(Module):
    """State of the descent from one start; stacked over the starts."""

    point: PyTree  # last point with a finite loss and gradient, or the initial one
    update: PyTree  # step from it that is tried next
    optimizer: PyTree  # state of the optimizer
    progress: Progress  # best point so far


def initial_state(problem: TuningProblem, starts: int, spread: float, key: Array) -> DescentState:
    """All starts at the initial point; a perturbation is a first step that may be refused."""
    point, update = problem.first_points(starts, spread, key)
    optimizer = jax.vmap(problem.optimizer.init)(point)
    return strongly_typed(DescentState(point, update, optimizer, Progress.of(point, starts)))


def descend(
    static: TuningProblem, arrays: TuningProblem, state: DescentState
) -> tuple[DescentState, HistoryRow]:
    """Evaluate at `point + update`; move there and choose the next step, or halve this one.

    Where the optimizer's own step is not finite, the next step is along the gradient. The
    optimizer, its memory as it was before, is asked again from the point reached by it: asked again
    from the same point, it would only fail again. The problem comes without its arrays, and these.
    """
    import optax

    problem = eqx.combine(arrays, static)
    trial = optax.apply_updates(state.point, state.update)
    objective = partial(problem.loss, step=state.progress.evaluations)
    slopes, loss = problem.differentiate(objective, has_aux=True)(trial)
    gradient = jax.tree.map(lambda slope, x: slope.astype(x.dtype), slopes, trial)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    scalar = lambda x: objective(x)[0]  # noqa: E731
    update, optimizer = problem.optimizer.update(
        gradient, state.optimizer, trial, value=loss, grad=gradient, value_fn=scalar
    )
    accepted = finite & jnp.isfinite(optax.tree.norm(update))
    count = 1 + _line_searched(optimizer)
    half = jax.tree.map(lambda u: 0.5 * u, state.update)
    optimizer = where(accepted, optimizer, state.optimizer)
    better = finite & problem.is_better(loss, state.progress.best_loss)
    best = averaged(optimizer, trial) if problem.key is not None else trial
    progress = state.progress.seen(best, loss, better, count)
    # From there no optimizer finds anywhere else: it would make all steps in the same place.
    flat = accepted & (state.progress.evaluations == 0) & (norm == 0)
    flat &= optax.tree.norm(update) == 0
    zero = flat & (loss == 0) & hasattr(problem.objective, "residuals")
    ending = first_true((ZERO, zero, loss), (FLAT, flat, loss))
    new = DescentState(
        point=where(finite, trial, state.point),
        update=where(accepted, update, where(finite, gradient_step(gradient, norm), half)),
        optimizer=optimizer,
        progress=eqx.tree_at(lambda x: (x.status, x.number), progress, ending),
    )
    running = state.progress.status == 0
    loss, norm = (jnp.where(running, x, jnp.nan) for x in (loss, norm))
    new = where(running, strongly_typed(new), state)
    return strongly_typed(new), HistoryRow(loss, norm, running & ~accepted)


def validate(
    static: TuningProblem, arrays: TuningProblem, state: DescentState
) -> tuple[DescentState, Array]:
    """The state with the best point by the validation, and what that says of the present one."""
    problem, progress = eqx.combine(arrays, static), state.progress
    point = averaged(state.optimizer, state.point)
    loss = problem.validation_loss(point)
    better = (progress.status == 0) & jnp.isfinite(loss) & (loss < progress.best_loss)
    progress = progress.seen(point, loss, better)
    return strongly_typed(eqx.tree_at(lambda x: x.progress, state, progress)), loss


def program(problem: TuningProblem) -> ClosedJaxpr:
    """The update of the optimizer as a program."""

    # In place of the objective, whose program need not be the same text in every process.
    def total(x):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(x))

    def update(gradient, state, point):
        extra = {"value": total(point), "grad": gradient, "value_fn": total}
        return problem.optimizer.update(gradient, state, point, **extra)

    state = jax.eval_shape(problem.optimizer.init, problem.trained)
    return jax.make_jaxpr(update)(problem.trained, state, problem.trained)


DESCENT = TuningMethod(initial_state, descend, program, lambda state: state.optimizer)


def gradient_step(gradient: PyTree, norm: Array) -> PyTree:
    """A step against the gradient, of length 0.05 at most."""
    factor = _FALLBACK_STEP / jnp.maximum(norm, 1.0)
    return jax.tree.map(lambda g: (-factor * g).astype(g.dtype), gradient)


def _line_searched(state: PyTree) -> Array:
    """Evaluations of the objective that an optimizer with a line search has just made."""
    import optax

    counts = optax.tree.get_all_with_path(state, "num_linesearch_steps")
    return sum((jnp.asarray(x, int) for _, x in counts), jnp.asarray(0))
