"""Adaptive steps that suit the derivatives of a motion, not only the motion.

Steps are chosen by an estimate of the error of the motion. Where that hardly changes, at rest or in
a steady state, they grow until a perturbation of it would be integrated wrongly, or grow without
bound under an explicit method, of which the motion itself shows nothing. A run that is
differentiated therefore carries one perturbation along, a solution of the variational equation

    d(delta)/dt = df/dy(t, y) delta + g,

from a start `g` without any symmetry, and its error is held to the tolerance as well. `g` as a
constant force keeps a perturbation alive that would die out. Sensitivities in the test of errors:
[HindmarshEtAl2005, section 2.2].
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.solvers.wrapped import AbstractAroundSolver

# Entries of a perturbation below this part of the largest are not held to the tolerance.
_LEAST = 1e-3


def numerator(number: Any, choose: Any = np.where) -> Any:
    """An entry of `perturbation` from its number, in units of `UNIT`.

    Args:
        number: integers.
        choose: `choose(condition, a, b)`.
    """
    # Multiples of the golden ratio, modulo one, are spread evenly, and hardly repeat.
    spread = ((number + 1) * 40503) % 65536
    return choose(spread < 32768, spread - 58982, spread - 6554)


# Fractions of 16 bits, the same in single precision.
UNIT = 1 / 65536


def perturbation(states: int, dtype) -> np.ndarray:
    """A perturbation of the start, and a force on it, that have no symmetry.

    Args:
        states: number of entries.
        dtype: of the result.

    Returns:
        Entries of either sign between 0.4 and 0.9 in size, shape (states,).
    """
    return (numerator(np.arange(states)) * UNIT).astype(dtype)


def _is_zero(x) -> bool:
    return not eqx.is_array(x) and x == 0


def tolerances(controller: Any) -> tuple[Any, Any] | None:
    """Relative and absolute tolerance of a step size controller; `None` where it has none."""
    while not hasattr(controller, "rtol") and hasattr(controller, "controller"):
        controller = controller.controller
    rtol, atol = (getattr(controller, x, None) for x in ("rtol", "atol"))
    # Fixed steps in a wrapper have tolerances of zero.
    if rtol is None or atol is None or (_is_zero(rtol) and _is_zero(atol)):
        return None
    return rtol, atol


def with_error_of_perturbation(error, before, after, moved, controller: Any) -> Any:
    """The error of a step by which it is accepted, and the next one chosen.

    Args:
        error: of the state, shape (n,).
        before: the state at the beginning of the step, shape (n,).
        after: the state at its end, shape (n,).
        moved: of a perturbation the error, and the values before and after, each of shape (n,).
        controller: the step size controller, whose tolerances these errors are held to.

    Returns:
        The larger of both errors, that of the perturbation in the units of the state: relative to
        the tolerance and the perturbation's size it is what it is here to `atol + rtol |y|`.
    """
    known = tolerances(controller)
    if known is None:
        return error
    (rtol, atol), (moved_error, moved_before, moved_after) = known, moved
    size = jnp.maximum(jnp.abs(moved_before), jnp.abs(moved_after))
    # A perturbation that has no derivative at the state says nothing.
    finite = jnp.isfinite(size) & jnp.isfinite(moved_error)
    size = jnp.where(finite, size, 0.0)
    size = jnp.maximum(size, _LEAST * jnp.maximum(jnp.max(size, initial=0.0), 1.0))
    share = jnp.where(finite, jnp.abs(moved_error) / size, 0.0)
    allowed = atol + rtol * jnp.maximum(jnp.abs(before), jnp.abs(after))
    larger = jnp.maximum(jnp.abs(error), share * allowed / jnp.maximum(rtol, atol))
    return jax.lax.stop_gradient(larger)


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
        given = terms, t0, t1, y0, args
        made, (after, moved_error) = self._along(*stopped(given), moved)
        if self.differentiated:
            made = self.solver.step(*given, own, made_jump)
        y1, error, dense, own, result = made
        # What counted iterations took stands beside the error.
        alone, *counts = error if _is_counted(error, y1) else (error,)
        flat, unravel = ravel_pytree(alone)
        before, end = (ravel_pytree(y)[0] for y in (y0, y1))
        flat = with_error_of_perturbation(
            flat, before, end, (moved_error, moved, after), self.controller
        )
        error = (unravel(flat), *counts) if counts else unravel(flat)
        return y1, error, dense, (own, after), result

    def _along(self, terms, t0, t1, y0, args, moved):
        """A step; the perturbation at its end, and the error of that."""
        solver, (flat, unravel) = _with_forward_mode(self.solver), ravel_pytree(y0)

        def ends(y):
            y = unravel(y)
            # What the last step left is begun anew: it depends on the state.
            state = solver.init(terms, t0, t1, y, args)
            made = solver.step(terms, t0, t1, y, args, state, made_jump=True)
            error = made[1][0] if _is_counted(made[1], made[0]) else made[1]
            return (ravel_pytree(made[0])[0], ravel_pytree(error)[0]), made

        _, (after, error), made = jax.jvp(ends, (flat,), (moved,), has_aux=True)
        if isinstance(_innermost(solver), diffrax.AbstractERK):
            after = after + (t1 - t0) * perturbation(flat.size, flat.dtype)
        return made, stopped((after, error))


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


def stopped(tree: Any) -> Any:
    """The same without derivatives."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, tree)
