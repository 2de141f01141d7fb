"""The point of constraints that is nearest to a given one: by NumPy where all is known, or by JAX.

One search for both. NumPy's costs the compiling of the constraints and their derivatives alone; the
program that JAX makes of it takes a hundred times as long to compile as NumPy needs for all of it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.linalg.held_rank import pivoted_rows, unit_rows
from jaxdae.systems.independence import approach, surely_independent

_MAX_STEPS = 64
# Unknowns of which all second derivatives are computed at once.
_FEW = 64
# Half steps: the distance to the constraints falls by 2^16.
_APPROACH_STEPS = 16


class LinearizedConditions(NamedTuple):
    """Constraints next to a point.

    Args:
        residual: `c(x)`, shape `(c,)`.
        jac: `dc/dx`, shape `(c, n)`.
        bend: `d2(mu^T c)/dx2`, shape `(n, n)`; zero without multipliers.
    """

    residual: Any
    jac: Any
    bend: Any


class Arithmetic(NamedTuple):
    """What computes a search.

    Args:
        np: `numpy` or `jax.numpy`.
        loop: `loop(goes_on, step, state)`, as `jax.lax.while_loop`.
        least_squares: `least_squares(A, b, part)`, the solution of least norm without the singular
            values below a part of the largest; NaN where there is none.
        linearize: `linearize(x, mu) -> LinearizedConditions`; `mu` may be `None`.
        independent: `independent(x) -> (c,)`, which constraints to take: those that are independent
            where they hold, next to `x`.
    """

    np: Any
    loop: Callable
    least_squares: Callable
    linearize: Callable
    independent: Callable


def nearest_known(
    constraint: Callable, arguments: tuple, count: int, metric, x0, free
) -> Float[np.ndarray, " n"]:
    """The point of `constraint(*arguments, x) = 0` nearest to `x0`, for numbers that are known.

    Args:
        constraint: the same function in each call, which is compiled.
        arguments: that come before `x`.
        count: number of the constraints.
        metric: shape `(n, n)`.
        x0: where to begin, shape `(n,)`.
        free: the entries that may move, shape `(n,)`.
    """
    x0, metric, free = map(np.asarray, (x0, metric, free))
    if count == 0:
        return x0
    none = np.zeros(count, x0.dtype)
    compiled = _linearize_compiled.bind(constraint, arguments, x0, none)

    def linearize_at(x, mu):
        return LinearizedConditions(*map(np.asarray, compiled(x, none if mu is None else mu)))

    def independent(x):
        here = linearize_at(x, None)
        jac = np.where(free, here.jac, 0.0)
        known = np.isfinite(jac).all() and np.isfinite(here.residual).all()
        if not known or surely_independent(jac, here.residual):
            return np.ones(count, bool)
        return np.asarray(_independent(constraint, arguments, x, free))

    by = Arithmetic(np, _loop, _least_squares, linearize_at, independent)
    with np.errstate(all="ignore"):  # what is no number is found in the result
        return _search(by, count, metric, x0, free)[0]


def nearest(
    constraint: Callable, arguments: tuple, count: int, metric: Float[Array, "n n"], x0, free
) -> Float[Array, " n"]:
    """The same in a program.

    Derivatives follow from the implicit function theorem, in both modes and to every order.
    """
    if count == 0:
        return x0
    # What it knows becomes part of it, so that nothing of the search is differentiated.
    constraint = eqx.filter_closure_convert(partial(constraint, *arguments), x0)
    arrays, rest = eqx.partition((constraint, metric, x0), eqx.is_array)
    plain, its_metric, begin = eqx.combine(jax.lax.stop_gradient(arrays), rest)
    by = Arithmetic(
        jnp,
        jax.lax.while_loop,
        lambda matrix, rhs, part: jnp.linalg.lstsq(matrix, rhs, part)[0],
        partial(linearize, plain),
        lambda x: _independent_rows(plain, x, free),
    )
    x, mu, used = _search(by, count, its_metric, begin, free)
    metric = _of_order_one(jnp, metric)

    def stationarity(unknown):
        x, mu = unknown
        residual, pullback = jax.vjp(constraint, x)
        gradient = metric @ (x - x0) + pullback(jnp.where(used, mu, 0.0))[0]
        return jnp.where(free, gradient, x - x0), jnp.where(used, residual, mu)

    def tangent(linear, right):
        flat, tree = ravel_pytree(right)
        basis = jnp.eye(flat.size, dtype=flat.dtype)
        columns = jax.vmap(lambda e: ravel_pytree(linear(tree(e)))[0], out_axes=1)(basis)
        solver = lx.SVD(rcond=_round_off(flat.dtype))
        matrix = lx.MatrixLinearOperator(columns)
        return tree(lx.linear_solve(matrix, flat, solver, throw=False).value)

    found = jax.lax.custom_root(stationarity, (x, mu), lambda _, found: found, tangent)
    return jnp.where(free, found[0], x0)


def linearize(constraint: Callable, x, mu) -> LinearizedConditions:
    """Constraints next to a point, by automatic differentiation; `mu` may be `None`."""
    jac, residual = jax.jacfwd(lambda x: (constraint(x),) * 2, has_aux=True)(x)
    if mu is None:
        return LinearizedConditions(residual, jac, 0.0)
    # Forward over forward compiles in a third of the time, but has n^2 tangents at once.
    if x.size <= _FEW:
        bend = jax.jacfwd(lambda x: mu @ jax.jacfwd(constraint)(x))(x)
    else:
        bend = jax.hessian(lambda x: mu @ constraint(x))(x)
    return LinearizedConditions(residual, jac, bend)


@jit(options=BRIEFLY)
def _linearize_compiled(constraint: Callable, arguments: tuple, x, mu) -> LinearizedConditions:
    return linearize(partial(constraint, *arguments), x, mu)


def _search(by: Arithmetic, count: int, metric, x0, free):
    """The point `(n,)`, multipliers `(c,)`, and which of the `count` constraints were taken `(c,)`.

    Newton's method on the stationarity conditions. Alone it fails from far starts; before it go
    half steps of sequential quadratic programming without the constraints' curvature, each towards
    the point of the linearized constraints nearest to `x0`, which keeps away from stationary points
    that are not minima.
    """
    np, part, small = by.np, _round_off(x0.dtype), float(jnp.finfo(x0.dtype).eps) ** 0.75
    metric = _of_order_one(np, metric)
    corner = np.zeros((count, count), x0.dtype)

    def step(x, mu, used):
        """Of Newton's method; without multipliers, of sequential quadratic programming."""
        here = by.linearize(x, mu)
        jac = np.where(used[:, None] & free, here.jac, 0.0)
        # What does not move, or is not taken, leaves both blocks: its step is of least norm, zero.
        inner = np.where(free & free[:, None], metric + here.bend, 0.0)
        slope = np.where(free, metric @ (x - x0), 0.0) + (0.0 if mu is None else jac.T @ mu)
        matrix = np.block([[inner, jac.T], [jac, corner]])
        rhs = np.concatenate([slope, np.where(used, here.residual, 0.0)])
        solution = by.least_squares(matrix, -rhs, part)
        return np.where(free, solution[: x.size], 0.0), solution[x.size :]

    def half_step(state):
        number, x = state
        return number + 1, x + 0.5 * step(x, None, np.ones(count, bool))[0]

    _, near = by.loop(lambda state: state[0] < _APPROACH_STEPS, half_step, (0, x0))
    first, last = by.linearize(x0, None), by.linearize(near, None)
    nearer = np.linalg.norm(last.residual) < np.linalg.norm(first.residual)
    near, jac = np.where(nearer, near, x0), np.where(nearer, last.jac, first.jac)
    used = by.independent(near)
    # Multipliers of the start by least squares: what Newton's method needs at a far one.
    pull = np.where(free, metric @ (x0 - near), 0.0)
    mu = by.least_squares(np.where(used[:, None] & free, jac, 0.0).T, pull, part)

    def newton_step(state):
        number, x, mu, _ = state
        dx, dmu = step(x, mu, used)
        return number + 1, x + dx, mu + dmu, (abs(dx) > small * (1 + abs(x))).any()

    goes_on = lambda state: state[3] & (state[0] < _MAX_STEPS)  # noqa: E731
    _, x, mu, _ = by.loop(goes_on, newton_step, (0, near, mu, np.asarray(True)))
    return x, mu, used


def _independent_rows(constraint: Callable, x, free) -> Bool[Array, " c"]:
    """Which constraints are independent where they hold, next to a point; the farthest first."""
    moving = lambda y: constraint(jnp.where(free, y, x))  # noqa: E731
    there = approach(moving, x)
    result = pivoted_rows(unit_rows(jax.jacfwd(moving)(there))[0])
    used = (jnp.arange(result.sizes.size) < result.rank).astype(result.order.dtype)
    return used @ result.order > 0


@jit(options=BRIEFLY)
def _independent(constraint: Callable, arguments: tuple, x, free) -> Bool[Array, " c"]:
    return _independent_rows(partial(constraint, *arguments), x, free)


def _of_order_one(np, metric):
    """A metric, scaled: the parts of the stationarity conditions are then comparable."""
    return metric / np.maximum(np.max(abs(metric)), np.finfo(metric.dtype).tiny)


def _round_off(dtype) -> float:
    """Singular values below this part are none: of a mass matrix, or of what entries held fix."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)


def _loop(goes_on: Callable, step: Callable, state):
    while goes_on(state):
        state = step(state)
    return state


def _least_squares(matrix, rhs, part: float):
    if np.isfinite(matrix).all() and np.isfinite(rhs).all():
        return np.linalg.lstsq(matrix, rhs, part)[0]
    return np.full(matrix.shape[1], np.nan, matrix.dtype)
