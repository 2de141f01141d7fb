"""Steps by diffrax that suit the derivatives of a motion, not only the motion.

The perturbation that they carry along, and why, is that of `jaxdae.derivatives.perturbation`.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.perturbation import (
    excited,
    perturbation,
    stopped,
    with_error_of_perturbation,
)
from jaxdae.solvers.rodas5p import Rodas5P
from jaxdae.solvers.wrapped import AbstractAroundSolver


class PerturbedSteps(AbstractAroundSolver):
    """Steps of `solver` whose error estimates are those of a perturbation of the motion, too.

    Args:
        solver: any one-step method with an estimate of the error.
        controller: what chooses the steps, with tolerances.
        differentiated: whether the run has a derivative: the perturbation then has steps of its
            own, which have none.
    """

    solver: diffrax.AbstractSolver  # pyright: ignore[reportIncompatibleVariableOverride]
    controller: Any
    differentiated: bool = eqx.field(static=True, default=True)

    def init(self, terms, t0, t1, y0, args):
        flat, _ = ravel_pytree(y0)
        state = self.solver.init(terms, t0, t1, y0, args)
        return state, jnp.asarray(perturbation(flat.size, flat.dtype))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        own, moved = solver_state
        fixed: Any = stopped((terms, t0, t1, y0, args))
        made, (after, moved_error) = self._along(fixed, moved)
        if self.differentiated:
            made = self.solver.step(terms, t0, t1, y0, args, own, made_jump)
        y1, error, dense, own, result = made
        given: Any = error
        # What counted iterations took stands beside the error.
        alone, *counts = given if _is_counted(given, y1) else (given,)
        flat, unravel = ravel_pytree(alone)
        before, end = (ravel_pytree(y)[0] for y in (y0, y1))
        flat = with_error_of_perturbation(
            flat, before, end, (moved_error, moved, after), self.controller
        )
        if isinstance(_innermost(self.solver), diffrax.AbstractERK):
            after = excited(before, end, (moved, after), self.controller)
        error = (unravel(flat), *counts) if counts else unravel(flat)
        return y1, error, dense, (own, after), result

    def _along(self, given, moved):
        """A step; the perturbation at its end, and the error of that."""
        terms, t0, t1, y0, args = given
        solver, (flat, unravel) = _with_forward_mode(self.solver), ravel_pytree(y0)

        def ends(y):
            y = unravel(y)
            # What the last step left is begun anew: it depends on the state.
            state = solver.init(terms, t0, t1, y, args)
            made = solver.step(terms, t0, t1, y, args, state, made_jump=True)
            error = made[1][0] if _is_counted(made[1], made[0]) else made[1]
            return (ravel_pytree(made[0])[0], ravel_pytree(error)[0]), made

        _, (after, error), made = jax.jvp(ends, (flat,), (moved,), has_aux=True)
        return made, stopped((after, error))


def suits(solver) -> bool:
    """Whether steps of a solver may carry a perturbation: it integrates rates of change alone.

    One that finds multipliers or rates as well begins from values that fit each other, which a
    perturbation without any symmetry does not.
    """
    return isinstance(_innermost(solver), diffrax.AbstractRungeKutta | Rodas5P)


def _is_counted(error, y) -> bool:
    """Whether what iterations took stands beside an error."""
    return jax.tree.structure(error) != jax.tree.structure(y)


def _innermost(solver) -> Any:
    """What a solver is wrapped around."""
    while isinstance(solver, diffrax.AbstractWrappedSolver):
        solver = solver.solver
    return solver


def _with_forward_mode(solver) -> Any:
    """The same whose loops over stages have derivatives in forward mode."""
    if isinstance(solver, diffrax.AbstractWrappedSolver):
        inner = _with_forward_mode(solver.solver)  # pyright: ignore[reportAttributeAccessIssue]
        return eqx.tree_at(lambda x: x.solver, solver, inner)
    if isinstance(solver, diffrax.AbstractRungeKutta):
        return eqx.tree_at(lambda x: x.scan_kind, solver, "lax", is_leaf=lambda x: x is None)
    return solver
