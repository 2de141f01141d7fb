"""The state of a formulation moved to the constraints, by the least change in the mass metric."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdae.formulations.base import AbstractFormulation, holding_rank, solves
from jaxdae.linalg.saddle_point import (
    AbstractSaddlePointSolve,
    FullRankSolve,
    MinimumNormSolve,
    SingularMassSolve,
)
from jaxdae.systems import constraint_residuals, State, System
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.kinematics import coordinate_rate


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

    def moved(q):
        mass, jac = mass_and_jacobian(system, t, q, v)
        off = system.position_constraints(t, q).astype(q.dtype)
        change = solve.least_change(mass, jac[:positions], off)
        return q + coordinate_rate(system, t, q, change)

    def turned(v):
        mass, jac = mass_and_jacobian(system, t, q, v)
        return v + solve.least_change(mass, jac, constraint_residuals(system, t, q, v).phi_dot)

    q = _repeated(moved, iterations if positions else 0, q)
    # Derivatives of position constraints are linear in the velocities, others need not be.
    nonlinear = system.velocity_constraints(t, q, v).size > 0
    v = _repeated(turned, iterations if nonlinear else 1, v)
    return formulation.init(system, t, State(q, v, state.w), like=y)


def _repeated(function: Callable, times: int, x):
    """A function of its own results, so often: compiled once, differentiable in both modes."""
    if times == 1:
        return function(x)
    return jax.lax.scan(lambda x, _: (function(x), None), x, length=times)[0]


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
