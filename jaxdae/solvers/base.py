"""What a step of a method is: the contract between methods and the loops over steps.

On the plain backend it is that of diffrax, `AbstractSolver`: `init`, `step`, `order`,
`interpolation_cls`. A `StepMethod` is the same for kernels, whose states are vectors of known
length: all that is carried from step to step, or kept for dense output, is one array.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import numpy as np

from jaxdae.reprs import Module
from jaxdae.stability.stability_functions import stability_function


def at_once(name: str, function: Callable, *arguments, wrt: tuple[int, ...]) -> Any:
    """A function of single numbers, of arrays: `each` where nothing is gained by a loop."""
    return function(*arguments)


def time_of(terms, t) -> Any:
    """The time [s] at which diffrax stands: it counts times of a run backward with a minus sign.

    Args:
        terms: what a solver is given by `diffrax.diffeqsolve`, or by itself.
        t: likewise.
    """
    one = lambda x: isinstance(x, diffrax.AbstractTerm) and not isinstance(x, diffrax.MultiTerm)  # noqa: E731
    first = jax.tree.leaves(terms, is_leaf=one)[0]
    return getattr(first, "direction", 1) * t  # of the wrapper around terms


class Step(NamedTuple):
    """What one step gives; the functions are called only where what they make is wanted.

    Args:
        y1: state at its end, shape `(n,)`.
        error: estimates the error of `y1`, shape `(n,)`; 0 by a method without an estimate.
        carry: what the next step is given, shape `(carried,)`.
        dense: makes what its dense output is made of.
        counts: what its iterations took, `jaxdae.solvers.newton.Counts`; `None` by a method without
            any, or one that does not tell.
    """

    y1: Any
    error: Callable[[], Any]
    carry: Any
    dense: Callable[[], Any]
    counts: Any = None


class AbstractStepMethod(Module):
    """How a kernel makes the steps of a solver."""

    solver: eqx.AbstractVar[Any]
    # Whether steps evaluate the rate and nothing else, so that it is one function for all stages;
    # otherwise its derivatives are asked for too.
    evaluates_only: ClassVar[bool]

    @abc.abstractmethod
    def carried(self, states: int) -> int:
        """Numbers that one step leaves to the next."""

    @property
    def remembers(self) -> bool:
        """Whether a step that is not given what the last one left would be another one."""
        return False

    @abc.abstractmethod
    def dense_shape(self, states: int) -> tuple[int, ...]:
        """Shape of what dense output is made of."""

    @abc.abstractmethod
    def init(self, rate: Callable, t0, y0) -> Any:
        """What the first step is given, shape `(carried,)`."""

    @abc.abstractmethod
    def step(self, rate: Callable, t0, t1, y0, carry, each: Callable = at_once) -> Step:
        """One step.

        Args:
            rate: `dy/dt = rate(t, y)`, shape `(n,)`.
            t0: its beginning [s].
            t1: its end [s].
            y0: state at its beginning, shape `(n,)`.
            carry: what `init` or the last step left; `None` where that is not known.
            each: `each(name, function, *arguments, wrt)`, a function of single numbers done for
                each entry of its arguments, with derivatives by those with numbers in `wrt`.
        """

    @abc.abstractmethod
    def interpolate(self, t0, t1, y0, y1, dense, t) -> Any:
        """Dense output of a step at time `t`, shape `(n,)`."""

    @property
    def counts(self) -> bool:
        """Whether steps tell what their iterations took."""
        return False

    def evaluations(self, dense: bool) -> int:
        """Evaluations of the rate, the first ones, on which a step or its dense output depends.

        They are kept for the way back of an adjoint; zero where it evaluates them again.
        """
        return 0

    def stability_function(self, z) -> np.ndarray:
        """`R(z)`: what one step multiplies `y` of `dy/dt = (z / h) y` by, at complex numbers."""
        return stability_function(self.solver, z)

    def error_order(self) -> Any:
        """Order of the error estimate."""
        return self.solver.error_order(diffrax.ODETerm(lambda t, y, args: y))


class AbstractTracedSolver(diffrax.AbstractSolver):
    """A solver whose own `step` kernels trace, each member of a batch by itself.

    It is JAX on arrays of fixed shapes; loops may turn as often as values say, such as those of
    `optimistix.root_find`, whose solver names the linear solve of its iteration. Where
    `init` hands something to the first step, the end of that is not known to it: `t1` is NaN.
    """

    # Whether what one step hands to the next only makes that one shorter to compute, as a
    # prediction does: begun anew it is the same, to round-off. Where this is false steps depend on
    # those before: derivatives go through what they hand on, and their ends cannot be moved.
    state_is_prediction: ClassVar[bool] = False
    # Whether steps of the vector field of a formulation look at `(system, formulation, controller)`
    # as well, so that kernels give them these.
    takes_parts: ClassVar[bool] = False


class AbstractIterativeSolver(AbstractTracedSolver):
    """A solver whose steps are found by Newton's iteration, and that says what this took."""

    @abc.abstractmethod
    def counted_step(
        self, terms, t0, t1, y0, args, solver_state, made_jump, *, in_kernel: bool = False
    ) -> tuple[tuple, Any]:
        """One step, and what its iterations took.

        Args:
            terms: what is stepped, as of `diffrax.AbstractSolver.step`, and so on.
            t0: likewise.
            t1: likewise.
            y0: likewise.
            args: likewise.
            solver_state: likewise.
            made_jump: likewise.
            in_kernel: whether a kernel traces it, for which what is much code is left out.

        Returns:
            What `step` returns, and `jaxdae.solvers.newton.Counts`.
        """

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        return self.counted_step(terms, t0, t1, y0, args, solver_state, made_jump)[0]


def step_in_kernel(solver, terms, t0, t1, y0, args, solver_state, made_jump) -> tuple[tuple, Any]:
    """The step of a solver as kernels trace it, and what its iterations took, or `None`."""
    given = terms, t0, t1, y0, args, solver_state, made_jump
    if isinstance(solver, AbstractIterativeSolver):
        return solver.counted_step(*given, in_kernel=True)
    return solver.step(*given), None


def remembers(solver) -> bool:
    """Whether steps of a traced solver depend on more than where they begin, on earlier ones."""
    # Those of Runge-Kutta methods hand on a rate, which is that at the beginning.
    one_step = isinstance(solver, diffrax.AbstractRungeKutta)
    return not (one_step or solver.state_is_prediction)


def refuse_memory(solver, who: str) -> None:
    """Refuse a solver whose steps depend on those before, where their ends are changed.

    Args:
        solver: of diffrax.
        who: what changes them.

    Raises:
        ValueError: for such a solver.
    """
    if isinstance(solver, AbstractTracedSolver) and remembers(solver):
        name = type(solver).__name__
        raise ValueError(
            f"{who} changes the ends of steps, and each step of {name} goes on from those before: "
            f"give {name} by itself, or a method of single steps, such as jaxdae.solvers.RK4() or, "
            "for constrained equations, jaxdae.solvers.RadauIIA()."
        )


class AbstractStatelessSolver(AbstractTracedSolver):
    """A traced solver that hands nothing from step to step: its `step` is given `None`."""

    state_is_prediction: ClassVar[bool] = True  # of nothing

    def init(self, terms, t0, t1, y0, args):
        """Nothing is handed from step to step."""

    def func(self, terms, t0, y0, args):
        """The rate of change, or the equations of motion, at a time [s]."""
        return terms.vf(t0, y0, args)
