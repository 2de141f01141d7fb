"""Simplified Newton iterations for the equations of a step, with derivatives in both modes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdae.linalg.lu import inverse_factors, product, refined

# Long steps, such as of 0.8 rad of a pendulum, take tens of iterations; others some five.
_MOST_ITERATIONS = 100


def filled(like, *values):
    """One value for all entries of each part of a structure, in one vector."""
    parts = zip(like, values, strict=True)
    return jnp.concatenate([jnp.full(x.size, value, x.dtype) for x, value in parts])


def root(function: Callable, guess, added, weights):
    """A root by simplified Newton iterations, and 1 where they have converged, or else 0.

    Args:
        function: of an array, gives one of its shape.
        guess: with whose Jacobian all iterations are made.
        added: to its diagonal.
        weights: of the entries of a change in its size, relative to round-off.
    """
    guess, added, weights = jax.lax.stop_gradient((guess, added, weights))
    first, then = inverse_factors(jax.jacfwd(function)(guess), added)
    eps = float(jnp.finfo(guess.dtype).eps)
    exact, enough = 4 * eps, eps**0.75

    def solve(function, guess):
        def improved(state):
            x, before, count, _ = state
            change = product(then, product(first, -function(x)))
            size = jnp.max(jnp.abs(change) * weights)
            # Done at round-off, or where iterations come no nearer than what sums of large terms
            # leave; given up where they do not come nearer at all.
            done = (size <= exact) | ((size < enough) & (size >= 0.5 * before))
            hopeless = ~(size < before) & (count > 3) | ~jnp.isfinite(size)
            return x + change, size, count + 1, jnp.where(done, 1, jnp.where(hopeless, -1, 0))

        def goes_on(state):
            *_, count, found = state
            return (found == 0) & (count < _MOST_ITERATIONS)

        begin = guess, jnp.asarray(jnp.inf, guess.dtype)
        begin = (*begin, jnp.zeros((), int), jnp.zeros((), int))
        x, _, _, found = jax.lax.while_loop(goes_on, improved, begin)
        return x, (found > 0).astype(guess.dtype)

    def tangent(linear, right):
        matrix = jax.vmap(linear, out_axes=1)(jnp.eye(right.size, dtype=right.dtype))
        return refined(matrix, right, added)

    return jax.lax.custom_root(function, guess, solve, tangent, has_aux=True)
