"""Ends of steps that are known beforehand: those of fixed steps, and some of adaptive ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Real


class Grid(diffrax.AbstractStepSizeController):
    """Steps from each time to the next, like `diffrax.StepTo`, that are taken to be in order.

    `StepTo` checks them when the program runs, which takes a callback to the host, and JAX keeps
    no program with a callback in its cache on disk: it would be compiled in every process anew.

    Args:
        ts: the start and the ends of the steps, strictly increasing or decreasing, shape
            (steps + 1,). A run that begins later takes those behind its start. The last may be
            repeated, so that members of a batch have equally many: such steps have no length and
            change nothing.
        direction: 1 for increasing times, -1 for decreasing ones; `None` where a program finds
            out. Runs that know it share the programs of runs with one step.
    """

    ts: Real[Array, " times"]
    direction: int | None = eqx.field(static=True, default=None)

    def wrap(self, direction):
        return Grid(self.ts * direction)

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        # A run may begin between two of the times.
        following = jnp.searchsorted(self.ts, t0, side="right")
        return self.ts[following], following + 1

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        following = self.ts[controller_state]
        return True, t1, following, False, controller_state + 1, diffrax.RESULTS.successful


class ToKnownEnds(diffrax.AbstractStepSizeController):
    """Steps as long as known ends let them be, up to the end of the run."""

    def wrap(self, direction):
        return self

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return t1, None

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        return True, t1, jnp.inf, False, controller_state, diffrax.RESULTS.successful


class KnownEnds(NamedTuple):
    """A step size controller, and the times at which its steps have to end.

    Args:
        controller: what chooses the steps between those times.
        steps: times at which a step ends [s], shape (k,), or `None`.
        jumps: times just before which a step ends and just after which the next begins [s], shape
            (l,), or `None`.
    """

    controller: Any
    steps: Any = None
    jumps: Any = None

    @property
    def has_any(self) -> bool:
        """Whether there are such times."""
        return any(x is not None and x.size for x in (self.steps, self.jumps))


def known_ends(controller) -> KnownEnds:
    """The parts of a `diffrax.ClipStepSizeController`; of any other, that and no times.

    Steps of a `Grid` end at its times, and are as long as these let them between.
    """
    if isinstance(controller, Grid):
        return KnownEnds(ToKnownEnds(), controller.ts)
    plain = type(controller) is diffrax.ClipStepSizeController
    # Rejected steps that are gone to again, for noise, are a memory of the controller itself.
    if not plain or controller.store_rejected_steps is not None:
        return KnownEnds(controller)
    return KnownEnds(controller.controller, controller.step_ts, controller.jump_ts)


def with_known_ends(controller, times):
    """The same controller with its known ends of steps as a run takes them.

    Args:
        controller: any step size controller, or `None`.
        times: of the run, arrays of its precision.

    Returns:
        One with times of that precision. Jumps at the two ends of the run, or beyond, are none of
        it: the last step goes to the end itself.
    """
    if known_ends(controller).controller is controller:
        return controller
    first, last = jnp.minimum(times.start, times.end), jnp.maximum(times.start, times.end)
    steps, jumps = (
        None if x is None else x.astype(times.start.dtype)
        for x in (controller.step_ts, controller.jump_ts)
    )
    if jumps is not None:
        behind = jnp.where(times.start <= times.end, jnp.inf, -jnp.inf)
        jumps = jnp.where((first < jumps) & (jumps < last), jumps, behind)
    return diffrax.ClipStepSizeController(controller.controller, steps, jumps)


def direction_of(steps: Sequence[float]) -> int | None:
    """1 where all steps are forward in time, -1 where all are backward, `None` where they differ.

    Args:
        steps: [s].
    """
    signs = {1 if step > 0 else -1 for step in steps}
    return signs.pop() if len(signs) == 1 else None


def ends_of_steps(grids: list[np.ndarray], rows: int = 0) -> np.ndarray:
    """Ends of the steps of several runs, one row each: the last one repeated in shorter ones.

    Repeated ends are steps of no length, which change nothing.
    """
    most = max(rows, *(x.size for x in grids))
    return np.stack([np.pad(x, (0, most - x.size), mode="edge") for x in grids])
