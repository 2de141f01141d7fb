"""Square nonlinear equations of few unknowns, by a damped Newton's method on dense matrices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.derivatives.implicit import implicit_root

_MOST_ITERATIONS = 60
# Parts of a Newton step that are tried, of which that with the least residual is taken.
_PARTS = 0.5 ** np.arange(14)


def root(
    function: Callable[[Float[Array, " n"]], Float[Array, " n"]], guess: Float[Array, " n"]
) -> Float[Array, " n"]:
    """The root of a function near a guess; what was reached where there is none.

    Iterations end where the residual no longer falls. Derivatives are those of the equation, by the
    implicit function theorem, in both modes and to every order.

    Args:
        function: as many equations as unknowns; what else it depends on may be differentiated.
        guess: where to begin.
    """
    if guess.size == 0:
        return guess
    return implicit_root(function, jax.lax.stop_gradient(guess), _newton, _tangent)[0]


def _newton(function, guess):
    parts, eps = jnp.asarray(_PARTS, guess.dtype), float(jnp.finfo(guess.dtype).eps)

    def size(x):
        norm = jnp.linalg.norm(function(x))
        return jnp.where(jnp.isfinite(norm), norm, jnp.inf)

    def improved(state):
        x, before, count, _ = state
        step = jnp.linalg.solve(jax.jacfwd(function)(x), -function(x))
        trials = x + parts[:, None] * step
        sizes = jax.vmap(size)(trials)
        best = jnp.argmin(sizes)
        better = sizes[best] < before
        moves = jnp.max(jnp.abs(step)) > 4 * eps * jnp.max(jnp.abs(x))
        found = jnp.where(better, trials[best], x)
        goes_on = better & moves & (sizes[best] > 0)
        return found, jnp.minimum(sizes[best], before), count + 1, goes_on

    def goes_on(state):
        return state[3] & (state[2] < _MOST_ITERATIONS)

    begin = guess, size(guess), jnp.zeros((), int), jnp.array(True)
    return jax.lax.while_loop(goes_on, improved, begin)[0], None


def _tangent(linear, right):
    matrix = jax.vmap(linear, out_axes=1)(jnp.eye(right.size, dtype=right.dtype))
    return jnp.linalg.solve(matrix, right)
