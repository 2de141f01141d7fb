"""Strictly convex quadratic programs whose unknowns lie between bounds."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.linalg.positive_definite import solve_positive_definite

# One or two sweeps find the active bounds of a few well-scaled unknowns; the limit is for NaN.
_MAX_SWEEPS = 100


def minimize_in_box(
    matrix: Float[Array, "c c"],
    linear: Float[Array, " c"],
    lower: Float[Array, " c"],
    upper: Float[Array, " c"],
) -> Float[Array, " c"]:
    r"""Minimize `x^T A x / 2 + b^T x` subject to `lower_i <= x_i <= upper_i`.

    Equivalently `A x + b` is zero where `x_i` is inside, not positive at the upper bound and not
    negative at the lower one. Projected Gauss-Seidel sweeps, which converge for every positive
    definite `A`, propose the active bounds; a linear solve on the face they span gives the
    minimizer to round-off, and its derivatives, and is accepted when it satisfies the conditions.

    Args:
        matrix: `A`, shape `(c, c)`, symmetric positive definite.
        linear: `b`, shape `(c,)`.
        lower: shape `(c,)`; `-inf` where there is none.
        upper: shape `(c,)`, larger; `inf` where there is none.

    Returns:
        The minimizer, shape `(c,)`: Lipschitz continuous in all arguments, and differentiable
        where no multiplier of an active bound vanishes.
    """
    if linear.size == 0:
        return linear
    values = jax.tree.map(jax.lax.stop_gradient, (matrix, linear, lower, upper))
    swept, sides, result = _active_bounds(*values)
    return jnp.where(result, _on_face(matrix, linear, lower, upper, sides), swept)


def _active_bounds(matrix, linear, lower, upper):
    """The last iterate, its active bounds (-1, 0 or 1), and whether they are the minimizer's."""

    def sweep(carry):
        x, _, _, count = carry
        relax = lambda i, x: _relax(matrix, linear, lower, upper, x, i)  # noqa: E731
        x = jax.lax.fori_loop(0, x.size, relax, x)
        sides = jnp.where(x >= upper, 1.0, jnp.where(x <= lower, -1.0, 0.0)).astype(x.dtype)
        return x, sides, _is_optimal(matrix, linear, lower, upper, sides), count + 1

    start = (jnp.zeros_like(linear), jnp.zeros_like(linear), jnp.array(False), 0)
    x, sides, result, _ = jax.lax.while_loop(
        lambda carry: ~carry[2] & (carry[3] < _MAX_SWEEPS), sweep, start
    )
    return x, sides, result


def _relax(matrix, linear, lower, upper, x, i):
    """Minimize over unknown `i` alone."""
    best = x[i] - (matrix[i] @ x + linear[i]) / matrix[i, i]
    return x.at[i].set(jnp.clip(best, lower[i], upper[i]))


def _on_face(matrix, linear, lower, upper, sides):
    """Minimizer with the unknowns of nonzero `sides` held at their bounds."""
    free = sides == 0
    held = jnp.where(free, 0.0, jnp.where(sides > 0, upper, lower))
    inner = jnp.where(free[:, None] & free[None, :], matrix, jnp.eye(held.size, dtype=held.dtype))
    return solve_positive_definite(inner, jnp.where(free, -linear - matrix @ held, held))


def _is_optimal(matrix, linear, lower, upper, sides):
    x = _on_face(matrix, linear, lower, upper, sides)
    slope = matrix @ x + linear
    # Conditions are tested to the round-off of what they are sums of.
    slack = 100 * jnp.finfo(x.dtype).eps
    inside = (x >= lower - slack * jnp.abs(lower)) & (x <= upper + slack * jnp.abs(upper))
    size = jnp.abs(matrix) @ jnp.abs(x) + jnp.abs(linear)
    return jnp.all(inside & (slope * sides <= slack * size))
