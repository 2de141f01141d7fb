"""Fixed steps whose ends are known beforehand."""

from collections.abc import Sequence

import diffrax
import equinox as eqx
from jaxtyping import Array, Real


class Grid(diffrax.AbstractStepSizeController):
    """Steps from each time to the next, like `diffrax.StepTo`, that are taken to be in order.

    `StepTo` checks them when the program runs, which takes a callback to the host, and JAX keeps
    no program with a callback in its cache on disk: it would be compiled in every process anew.

    Args:
        ts: the start and the ends of the steps, strictly increasing or decreasing, shape
            (steps + 1,). The last may be repeated, so that members of a batch have equally many:
            such steps have no length and change nothing.
        direction: 1 for increasing times, -1 for decreasing ones; `None` where a program finds
            out. Runs that know it share the programs of runs with one step.
    """

    ts: Real[Array, " times"]
    direction: int | None = eqx.field(static=True, default=None)

    def wrap(self, direction):
        return Grid(self.ts * direction)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        del terms, t0, t1, y0, dt0, args, func, error_order
        return self.ts[1], 2

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        del t0, y0, y1_candidate, args, y_error, error_order
        following = self.ts[controller_state]
        return True, t1, following, False, controller_state + 1, diffrax.RESULTS.successful


def direction_of(steps: Sequence[float]) -> int | None:
    """1 where all steps are forward in time, -1 where all are backward, `None` where they differ.

    Args:
        steps: [s].
    """
    signs = {1 if step > 0 else -1 for step in steps}
    return signs.pop() if len(signs) == 1 else None
