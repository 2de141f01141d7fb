"""Any solver, with each of its steps projected onto the constraints."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx

from jaxdae.solvers.base import refuse_memory
from jaxdae.solvers.constrained_term import enforces_constraints
from jaxdae.solvers.kernel_steps import ExplicitRungeKutta, step_method
from jaxdae.solvers.projection import nearest
from jaxdae.solvers.sampled import SampledEnds
from jaxdae.solvers.symmetric_steps import SymmetricSteps
from jaxdae.solvers.wrapped import AbstractChangedEnds


class Projected(AbstractChangedEnds):
    r"""A solver whose steps end on the constraints.

    After each step the coordinates, then the velocities, go to the constraints by Newton's method,
    each iteration by the least change in the mass metric:

        M dq + J^T mu = 0,  J dq = -phi(t, q);      M dv + J^T mu = 0,  J dv = -(dphi/dt, g)

    with `J` of the position constraints in the first. The order of the method is kept
    [HairerWanner1996, section VII.2], and so is its estimate of the error. From a step's end, off
    by its truncation error, two iterations reach round-off. Rows between steps are projected, too,
    and are of the order of the solver's own dense output: 4 of `RK4`, some 6 of `diffrax.Dopri8`.

    This holds for formulations whose exact motion stays on the constraints. That of `Penalty` does
    not: its error is smaller with the projection, but falls with the step only to first order.
    `RealizingForces`, which are nothing without a violation, are refused.

    **Symmetric.** A projection after the step makes any method irreversible, a symmetric one too,
    and energies drift. With `symmetric=True` a step leaves the constraints by as much as it comes
    back to them, and is made of a half step of `solver` backward and one forward from the same
    middle [Hairer2000]: exchanging its ends gives the step back in time, to round-off. The order is
    even, that of `solver` or the next. In long runs with fixed steps energies of reversible motions
    stay bounded where the motion is integrable, as by `Rattle`; steps of different lengths lose
    that. The equations of a step are solved by simplified Newton iterations to round-off, for
    `Multipliers` and other formulations whose state is `(q, v, w)` itself. The error estimate is
    that of both halves, without what the projection takes away.

    It is for a formulation without stabilization, or with a gentle one: nothing is left to
    stabilize. Where the formulation allows dependent constraints or a singular mass matrix, so does
    the projection; it solves by the formulation's own `solve`, with its rank or `rcond`.

    Args:
        solver: any diffrax solver, or `jaxdae.solvers.RK4`.
        iterations: of Newton's method; their number is fixed, and derivatives go through them.
            Of symmetric steps those of saved states between steps.
        symmetric: whether steps are symmetric; `solver` is then explicit, with one tableau.

    Raises:
        TypeError: if `solver` is not a solver, or is projected already, or has no symmetric steps.
        ValueError: if `iterations` is not a positive integer, or `solver` depends on earlier steps.
    """

    solver: diffrax.AbstractSolver  # pyright: ignore[reportIncompatibleVariableOverride]
    iterations: int = eqx.field(default=2, static=True)
    symmetric: bool = eqx.field(default=False, static=True)

    def __check_init__(self):
        if not isinstance(self.solver, diffrax.AbstractSolver) or isinstance(self.solver, type):
            raise TypeError(
                "Projected wraps a diffrax solver, such as Projected(diffrax.Dopri8()); got "
                f"{self.solver!r}."
            )
        if isinstance(self.solver, Projected):
            raise TypeError("Projected wraps a solver once; give more iterations instead.")
        refuse_memory(self.solver, "Projected")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(
                f"Projected: iterations is {self.iterations!r}, must be a positive integer."
            )
        if not isinstance(self.symmetric, bool):
            raise ValueError(f"Projected: symmetric is {self.symmetric!r}, must be True or False.")
        if self.symmetric and not isinstance(step_method(self.solver), ExplicitRungeKutta):
            raise TypeError(
                f"Projected: {type(self.solver).__name__} is no explicit Runge-Kutta method with "
                "one tableau, of which symmetric steps are made; give RK4() or diffrax.Dopri8(), "
                "or leave out symmetric=True."
            )

    def finish(self, t, y, args):
        return y if self.symmetric else self.project(t, y, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        if not self.symmetric:
            return super().step(terms, t0, t1, y0, args, solver_state, made_jump)
        return self.steps.step(terms, t0, t1, y0, args, solver_state, made_jump)

    def dense(self, y0, y1, dense):
        return dense if self.symmetric else super().dense(y0, y1, dense)

    def init(self, terms, t0, t1, y0, args):
        return self.steps.init(terms, t0, t1, y0, args)

    def order(self, terms):
        """Order of convergence: that of the solver, or of its symmetric steps."""
        return self.steps.order(terms)

    @property
    def steps(self) -> diffrax.AbstractSolver:
        """What makes the steps, before anything is done to their ends."""
        return SymmetricSteps(self.solver) if self.symmetric else self.solver  # pyright: ignore

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output."""
        return self.steps.interpolation_cls

    def project(self, t, y, args):
        """What is integrated, moved to the constraints.

        Args:
            t: time [s].
            y: the formulation's own state, and the work integrals if there are any.
            args: `(system, formulation, controller)`.
        """
        inner, work = y
        system, formulation, _ = args
        return nearest(system, formulation, t, inner, self.iterations), work


class SolverParts(NamedTuple):
    """What a solver is made of.

    Args:
        method: what makes the steps.
        projection: what takes their ends to the constraints; `None` where nothing does.
    """

    method: Any
    projection: Projected | None


def parts_of(solver) -> SolverParts:
    """The method of a solver, and whether it enforces the constraints itself."""
    solver = solver.solver if isinstance(solver, SampledEnds) else solver
    return (
        SolverParts(solver.solver, solver)
        if isinstance(solver, Projected)
        else SolverParts(solver, None)
    )


def stepping(solver) -> Any:
    """What makes the steps of a solver, before anything is done to their ends."""
    method, projection = parts_of(solver)
    return method if projection is None else projection.steps


def is_symmetric(solver) -> bool:
    """Whether steps are projected symmetrically."""
    projection = parts_of(solver).projection
    return projection is not None and projection.symmetric


def changes_ends(solver) -> bool:
    """Whether something is done to the ends of what `stepping` makes."""
    return isinstance(solver, AbstractChangedEnds) and (
        # To diffrax, what wraps a projected solver is one as well.
        isinstance(solver, SampledEnds) or not is_symmetric(solver)
    )


def between_steps(solver) -> Projected | None:
    """What takes states between steps to the constraints that their ends satisfy, if anything."""
    method, projection = parts_of(solver)
    # What the method itself is does not matter to rows.
    return Projected(diffrax.Euler()) if enforces_constraints(method) else projection
