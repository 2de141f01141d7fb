"""What steps of the Radau IIA method of order 5 share, whatever equations their stages satisfy."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.linalg.lu import inverse_factors, product, refined

# Zeros of the second derivative of x^2 (x - 1)^3, and the collocation there
# [HairerWanner1996, IV.5].
NODES = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
_POWERS = np.arange(1, 4)
MATRIX = (NODES[:, None] ** _POWERS / _POWERS) @ np.linalg.inv(NODES[:, None] ** (_POWERS - 1))
INVERSE = np.linalg.inv(MATRIX)


def _real_form() -> tuple[float, float, float, np.ndarray]:
    """`g`, `a`, `b` and `T` with `A^-1 = T [[g, 0, 0], [0, a, -b], [0, b, a]] T^-1`."""
    decomposed: Any = np.linalg.eig(INVERSE)
    values, vectors = decomposed
    real, pair = np.argmin(np.abs(values.imag)), np.argmin(values.imag)
    basis = np.stack([vectors[:, real].real, vectors[:, pair].real, vectors[:, pair].imag], axis=1)
    return float(values[real].real), float(values[pair].real), -float(values[pair].imag), basis


GAMMA, _ALPHA, _BETA, _BASIS = _real_form()
# Weights of the stages in the error estimate, beside h f(t_0, y_0) [HairerWanner1996, IV.8].
ESTIMATE = np.array([-13 - 7 * 6**0.5, -13 + 7 * 6**0.5, -1.0]) / 3
_MOST_ITERATIONS = 40


def lagrange(nodes: np.ndarray, x) -> Any:
    """Lagrange's polynomials on some nodes at times, along a last axis."""
    each = []
    for i, node in enumerate(nodes):
        others = np.delete(nodes, i)
        each.append(math.prod((x - float(y)) / float(node - y) for y in others))
    return jnp.stack(each, axis=-1)


class Collocation(diffrax.AbstractLocalInterpolation):
    """The state between the ends of a step: the collocation polynomial, of degree 3.

    Args:
        t0: beginning of the step [s].
        t1: its end [s].
        y0: state at the beginning.
        y1: state at the end.
        k: changes in the stages, along a first axis of each leaf.
    """

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k: Any

    def evaluate(self, t0, t1=None, left: bool = True):
        """The state at a time [s], or its change between two."""
        del left
        if t1 is not None:
            return jax.tree.map(jnp.subtract, self.evaluate(t1), self.evaluate(t0))
        step = self.t1 - self.t0
        # A step of no length has its end everywhere.
        part = jnp.where(step == 0, 1.0, (t0 - self.t0) / jnp.where(step == 0, 1.0, step))

        def between(y0, k):
            weights = lagrange(np.array([0.0, *NODES]), part.astype(y0.dtype))[1:]
            return y0 + jnp.tensordot(weights, k, 1)

        return jax.tree.map(between, self.y0, self.k)


class Past(NamedTuple):
    """What the last step leaves to the next, for the prediction of its stages.

    Args:
        changes: of state in the stages, shape `(3, states)`.
        multipliers: at its end, shape `(c + m,)`.
        step: its length.
    """

    changes: Any
    multipliers: Any
    step: Any


class StageMatrix(NamedTuple):
    """The matrix `A^-1 (x) E + I (x) F` of simplified Newton iterations, by inverse factors.

    With `A^-1` in its real form it is one of `g E + F`, and one of twice the size.

    Args:
        real: `F` and `G` of the first, see `inverse_factors`.
        pair: of the second.
    """

    real: list
    pair: list

    @classmethod
    def of(cls, inertia, linear, added) -> "StageMatrix":
        """From `E` and `F`, and what is added to the diagonal of `F`."""
        first, second = _ALPHA * inertia + linear, _BETA * inertia
        pair = jnp.block([[first, -second], [second, first]])
        real = inverse_factors(GAMMA * inertia + linear, added)
        return cls(real, inverse_factors(pair, jnp.tile(added, 2)))

    def solved(self, right):
        """The solution of linear equations, shape `(3, rows)`."""
        return self._solved(right, np.linalg.inv(_BASIS), _BASIS, by)

    def transposed(self, right):
        """The same of the transposed equations."""
        return self._solved(right, _BASIS.T, np.linalg.inv(_BASIS).T, _by_transpose)

    def _solved(self, right, there, back, by: Callable):
        right = product(jnp.asarray(there, right.dtype), right)
        both = by(self.pair, jnp.concatenate([right[1], right[2]]))
        parts = jnp.stack([by(self.real, right[0]), *jnp.split(both, 2)])
        return product(jnp.asarray(back, right.dtype), parts)


def by(factors, right):
    """`A^-1 b` by the inverse factors of `A`."""
    first, then = factors
    return product(then, product(first, right))


def _by_transpose(factors, right):
    first, then = factors
    return product(first.T, product(then.T, right))


def predicted(past: Past, h, length, made_jump):
    """Stages as the polynomial of the last step goes on, with the multipliers of its end.

    What multipliers of dependent constraints have that does nothing would grow as they go on.
    """
    ratio = (length / past.step).astype(h.dtype)
    goes_on = (ratio < 4.0) & ~jnp.asarray(made_jump)
    x = 1 + jnp.where(goes_on, ratio, 0.0) * jnp.asarray(NODES, h.dtype)
    changes = product(lagrange(np.array([0.0, *NODES]), x)[:, 1:], past.changes)
    changes = changes - past.changes[-1]
    multipliers = h * jnp.broadcast_to(past.multipliers, (NODES.size, past.multipliers.size))
    return jax.lax.stop_gradient(jnp.concatenate([changes, multipliers], axis=1))


def newton(function, guess, matrix: Any, sizes):
    """The stages by simplified Newton iteration, and 1 where it has converged, or else 0."""
    dtype = guess.dtype
    eps = float(jnp.finfo(dtype).eps)
    # Round-off, and what it may be where large terms cancel: of states, and of forces.
    exact, enough = 4 * eps, jnp.asarray([eps**0.75, eps**0.5], dtype)

    def improved(state):
        x, before, count, _ = state
        change = matrix.solved(-function(x))
        x = x + change
        now = sizes(change, x)
        # Done at round-off, or where iterations do not come nearer any more.
        done = jnp.all((now <= exact) | ((now < enough) & (now >= 0.5 * before)))
        # Given up where it diverges, or would not be done in the iterations that are left.
        left = (_MOST_ITERATIONS - count).astype(dtype)
        ratio = now / jnp.where(before > 0, before, 1.0)
        hopeless = jnp.any(~(now < enough) & ~(now * ratio**left < enough)) & (count > 3)
        return x, now, count + 1, jnp.where(done, 1, jnp.where(hopeless, -1, 0))

    def goes_on(state):
        *_, count, found = state
        return (found == 0) & (count < _MOST_ITERATIONS)

    begin = guess, jnp.full(2, jnp.inf, dtype), jnp.zeros((), int), jnp.zeros((), int)
    x, size, _, found = jax.lax.while_loop(goes_on, improved, begin)
    converged = (found > 0) | ((found == 0) & jnp.all(size < enough))
    return x, jnp.where(converged, 1.0, 0.0).astype(dtype)


def tangent_of(linear: Callable, right, *, matrix: Any, renews: bool = False):
    """Solution of the linear equations that the derivative of the stages satisfies.

    By the iteration that has found the stages, with the exact equations in place of the residual.
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
        return x, lacking, size, count + 1, jnp.where(ended, 1, 0)

    def goes_on(state):
        *_, count, ended = state
        return (ended == 0) & (count < _MOST_ITERATIONS)

    begin = right, jnp.asarray(jnp.inf, right.dtype), jnp.zeros((), int), jnp.zeros((), int)
    begin = (jnp.zeros_like(right), *begin)
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
