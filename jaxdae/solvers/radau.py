"""Radau IIA: an implicit method for stiff equations of motion that keeps their constraints."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.linalg.lu import inverse_factors, product, refined
from jaxdae.solvers.base import AbstractTracedSolver
from jaxdae.solvers.constrained_term import ConstrainedTerm

# Zeros of the second derivative of x^2 (x - 1)^3, and the collocation there
# [HairerWanner1996, IV.5].
_NODES = np.array([(4 - 6**0.5) / 10, (4 + 6**0.5) / 10, 1.0])
_POWERS = np.arange(1, 4)
_MATRIX = (_NODES[:, None] ** _POWERS / _POWERS) @ np.linalg.inv(_NODES[:, None] ** (_POWERS - 1))
_INVERSE = np.linalg.inv(_MATRIX)


def _real_form() -> tuple[float, float, float, np.ndarray]:
    """`g`, `a`, `b` and `T` with `A^-1 = T [[g, 0, 0], [0, a, -b], [0, b, a]] T^-1`."""
    decomposed: Any = np.linalg.eig(_INVERSE)
    values, vectors = decomposed
    real, pair = np.argmin(np.abs(values.imag)), np.argmin(values.imag)
    basis = np.stack([vectors[:, real].real, vectors[:, pair].real, vectors[:, pair].imag], axis=1)
    return float(values[real].real), float(values[pair].real), -float(values[pair].imag), basis


_GAMMA, _ALPHA, _BETA, _BASIS = _real_form()
# Weights of the stages in the error estimate, beside h f(t_0, y_0) [HairerWanner1996, IV.8].
_ESTIMATE = np.array([-13 - 7 * 6**0.5, -13 + 7 * 6**0.5, -1.0]) / 3

_MOST_ITERATIONS = 40
# With the Jacobians of all stages; two or three do where the prediction is good.
_MOST_RENEWED = 10
# Rows of a stage with which kernels have those: they are code of three times as many unknowns.
_MOST_ROWS_RENEWED = 12
# Of the matrices of iterations, as a power of the machine epsilon: far above round-off, and far
# below what slows iterations down.
_ADDED = 2 / 3


def _lagrange(nodes: np.ndarray, x) -> Any:
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
            weights = _lagrange(np.array([0.0, *_NODES]), part.astype(y0.dtype))[1:]
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


class RadauIIA(AbstractTracedSolver, diffrax.AbstractAdaptiveSolver):
    r"""The Radau IIA method of order 5 for equations of motion with constraints [HairerWanner1996].

    It integrates the differential-algebraic equations themselves, stabilized to index 2
    [GearGuptaLeimkuhler1985]: `lam` enforces the velocity constraints, `mu` the position
    constraints that they are derived from, so that no step and no row leaves either.

        q' = N(t, q) (v + J_phi^T mu),        M(t, q) v' = f(t, q, v, w, u) - J^T lam,
        phi(t, q) = 0,        phi_dot(t, q, v) = 0,        w' = actuator_rate(t, q, v, w, u)

    Collocation at three times, the last of them the end of a step, of order 5 for coordinates and
    velocities; `Trajectory.multipliers`, computed from these, are of order 5 as well. The method is
    L-stable: steps are as long as the motion allows, however stiff springs, dampers and gains of
    controllers are. Stages are found by simplified Newton iterations, with one Jacobian for each
    step, exact by automatic differentiation; they end at round-off, or where they come no nearer.
    Where these do not converge, Newton's method goes on with the Jacobians of all stages anew in
    each iteration; then a step has no end, and adaptive steps become shorter. Its error estimate is
    of order 4, its dense output of order 3; rows between steps are projected onto the constraints.
    Constraints may depend on each other, such as those of redundant loops: motions and their
    derivatives are determined all the same, multipliers up to what does nothing.

    Runs pass singular positions in which the motion goes on smoothly, on its branch: the Jacobian
    of the constraints changes its sign within a step there, and stages are regular unless one of
    them is in the position itself, where the step is refused and a shorter one taken.

    It is for `Multipliers()` without stabilization. Of a motion that is not stiff explicit methods
    compute more digits in less time: a step costs one Jacobian, some five to twenty evaluations of
    all three stages, and two LU decompositions, of `c = 2 n + k + 2 m + r` rows and of twice as
    many, for `n` coordinates, `k` actuator states, `m` position and `r` velocity constraints.

    Derivatives are those of the discrete motion, by the implicit function theorem, in both modes.
    Kernels make its steps for up to some twenty rows and independent constraints; what is larger
    `backend="auto"` leaves to the plain backend. From thirteen rows on they leave out Jacobians of
    all stages, and do not pass singular positions: say `backend="plain"` there.
    """

    term_structure: ClassVar[Any] = ConstrainedTerm
    interpolation_cls: ClassVar[Callable[..., Collocation]] = Collocation
    state_is_prediction: ClassVar[bool] = True

    def order(self, terms):
        """Order of convergence of positions and velocities: 5."""
        del terms
        return 5

    def error_order(self, terms):
        """Order of the error estimate: 4."""
        del terms
        return 4

    def init(self, terms, t0, t1, y0, args):
        """The prediction of the first step: coordinates move on as they do, velocities stay."""
        del t1
        (start, _), t0 = ravel_pytree(y0), jnp.asarray(t0)
        here = terms.vf(t0, y0, args)
        rate, _ = ravel_pytree(here.rate(jnp.zeros_like(here.dynamics.force)))
        one = terms.contr(t0, t0 + 1).astype(start.dtype)
        changes = jnp.asarray(_NODES, start.dtype)[:, None] * one * rate
        multipliers = here.dynamics.gamma.size + here.dynamics.phi.size
        past = Past(changes, jnp.zeros(multipliers, start.dtype), jnp.ones((), t0.dtype))
        return jax.lax.stop_gradient(past)

    def func(self, terms, t0, y0, args):
        """The equations at a time [s]."""
        return terms.vf(t0, y0, args)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        return self._step(terms, t0, t1, y0, args, solver_state, made_jump)

    def step_in_kernel(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """The same, where matrices of all stages are not much code."""
        given = terms, t0, t1, y0, args, solver_state, made_jump
        return self._step(*given, most_rows=_MOST_ROWS_RENEWED)

    def _step(self, terms, t0, t1, y0, args, solver_state, made_jump, most_rows=None):
        start, unravel = ravel_pytree(y0)
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        h = terms.contr(t0, t1).astype(start.dtype)
        times = [t0 + float(c) * (t1 - t0) for c in _NODES[:-1]] + [t1]
        states = start.size

        def residual(t, slope, y, multipliers):
            """What is zero in a stage, of `h dy/dt`, the state and `h (lam, mu)`."""
            tree = unravel(y)
            here = terms.vf(t, tree, args)
            d, (moved, _) = here.dynamics, unravel(slope)
            m = d.phi.size
            lam, mu = multipliers[: d.gamma.size], multipliers[d.gamma.size :]
            rows = (
                moved.q - h * here.coordinates - here.moved(d.jac[:m].T @ mu),
                d.mass @ moved.v - h * d.force + d.jac.T @ lam,
                moved.w - h * here.actuators,
                d.phi_dot,
                d.phi,
            )
            pushed = jax.vmap(here.moved, in_axes=1, out_axes=1)(d.jac[:m].T)
            return jnp.concatenate(rows), (d.mass, d.jac, pushed)

        def all_stages(x):
            slopes = product(jnp.asarray(_INVERSE, x.dtype), x[:, :states])
            ys = start + x[:, :states]
            every = lambda *x: residual(*x)[0]  # noqa: E731
            return jax.vmap(every)(jnp.stack(times), slopes, ys, x[:, states:])

        guess = _predicted(solver_state, h, t1 - t0, made_jump)
        renews = most_rows is None or guess.shape[1] <= most_rows
        known = jax.lax.stop_gradient
        last = guess[0, states:]
        inverse = jnp.asarray(_INVERSE, start.dtype)
        at_middle = times[1], product(inverse[1], guess[:, :states])
        there, forces = start + guess[1, :states], guess[1, states:]
        slope, matrices = jax.jacfwd(lambda y: residual(*at_middle, y, forces), has_aux=True)(there)
        inertia, linear, added = known(_matrices(slope, *matrices))
        matrix = _StageMatrix.of(inertia, linear, added)

        def sizes(change, x, inertia=inertia, linear=linear):
            """Of changes, relative: of states, and of the forces of multipliers."""
            pushing = jnp.swapaxes(linear[..., :states, states:], -1, -2)
            acting = lambda y: _times(y[:, states:], pushing)  # noqa: E731
            forces, all_forces = acting(change), acting(x)
            turned = jnp.swapaxes(inertia[..., :states, :states], -1, -2)
            inertial = _times(product(inverse, x[:, :states]), turned)
            parts = jnp.max(jnp.abs(all_forces)) + jnp.max(jnp.abs(inertial))
            largest = jnp.where(parts > 0, parts, 1.0)
            moved = jnp.max(jnp.abs(change[:, :states])) / (1 + jnp.max(jnp.abs(start)))
            return jnp.stack([moved, jnp.max(jnp.abs(forces)) / largest])

        def stage_matrix(x):
            """The matrix of Newton's method and what is added to it; the sizes of changes by it."""
            slopes, ys = product(inverse, x[:, :states]), start + x[:, :states]

            def of_stage(t, slope, y, multipliers):
                here = lambda y: residual(t, slope, y, multipliers)  # noqa: E731
                by_state, matrices = jax.jacfwd(here, has_aux=True)(y)
                return _matrices(by_state, *matrices)

            own = jax.vmap(of_stage)(jnp.stack(times), slopes, ys, x[:, states:])
            return *_coupled(inverse, *own), partial(sizes, inertia=own[0], linear=own[1])

        def solve(function, guess):
            found = newton(function, guess, matrix, sizes)
            return renewed(function, guess, *found, stage_matrix) if renews else found

        tangent = partial(tangent_of, matrix=matrix, renews=renews)
        x, converged = jax.lax.custom_root(all_stages, guess, solve, tangent, has_aux=True)
        changes = x[:, :states]
        y1 = jnp.where(converged > 0, start + changes[-1], jnp.nan)
        weighted = product(jnp.asarray(_ESTIMATE, x.dtype), changes)
        error = _by(matrix.real, -residual(t0, -weighted, start, last)[0])[:states]
        error = jnp.where(converged > 0, error, jnp.inf)
        dense = {"y0": y0, "y1": unravel(y1), "k": jax.vmap(unravel)(changes)}
        past = known(Past(changes, x[-1, states:] / h, t1 - t0))
        return unravel(y1), unravel(error), dense, past, diffrax.RESULTS.successful


def _matrices(slope, mass, jac, pushed):
    """Derivatives of the equations of a stage by `h dy/dt`, and by the state and multipliers.

    And what is added to the diagonal of the latter, so that dependent constraints leave it regular.
    """
    (rows, states), (c, n), (q, m) = slope.shape, jac.shape, pushed.shape
    velocities = slice(q, q + n)
    inertia = jnp.eye(rows, dtype=slope.dtype).at[states:].set(0)
    inertia = inertia.at[velocities, velocities].set(mass)
    by_multipliers = jnp.zeros((rows, c + m), slope.dtype)
    by_multipliers = by_multipliers.at[velocities, :c].set(jac.T).at[:q, c:].set(-pushed)
    small = float(jnp.finfo(slope.dtype).eps) ** _ADDED * jnp.sum(jac**2)
    by_mass = small / jnp.sum(jnp.abs(jnp.diagonal(mass)))
    signs = jnp.asarray(np.repeat([0.0, -1.0, 1.0], [states, c, m]), slope.dtype)
    added = signs * jnp.where(signs < 0, by_mass, small)
    return inertia, jnp.concatenate([slope, by_multipliers], axis=1), added


def _times(rows, matrix):
    """Each row times one matrix, or times its own."""
    return product(rows, matrix) if matrix.ndim == 2 else product(rows[:, None], matrix)[:, 0]


def _coupled(inverse, inertia, linear, added):
    """`A^-1 (x) E + F` with `E` and `F` of each stage, and what is added to its diagonal."""
    stages, rows, _ = inertia.shape
    own = jnp.eye(stages, dtype=linear.dtype)[:, None, :, None] * linear[:, :, None, :]
    both = inverse[:, None, :, None] * inertia[:, :, None, :] + own
    return both.reshape(stages * rows, stages * rows), added.reshape(-1)


class _StageMatrix(NamedTuple):
    """The matrix `A^-1 (x) E + I (x) F` of simplified Newton iterations, by inverse factors.

    With `A^-1` in its real form it is one of `g E + F`, and one of twice the size.

    Args:
        real: `F` and `G` of the first, see `inverse_factors`.
        pair: of the second.
    """

    real: list
    pair: list

    @classmethod
    def of(cls, inertia, linear, added) -> "_StageMatrix":
        """From `E` and `F`, and what is added to the diagonal of `F`."""
        first, second = _ALPHA * inertia + linear, _BETA * inertia
        pair = jnp.block([[first, -second], [second, first]])
        real = inverse_factors(_GAMMA * inertia + linear, added)
        return cls(real, inverse_factors(pair, jnp.tile(added, 2)))

    def solved(self, right):
        """The solution of linear equations, shape `(3, rows)`."""
        return self._solved(right, np.linalg.inv(_BASIS), _BASIS, _by)

    def transposed(self, right):
        """The same of the transposed equations."""
        return self._solved(right, _BASIS.T, np.linalg.inv(_BASIS).T, _by_transpose)

    def _solved(self, right, there, back, by: Callable):
        right = product(jnp.asarray(there, right.dtype), right)
        both = by(self.pair, jnp.concatenate([right[1], right[2]]))
        parts = jnp.stack([by(self.real, right[0]), *jnp.split(both, 2)])
        return product(jnp.asarray(back, right.dtype), parts)


def _by(factors, right):
    first, then = factors
    return product(then, product(first, right))


def _by_transpose(factors, right):
    first, then = factors
    return product(first.T, product(then.T, right))


def _predicted(past: Past, h, length, made_jump):
    """Stages as the polynomial of the last step goes on, with the multipliers of its end.

    What multipliers of dependent constraints have that does nothing would grow as they go on.
    """
    ratio = (length / past.step).astype(h.dtype)
    goes_on = (ratio < 4.0) & ~jnp.asarray(made_jump)
    x = 1 + jnp.where(goes_on, ratio, 0.0) * jnp.asarray(_NODES, h.dtype)
    changes = product(_lagrange(np.array([0.0, *_NODES]), x)[:, 1:], past.changes)
    changes = changes - past.changes[-1]
    multipliers = h * jnp.broadcast_to(past.multipliers, (_NODES.size, past.multipliers.size))
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


def renewed(function, guess, x, converged, stage_matrix: Callable):
    """The stages by Newton's method with the matrices of all stages anew in each iteration.

    For steps in which simplified iterations have not converged: across singular positions the
    Jacobian of the constraints changes by as much as it is, and its sign.
    """
    dtype = guess.dtype
    eps = float(jnp.finfo(dtype).eps)
    enough = jnp.asarray([eps**0.75, eps**0.5], dtype)

    def improved(state):
        x, count, _ = state
        matrix, added, sizes = stage_matrix(x)
        first, then = inverse_factors(matrix, added)
        change = -product(then, product(first, function(x).reshape(-1))).reshape(x.shape)
        x = x + change
        return x, count + 1, jnp.where(jnp.all(sizes(change, x) < enough), 1, 0)

    def goes_on(state):
        _, count, found = state
        return (found == 0) & (count < _MOST_RENEWED)

    given = jnp.where(converged > 0, 1, 0)
    begin = jnp.where(given > 0, x, guess), jnp.zeros((), int), given
    x, _, found = jax.lax.while_loop(goes_on, improved, begin)
    return x, jnp.where(found > 0, 1.0, 0.0).astype(dtype)


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
        return jnp.where(size <= limit, x, jnp.nan)

    def solved(_):
        unit = jnp.eye(right.size, dtype=right.dtype)
        columns = jax.vmap(function)(unit.reshape(-1, *right.shape))
        own = columns.reshape(unit.shape).T
        # Dependent constraints leave it singular.
        small = float(jnp.finfo(right.dtype).eps) * jnp.max(jnp.abs(own)) * jnp.ones_like(own[0])
        return refined(own, right.reshape(-1), small).reshape(right.shape), True

    return jax.lax.while_loop(lambda state: ~state[1], solved, (x, size <= limit))[0]
