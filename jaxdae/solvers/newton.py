"""Newton's iteration for the equations of a step: what it takes, what it says, its derivatives.

Iterations are simplified: all of a step are made with one matrix, or, where these do not converge,
with one of each. Derivatives are those of the equations, by the implicit function theorem. What
counts iterations are floating-point numbers, whose limits kernels need not find out.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from jaxdae.derivatives.implicit import implicit_root
from jaxdae.linalg.lu import Factors, refined

MOST_ITERATIONS = 40
# Long symmetric steps, such as of 0.8 rad of a pendulum, take tens of iterations; others some five.
_MOST_OF_ROOTS = 100
# With matrices anew; two or three do where the guess is good.
_MOST_RENEWED = 10
# Changes of this power of the machine epsilon may be round-off where large terms cancel: of states,
# and of forces.
OF_STATES, OF_FORCES = 0.75, 0.5


class Counts(NamedTuple):
    """What the iterations of a step took, as floating-point numbers.

    Args:
        converged: 1 where all of them have converged, else 0.
        iterations: their number.
        factorizations: number of matrices that were factored for them.
    """

    converged: Any
    iterations: Any
    factorizations: Any

    def and_also(self, other: "Counts") -> "Counts":
        """Those of both of two iterations."""
        return Counts(
            jnp.minimum(self.converged, other.converged),
            self.iterations + other.iterations,
            self.factorizations + other.factorizations,
        )


def nothing_yet(dtype) -> Counts:
    """Counts of no iteration."""
    return Counts(jnp.ones((), dtype), jnp.zeros((), dtype), jnp.zeros((), dtype))


class Matrix(Protocol):
    """The matrix of iterations."""

    def solved(self, right) -> Any:
        """The solution of linear equations, shaped as their right side."""
        ...

    def transposed(self, right) -> Any:
        """The same of the transposed equations."""
        ...


def filled(like, *values):
    """One value for all entries of each part of a structure, in one vector."""
    parts = zip(like, values, strict=True)
    return jnp.concatenate([jnp.full(x.size, value, x.dtype) for x, value in parts])


def newton(
    function: Callable,
    guess,
    matrix: Matrix,
    sizes: Callable,
    *,
    powers: Sequence[float] = (OF_STATES, OF_FORCES),
    most: int = MOST_ITERATIONS,
) -> tuple[Any, Counts]:
    """A root by simplified Newton iterations, and what they took.

    They end at round-off, or where they come no nearer than what sums of large terms leave; they
    are given up where they would not end within what is left of `most`.

    Args:
        function: of an array, gives one of its shape.
        guess: where to begin.
        matrix: close to the derivative of the function.
        sizes: `sizes(change, x)`, of a change at where it leads, relative, in as many numbers as
            there are `powers`.
        powers: of the machine epsilon, below which each size may be round-off.
        most: largest number of iterations.
    """
    dtype = guess.dtype
    eps = float(jnp.finfo(dtype).eps)
    exact, enough = 4 * eps, jnp.asarray([eps**power for power in powers], dtype)

    def improved(state):
        x, before, count, _ = state
        change = matrix.solved(-function(x))
        x = x + change
        now = sizes(change, x)
        # Done at round-off, or where iterations do not come nearer any more.
        done = jnp.all((now <= exact) | ((now < enough) & (now >= 0.5 * before)))
        # Given up where it diverges, or would not be done in the iterations that are left.
        ratio = now / jnp.where(before > 0, before, 1.0)
        hopeless = jnp.any(~(now < enough) & ~(now * ratio ** (most - count) < enough))
        hopeless &= count > 3
        return x, now, count + 1, jnp.where(done, one, jnp.where(hopeless, -one, zero))

    def goes_on(state):
        *_, count, found = state
        return (found == 0) & (count < most)

    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    begin = guess, jnp.full(len(powers), jnp.inf, dtype), zero, zero
    x, size, count, found = jax.lax.while_loop(goes_on, improved, begin)
    converged = (found > 0) | ((found == 0) & jnp.all(size < enough))
    return x, Counts(jnp.where(converged, one, zero), count, one)


def renewed(function: Callable, guess, x, counts: Counts, matrix_at: Callable):
    """A root by Newton's method with the matrix anew in each iteration, where others have failed.

    For steps in which simplified iterations have not converged: across singular positions the
    Jacobian of the constraints changes by as much as it is, and its sign.

    Args:
        function: see `newton`.
        guess: likewise.
        x: what that has found.
        counts: of it.
        matrix_at: `matrix_at(x)`, the matrix of all entries in a row, what is added to its
            diagonal, and `sizes` of changes.
    """
    dtype = guess.dtype
    eps = float(jnp.finfo(dtype).eps)
    enough = jnp.asarray([eps**OF_STATES, eps**OF_FORCES], dtype)

    def improved(state):
        x, count, _ = state
        matrix, added, sizes = matrix_at(x)
        factors = Factors.of(matrix, added, pivots=True)
        change = factors.solved(-function(x).reshape(-1)).reshape(x.shape)
        x = x + change
        return x, count + 1, jnp.where(jnp.all(sizes(change, x) < enough), one, zero)

    def goes_on(state):
        _, count, found = state
        return (found == 0) & (count < _MOST_RENEWED)

    one, zero = jnp.ones((), dtype), jnp.zeros((), dtype)
    begin = jnp.where(counts.converged > 0, x, guess), zero, counts.converged
    x, more, found = jax.lax.while_loop(goes_on, improved, begin)
    return x, Counts(found, counts.iterations + more, counts.factorizations + more)


def root(function: Callable, guess, added, weights):
    """A root by simplified Newton iterations, differentiable, and what they took.

    Args:
        function: of an array, gives one of its shape.
        guess: with whose Jacobian all iterations are made.
        added: to its diagonal.
        weights: of the entries of a change in its size, relative to round-off.
    """
    guess, added, weights = jax.lax.stop_gradient((guess, added, weights))
    function = jax.jit(function)  # traced once, for iterations and their derivatives
    matrix = Factors.of(jax.jacfwd(function)(guess), added)

    def sizes(change, x):
        return jnp.max(jnp.abs(change) * weights)[None]

    def solve(function, guess):
        given = function, guess, matrix, sizes
        return newton(*given, powers=(OF_STATES,), most=_MOST_OF_ROOTS)

    return implicit_root(function, guess, solve, Partial(_refined_tangent, added=added))


def _refined_tangent(linear: Callable, right, *, added):
    own = jax.vmap(linear, out_axes=1)(jnp.eye(right.size, dtype=right.dtype))
    return refined(own, right, added)


def tangent_of(linear: Callable, right, *, matrix: Matrix, renews: bool = False):
    """Solution of the linear equations that the derivative of a root satisfies.

    By the iteration that has found the root, with the exact equations in place of the residual.
    """
    return jax.lax.custom_linear_solve(
        linear,
        right,
        lambda function, b: _iterated(function, b, matrix.solved, renews),
        lambda function, b: _iterated(function, b, matrix.transposed, renews),
    )


def _iterated(function, right, nearly, renews):
    """`function(x) = right` by a solve that is nearly its inverse; NaN where that does not help.

    Or, where `renews` is true, by the matrix of the function itself.
    """
    # By what is left of the right side: of dependent constraints the solution is not unique.
    limit = float(jnp.finfo(right.dtype).eps) ** 0.5 * jnp.max(jnp.abs(right))

    def improved(state):
        x, lacking, before, count, _ = state
        x = x + nearly(lacking)
        lacking = right - function(x)
        size = jnp.max(jnp.abs(lacking))
        ended = (size <= limit) & (size >= 0.5 * before)
        return x, lacking, size, count + 1, jnp.where(ended, one, zero)

    def goes_on(state):
        *_, count, ended = state
        return (ended == 0) & (count < MOST_ITERATIONS)

    one, zero = jnp.ones((), right.dtype), jnp.zeros((), right.dtype)
    begin = jnp.zeros_like(right), right, jnp.asarray(jnp.inf, right.dtype), zero, zero
    x, _, size, _, _ = jax.lax.while_loop(goes_on, improved, begin)
    if not renews:
        # Nothing gives nothing, also where the function is not finite: such members of a batch
        # leave sums over all of them alone.
        x = jnp.where(size <= limit, x, jnp.nan)
        return jnp.where(jnp.all(right == 0), jnp.zeros_like(right), x)

    def solved(_):
        unit = jnp.eye(right.size, dtype=right.dtype)
        columns = jax.vmap(function)(unit.reshape(-1, *right.shape))
        own = columns.reshape(unit.shape).T
        # Dependent constraints leave it singular.
        small = float(jnp.finfo(right.dtype).eps) * jnp.max(jnp.abs(own)) * jnp.ones_like(own[0])
        return refined(own, right.reshape(-1), small).reshape(right.shape), True

    return jax.lax.while_loop(lambda state: ~state[1], solved, (x, size <= limit))[0]
