"""Any solver, with each of its steps projected onto the constraints."""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation, holding_rank, solves
from jaxdae.linalg.saddle_point import (
    AbstractSaddlePointSolve,
    FullRankSolve,
    MinimumNormSolve,
    SingularMassSolve,
)
from jaxdae.solvers.base import refuse_memory
from jaxdae.solvers.constrained_term import enforces_constraints
from jaxdae.solvers.sampled import Sampled
from jaxdae.solvers.wrapped import AbstractChangedEnds
from jaxdae.systems import constraint_residuals, State, System
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.kinematics import coordinate_rate


class Projected(AbstractChangedEnds):
    r"""A solver whose steps end on the constraints.

    After each step the coordinates, then the velocities, go to the constraints by Newton's method,
    each iteration by the least change in the mass metric:

        M dq + J^T mu = 0,  J dq = -phi(t, q);      M dv + J^T mu = 0,  J dv = -(dphi/dt, g)

    with `J` of the position constraints in the first. The order of the method is kept
    [HairerWanner1996, section VII.2], and so is its estimate of the error. From a step's end, off
    by its truncation error, two iterations reach round-off. Dense output of `simulate` is projected
    too.

    This holds for formulations whose exact motion stays on the constraints. That of `Penalty` does
    not: its error is smaller with the projection, but falls with the step only to first order.
    `RealizingForces`, which are nothing without a violation, are refused.

    It is for a formulation without stabilization, or with a gentle one: nothing is left to
    stabilize. Where the formulation allows dependent constraints or a singular mass matrix, so does
    the projection; it solves by the formulation's own `solve`, with its rank or `rcond`.

    Args:
        solver: any diffrax solver, or `jaxdae.solvers.RK4`.
        iterations: of Newton's method; their number is fixed, and derivatives go through them.

    Raises:
        TypeError: if `solver` is not a solver, or is projected already.
        ValueError: if `iterations` is not a positive integer, or `solver` depends on earlier steps.
    """

    solver: diffrax.AbstractSolver  # pyright: ignore[reportIncompatibleVariableOverride]
    iterations: int = eqx.field(default=2, static=True)

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

    def finish(self, t, y, args):
        return self.project(t, y, args)

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
    solver = solver.solver if isinstance(solver, Sampled) else solver
    return (
        SolverParts(solver.solver, solver)
        if isinstance(solver, Projected)
        else SolverParts(solver, None)
    )


def between_steps(solver) -> Projected | None:
    """What takes states between steps to the constraints that their ends satisfy, if anything."""
    method, projection = parts_of(solver)
    # What the method itself is does not matter to rows.
    return Projected(diffrax.Euler()) if enforces_constraints(method) else projection


def nearest(system: System, formulation: AbstractFormulation, t, y, iterations: int):
    """The state of a formulation moved to the constraints.

    Args:
        system: the declaration.
        formulation: whose state it is.
        t: time [s].
        y: the formulation's own state.
        iterations: of Newton's method.

    Returns:
        The same kind of state.
    """
    state = formulation.recover(system, t, y)
    t = jnp.asarray(t, state.q.dtype)
    # Without a solve of its own the formulation has not decided on the rank.
    solve = holding_rank(policy(formulation), system, t, state)
    q, v = state.q, state.v
    positions = system.position_constraints(t, q).size
    for _ in range(iterations if positions else 0):
        mass, jac = mass_and_jacobian(system, t, q, v)
        change = _least(solve, mass, jac[:positions], system.position_constraints(t, q))
        q = q + coordinate_rate(system, t, q, change)
    # Derivatives of position constraints are linear in the velocities, others need not be.
    nonlinear = system.velocity_constraints(t, q, v).size > 0
    for _ in range(iterations if nonlinear else 1):
        mass, jac = mass_and_jacobian(system, t, q, v)
        v = v + _least(solve, mass, jac, constraint_residuals(system, t, q, v).phi_dot)
    return formulation.init(system, t, State(q, v, state.w), like=y)


def _least(solve: AbstractSaddlePointSolve, mass, jac, residual) -> Float[Array, " n"]:
    """The least change in the mass metric that takes a linear residual away."""
    return solve(mass, jnp.zeros(mass.shape[0], mass.dtype), jac, -residual)[0]


def policy(formulation: AbstractFormulation | None) -> AbstractSaddlePointSolve:
    """That of the formulation, or one that assumes no more than it does."""
    declared = solves(formulation)
    if declared:
        return declared[0]
    if formulation is None:
        return FullRankSolve()
    assumed = formulation.capabilities
    solve = FullRankSolve() if assumed.independent_constraints else MinimumNormSolve()
    return solve if assumed.regular_mass else SingularMassSolve(solve)
