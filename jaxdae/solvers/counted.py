"""Newton iterations of a run by diffrax, counted along its steps, rejected ones too.

Diffrax keeps the state of a solver of steps that are accepted alone, and that of the step size
controller of all: what a step took goes to the latter beside the error estimate.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.solvers.base import AbstractIterativeSolver
from jaxdae.solvers.newton import Counts
from jaxdae.solvers.projected import Projected
from jaxdae.solvers.wrapped import (
    AbstractAroundController,
    AbstractAroundSolver,
    AbstractChangedEnds,
)


class IterationTotals(NamedTuple):
    """What the steps of a run took.

    Args:
        iterations: number of Newton iterations.
        factorizations: number of matrices factored for them.
        unsolved: number of steps whose iterations did not converge.
    """

    iterations: Any
    factorizations: Any
    unsolved: Any

    @classmethod
    def of_step(cls, counts: Counts) -> "IterationTotals":
        """Those of one step."""
        return cls(counts.iterations, counts.factorizations, 1 - counts.converged)

    def stats(self) -> dict[str, Any]:
        """By the names of `Trajectory.stats`."""
        values = (jnp.asarray(x).astype(int) for x in self)
        return dict(zip(self.names(), values, strict=True))

    @staticmethod
    def names() -> tuple[str, ...]:
        """Those of `Trajectory.stats`."""
        return "num_iterations", "num_factorizations", "num_unsolved_steps"


def counted(solver) -> Any:
    """A solver whose error estimates have what its iterations took beside; `None` of any other.

    `Counting` takes it from there.
    """
    # To diffrax, what wraps a projected solver is one as well.
    if type(solver) is Projected and solver.symmetric:
        return counted(solver.steps)
    if isinstance(solver, AbstractIterativeSolver):
        return _CountedSteps(solver)
    if not isinstance(solver, AbstractChangedEnds):
        return None
    inner = counted(solver.solver)
    return None if inner is None else eqx.tree_at(lambda x: x.solver, solver, inner)


class _CountedSteps(AbstractAroundSolver):
    """Steps of `solver`, with what they took beside the error estimate."""

    solver: AbstractIterativeSolver  # pyright: ignore[reportIncompatibleVariableOverride]

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        (y1, error, *rest), counts = self.solver.counted_step(
            terms, t0, t1, y0, args, solver_state, made_jump
        )
        return (y1, (error, jax.lax.stop_gradient(counts)), *rest)


class Counting(AbstractAroundController):
    """Steps as `controller` chooses them, of a `counted` solver, whose `IterationTotals` it keeps.

    Args:
        controller: any step size controller.
    """

    controller: Any

    def __init__(self, controller: Any):
        self.controller = controller

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        end, state = super().init(terms, t0, t1, y0, dt0, args, func, error_order)
        return end, (state, IterationTotals(*(jnp.zeros((), int) for _ in IterationTotals._fields)))

    def adapt_step_size(
        self, t0, t1, y0, y1_candidate, args, y_error, error_order, controller_state
    ):
        given: Any = y_error
        (error, counts), (state, totals) = given, controller_state
        *chosen, state, result = self.controller.adapt_step_size(
            t0, t1, y0, y1_candidate, args, error, error_order, state
        )
        totals = jax.tree.map(
            lambda a, b: a + b.astype(int), totals, IterationTotals.of_step(counts)
        )
        return (*chosen, (state, totals), result)
