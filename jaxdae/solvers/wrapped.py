"""Solvers around another one, step size controllers likewise; ends of steps that are changed."""

import abc
from typing import Any

import diffrax
import equinox as eqx
import jax

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.solvers.base import time_of


class AbstractAroundSolver(diffrax.AbstractWrappedSolver):
    """A solver that has the orders, terms and settings of another one, `solver`."""

    def order(self, terms):
        """Order of convergence: that of the solver."""
        return self.solver.order(terms)

    def strong_order(self, terms):
        """Strong order of convergence: that of the solver."""
        return self.solver.strong_order(terms)

    def error_order(self, terms):
        """Order of the error estimate: that of the solver."""
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        return self.solver.init(terms, t0, t1, y0, args)

    def func(self, terms, t0, y0, args):
        return self.solver.func(terms, t0, y0, args)

    @property
    def term_structure(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What the solver integrates."""
        return self.solver.term_structure

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output."""
        return self.solver.interpolation_cls

    # Settings that diffrax reads and changes where the solver is of a certain kind.

    @property
    def scan_kind(self) -> Any:
        """Kind of loop over stages of a Runge–Kutta method."""
        return self._own("scan_kind")

    @property
    def root_finder(self) -> Any:
        """Root finder of an implicit method."""
        return self._own("root_finder")

    @property
    def root_find_max_steps(self) -> Any:
        """Most iterations of an implicit method's root finder."""
        return self._own("root_find_max_steps")

    def _own(self, name: str) -> Any:
        return getattr(self.solver, name)


class AbstractChangedEnds(AbstractAroundSolver):
    """A solver whose steps are those of `solver`, and end where `finish` takes them.

    Orders, error estimate and dense output are the solver's own.
    """

    @abc.abstractmethod
    def finish(self, t, y, args) -> Any:
        """What the end of a step becomes.

        Args:
            t: time [s].
            y: the formulation's own state, and the work integrals if there are any.
            args: `(system, formulation, controller)`.
        """

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        # The change is a jump: no rate of change is handed from one step to the next.
        y1, error, dense, solver_state, result = self.solver.step(
            terms, t0, t1, y0, args, solver_state, made_jump=True
        )
        y1 = with_nan_safe_derivative(self._finished, y1, time_of(terms, t1), y1, args)
        return y1, error, self.dense(y0, y1, dense), solver_state, result

    def _finished(self, t, y, args):
        due = self.is_due(t, args)
        if due is None:
            return self.finish(t, y, args)
        # What may take longer than a step is not computed at other times.
        return jax.lax.cond(due, lambda: self.finish(t, y, args), lambda: y)

    def is_due(self, t, args) -> Any:
        """Whether ends of steps are changed at a time [s]; `None` where all are.

        Args:
            t: time [s].
            args: `(system, formulation, controller)`.
        """
        del t, args

    def dense(self, y0, y1, dense: dict[str, Any]) -> dict[str, Any]:
        """What dense output is made of.

        Args:
            y0: state at the beginning of the step.
            y1: where `finish` has taken its end.
            dense: what that of the solver is made of.
        """
        return {**dense, "y1": y1} if "y1" in dense else dense


class AbstractAroundController(diffrax.AbstractAdaptiveStepSizeController[Any, Any]):
    """A step size controller that has the settings of another one, `controller`.

    Dense output, implicit stages and diagnosis ask for these; of fixed steps they are none.
    """

    controller: eqx.AbstractVar[Any]

    @property
    def rtol(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Relative tolerance of the controller."""
        return getattr(self.controller, "rtol", 0.0)

    @property
    def atol(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Absolute tolerance of the controller."""
        return getattr(self.controller, "atol", 0.0)

    @property
    def norm(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Norm of the controller."""
        return getattr(self.controller, "norm", None)

    def wrap(self, direction):
        return eqx.tree_at(lambda x: x.controller, self, self.controller.wrap(direction))

    def init(self, terms, t0, t1, y0, dt0, args, func, error_order):
        return self.controller.init(terms, t0, t1, y0, dt0, args, func, error_order)
