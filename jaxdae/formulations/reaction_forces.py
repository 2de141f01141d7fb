r"""Forces that depend on the multipliers, found together with them: friction, creep.

    M a + J^T lam = f + F(lam),        J a = s

is, without the accelerations, `A lam - J M^-1 F(lam) = J M^-1 f - s` with `A = J M^-1 J^T`: in
general nonlinear and not symmetric.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.systems import Dynamics, evaluate, State, System
from jaxdae.systems.dynamics import constraint_residuals, has_reaction_forces

# Friction is piecewise linear in the multipliers: Newton's method ends once it has their signs.
# Two more steps from there make derivatives up to the third exact.
_STEPS = 6
# A run that stops where the margin is below this is stopped by that: towards zero the multipliers
# grow like its inverse.
_NEARLY_UNDETERMINED = 0.1


class ReactionLaw(NamedTuple):
    """`F(lam) - F(0)` at a state, as a function `force`, and multipliers `none` that are zero."""

    force: Callable[..., Float[Array, " n"]]
    none: Float[Array, " c"]


class ReactionSolution(NamedTuple):
    """Accelerations and multipliers, and whether they are determined.

    Args:
        a: accelerations, shape `(n,)`.
        lam: multipliers, shape `(c,)`.
        margin: determinant of `A - J M^-1 dF/dlam` over that of `A`, at `lam` or at `-lam`, where
            it is less. Not positive, the multipliers are not determined.
        converged: whether Newton's method did.
    """

    a: Float[Array, " n"]
    lam: Float[Array, " c"]
    margin: Float[Array, ""]
    converged: Array


def reaction_law(system: System, t, y: State, u) -> ReactionLaw | None:
    """What of the forces depends on the multipliers; `None` where nothing does."""
    t = jnp.asarray(t, y.q.dtype)
    if not has_reaction_forces(system, t, y.q, y.v, y.w, u):
        return None
    none = jnp.zeros_like(constraint_residuals(system, t, y.q, y.v).phi_dot)

    def force(lam) -> Any:
        return system.reaction_dependent_force(t, y.q, y.v, y.w, u, lam)

    at_zero = force(none)
    return ReactionLaw(lambda lam: force(lam) - at_zero, none)


def accelerate_with(law: ReactionLaw, d: Dynamics, rhs):
    """Acceleration `(n,)` and multipliers `(c,)` for the wanted `J a = rhs`; NaN if undetermined.

    `d` has the forces at `lam = 0`; `M` is regular, `J` of full rank.
    """
    result = solve_together(law, d, rhs)
    good = result.converged & (result.margin > 0)
    return jnp.where(good, result.a, jnp.nan), jnp.where(good, result.lam, jnp.nan)


def solve_together(law: ReactionLaw, d: Dynamics, rhs) -> ReactionSolution:
    """Newton's method from the multipliers without these forces; exact at once for affine ones."""
    solved = solve_positive_definite(d.mass, jnp.concatenate([d.jac.T, d.force[:, None]], axis=1))
    mobility, free = solved[:, :-1], solved[:, -1]
    response, drive = d.jac @ mobility, d.jac @ free - rhs

    def residual(lam):
        return response @ lam - drive - mobility.T @ law.force(lam)

    def newton(lam):
        return lam - jnp.linalg.solve(jax.jacfwd(residual)(lam), residual(lam))

    start = solve_positive_definite(response, drive)
    if not depends_on(jax.jacfwd(law.force), 0, start):
        before = lam = newton(start)
    else:
        near = jax.lax.fori_loop(0, _STEPS, lambda _, lam: newton(lam), start)
        before = newton(jax.lax.stop_gradient(near))
        lam = newton(before)
    change, size = jnp.max(jnp.abs(lam - before)), jnp.max(jnp.abs(lam)) + jnp.max(jnp.abs(start))
    a = free + solve_positive_definite(d.mass, law.force(lam)) - mobility @ lam
    return ReactionSolution(
        a, lam, _margin(residual, response, lam), change <= jnp.finfo(lam.dtype).eps ** 0.5 * size
    )


def _margin(residual, response, lam):
    """The least ratio of determinants at `lam` and at its mirror image, where friction turns."""
    lam, response = jax.lax.stop_gradient((lam, response))
    tangent = jax.jacfwd(residual)
    ratios = [
        jnp.linalg.det(jnp.linalg.solve(response, jax.lax.stop_gradient(tangent(x))))
        for x in (lam, -lam)
    ]
    return jnp.minimum(*ratios)


def why_undetermined(system: System, t, y: State, *, wanted_rate, nearly=False) -> str | None:
    """Why multipliers and forces do not determine each other at a state, or `None` if they do.

    Asked without a control input; where the forces need one there is no answer. With `nearly` a
    margin that is nearly zero counts; `wanted_rate(t, y, phi, phi_dot)` is the stabilization's.
    """
    if type(system).reaction_dependent_force is System.reaction_dependent_force:
        return None
    try:
        result = _at(system, jnp.asarray(t, y.q.dtype), y, wanted_rate)
    except (TypeError, AttributeError, IndexError, ValueError):
        return None
    if result is None:
        return None
    solution, finite = result
    if not bool(finite):
        return (
            f"the forces that depend on the multipliers are not finite at t = {float(t):.6g}, or "
            "their derivatives are not. At rest friction has no direction: write a smooth law, "
            "such as tanh(v / v0) for sign v."
        )
    margin, least = float(solution.margin), _NEARLY_UNDETERMINED if nearly else 0.0
    # Not finite, it is the constraints that are dependent.
    if not np.isfinite(margin) or (bool(solution.converged) and margin > least):
        return None
    return (
        f"the forces that depend on the multipliers leave them undetermined at t = {float(t):.6g}, "
        "or nearly so: none or several satisfy the equations (Painleve's paradox of rigid bodies "
        "with friction). The determinant of J M^-1 (J^T - dF/dlam), over that of J M^-1 J^T, is "
        f"{margin:.3g} and must be positive. Lower the coefficient of friction, keep "
        "away from that configuration, or let the contact be elastic (a stiff spring in place of "
        "the constraint, whose force `force` can see)."
    )


@jit
def _at(system, t, y, wanted_rate) -> tuple[ReactionSolution, Array] | None:
    """The solution at a state, and whether the forces are finite there."""
    law = reaction_law(system, t, y, None)
    if law is None:
        return None
    d = evaluate(system, t, y.q, y.v, y.w, None, law.none)
    checked = jnp.append(d.force, jax.jacfwd(law.force)(law.none))
    solution = solve_together(law, d, wanted_rate(t, y, d.phi, d.phi_dot) - d.gamma)
    return solution, jnp.all(jnp.isfinite(checked))
