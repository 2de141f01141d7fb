"""Steps that a run of the same kind has chosen before, in place of those of a controller."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.solvers.wrapped import AbstractAroundController


class ChosenSteps(NamedTuple):
    """Steps of a run.

    Args:
        given: whether there are any.
        bits: their ends [s], as integers of the same bits, shape (steps,): in reverse mode floats
            would be given derivatives by all of them in each step.
        result: of the run that chose them.
    """

    given: Any
    bits: Any
    result: Any

    @staticmethod
    def of(ends, start, end, result) -> "ChosenSteps":
        """Those of a run; none of one that failed.

        Args:
            ends: of its steps [s], infinite behind the last one, shape (steps,).
            start: of the run [s].
            end: of the run [s].
            result: diffrax's result code.
        """
        # The end of the run is left to the run, whose derivatives by it are those of a step there.
        beyond = jnp.where(start <= end, jnp.inf, -jnp.inf)
        ends = jnp.where(jnp.isfinite(ends) & (ends != end), ends, beyond)
        ends = jnp.append(ends, ends[-1]).astype(jnp.result_type(start))
        bits = jax.lax.bitcast_convert_type(ends, _integers(ends))
        return ChosenSteps(diffrax.is_successful(result), bits, result)

    @staticmethod
    def none(steps: int, like) -> "ChosenSteps":
        """No steps, in the form of so many whose times are like one."""
        result = jax.tree.map(jnp.asarray, diffrax.RESULTS.successful)
        return ChosenSteps(jnp.zeros((), bool), jnp.zeros(steps, _integers(like)), result)


def _integers(like) -> Any:
    return {4: jnp.int32, 8: jnp.int64}[jnp.result_type(like).itemsize]


def following(controller: Any, chosen: ChosenSteps) -> Any:
    """A step size controller whose steps are the chosen ones, where there are any.

    What is around the innermost controller, such as jumps of an input, stays around it.
    """
    if hasattr(controller, "controller"):
        inner = following(controller.controller, chosen)
        return eqx.tree_at(lambda x: x.controller, controller, inner)
    return _Following(controller, chosen)


class _Following(AbstractAroundController):
    """Steps as `controller` chooses them, or others, all of which are accepted."""

    controller: Any
    chosen: ChosenSteps
    direction: Any

    def __init__(self, controller: Any, chosen: ChosenSteps, direction: Any = 1):
        self.controller, self.chosen, self.direction = controller, chosen, direction

    def wrap(self, direction):
        return _Following(self.controller.wrap(direction), self.chosen, direction)

    def _end(self, number, like):
        """The end of a step, by its number, in the precision of a time."""
        end = jax.lax.bitcast_convert_type(self.chosen.bits[number], jnp.result_type(like))
        return end * self.direction

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        return jnp.where(self.chosen.given, self._end(0, end), end), (state, jnp.asarray(1))

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        state, number = controller_state
        keep, begin, end, jumped, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, y_error, error_order, state
        )
        given = self.chosen.given
        pick = lambda a, b: jnp.where(given, a, b)  # noqa: E731
        result = diffrax.RESULTS.where(given, diffrax.RESULTS.successful, result)
        own = pick(True, keep), pick(t1, begin), pick(self._end(number, end), end)
        return (*own, pick(False, jumped), (state, number + 1), result)
