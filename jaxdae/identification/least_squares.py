"""Least squares by tuning's Levenberg-Marquardt, for a batch of fits at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdae.tuning.damping import ComposedLeastSquares, levenberg_marquardt
from jaxdae.tuning.linearization import initialized, Short, shortened, stepped

# A step that changes the unknowns by this part of their standard errors, and the residuals by no
# more than this part of the noise, is the last.
TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
_RELATIVE = {"float64": 1e-9, "float32": 1e-5}
# Steps refused in a row after which there is no decrease to be found: each is a quarter as long.
MOST_REFUSED = 30


def value_and_jacobian(function: Callable, x):
    """A function's value and its Jacobian, by forward differentiation."""
    twice = lambda x: (function(x),) * 2  # noqa: E731
    jac, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jac


class FitProgress(NamedTuple):
    """Where every fit of a batch is.

    Args:
        y: unknowns, shape `(fits, p)`.
        state: of the method.
        steps: taken or refused, shape `(fits,)`.
        refused: in a row, shape `(fits,)`.
        done: which fits have ended, those not counted whose steps are spent: they may go on.
    """

    y: Float[Array, "fits p"]
    state: Any
    steps: Int[Array, " fits"]
    refused: Int[Array, " fits"]
    done: Bool[Array, " fits"]

    @property
    def local(self) -> Short:
        """Residuals and Jacobian at `y`, shortened, of each fit."""
        info = self.state.f_info
        return Short(info.residual, info.jac.pytree)


class FitSolver(NamedTuple):
    """Fits of one kind, each with its own data.

    Args:
        evaluate: from unknowns `(fits, p)` to residuals `(fits, m)` and Jacobians `(fits, m, p)`.
        at_end: from `y` and shortened residuals and Jacobians to which fits are at a minimum.
    """

    evaluate: Callable[[Any], tuple[Any, Any]]
    at_end: Callable[[Any, Short], np.ndarray]

    def run(
        self, progress: FitProgress, steps: np.ndarray, watch: Callable | None = None
    ) -> FitProgress:
        """Minimize the sums of squares.

        Args:
            progress: from `begin`, or on the way.
            steps: largest number of steps of each fit.
            watch: called after each step with the progress.
        """
        while not np.all(np.asarray(progress.done) | (np.asarray(progress.steps) >= steps)):
            values = self.evaluate(progress.state.y_eval)
            rests = progress.done | (progress.steps >= steps)
            progress = _advance(progress, values, rests)
            ended = self.at_end(progress.y, progress.local) & (np.asarray(progress.refused) == 0)
            progress = progress._replace(done=progress.done | (ended & ~rests))
            if watch is not None:
                watch(progress)
        return progress


@eqx.filter_jit
def begin(y: Float[Array, "fits p"], residuals: int) -> FitProgress:
    """Fits before their first step.

    Args:
        y: where to begin.
        residuals: how many there are.
    """
    rows = min(residuals, y.shape[1] + 1)

    def one(y):
        short = Short(jnp.zeros(rows, y.dtype), jnp.zeros((rows, y.size), y.dtype))
        state = initialized(_method(y), _linear(short, y), short.value, y)
        zero = jnp.zeros((), int)
        return FitProgress(y, state, zero, zero, jnp.zeros((), bool))

    return eqx.filter_vmap(one)(y)


@eqx.filter_jit
def _advance(progress: FitProgress, values: tuple, rests) -> FitProgress:
    """One step of all fits, but of those that rest."""

    def one(progress, residuals, jac, rests):
        before, trial = progress.state, progress.state.y_eval
        local = _shortened(residuals, jac)
        y, state = stepped(_method(trial), _linear(local, trial), progress.y, before)
        accepted = state.num_steps_since_acceptance == 0
        refused = jnp.where(accepted, 0, progress.refused + 1)
        done = accepted & ~before.first_step & _small(progress, trial)
        new = FitProgress(y, state, progress.steps + 1, refused, done | (refused >= MOST_REFUSED))
        keep = lambda a, b: jnp.where(rests, a, b) if eqx.is_array(b) else b  # noqa: E731
        return jax.tree.map(keep, progress, new)

    return eqx.filter_vmap(one)(progress, *values, rests)


def _shortened(residuals, jac) -> Short:
    """NaN, with a finite slope, where they are not finite: no step is taken there."""
    finite = jnp.isfinite(residuals).all() & jnp.isfinite(jac).all()
    value, slope = shortened(*(jnp.where(finite, x, 0.0) for x in (residuals, jac)))
    return Short(jnp.where(finite, value, jnp.nan), slope)


brief = jax.jit(jax.vmap(_shortened))


def _linear(local: Short, point) -> Callable:
    return lambda y, _: (local.value + local.slope @ (y - point), None)


def _small(progress: FitProgress, trial) -> Array:
    """Whether the step from where a fit is to its trial point changes next to nothing."""
    least, part = (x[str(trial.dtype)] for x in (TOLERANCE, _RELATIVE))
    local, step = progress.local, trial - progress.y
    tiny = jnp.abs(step) <= least + part * jnp.abs(progress.y)
    change = jnp.linalg.norm(local.slope @ step)
    return tiny.all() & (change <= least + part * jnp.linalg.norm(local.value))


def _method(y) -> ComposedLeastSquares:
    return levenberg_marquardt(float(jnp.finfo(y.dtype).eps))
