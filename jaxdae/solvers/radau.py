"""Radau IIA: an implicit method for stiff equations of motion that keeps their constraints."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from jaxdae.derivatives.implicit import implicit_root
from jaxdae.linalg.lu import product
from jaxdae.solvers import radau_dae
from jaxdae.solvers.base import AbstractIterativeSolver
from jaxdae.solvers.constrained_term import AbstractConstrainedTerm
from jaxdae.solvers.dae_term import DAEAt
from jaxdae.solvers.newton import newton, renewed, tangent_of
from jaxdae.solvers.radau_stages import (
    Collocation,
    ESTIMATE,
    INVERSE,
    NODES,
    Past,
    predicted,
    StageMatrix,
)

# Rows of a stage with which kernels have those: they are code of three times as many unknowns.
_MOST_ROWS_RENEWED = 12
# Of the matrices of iterations, as a power of the machine epsilon: far above round-off, and far
# below what slows iterations down.
_ADDED = 2 / 3


class RadauIIA(AbstractIterativeSolver, diffrax.AbstractAdaptiveSolver):
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
    of order 4. Rows between steps are on the collocation polynomial, of degree 3: their errors fall
    with the fourth power of fixed steps, not the fifth; they are projected onto the constraints.
    Constraints may depend on each other, such as those of redundant loops: motions and their
    derivatives are determined all the same, multipliers up to what does nothing.

    Runs pass singular positions in which the motion goes on smoothly, on its branch: the Jacobian
    of the constraints changes its sign within a step there, and stages are regular unless one of
    them is in the position itself, where the step is refused and a shorter one taken.

    It is for `Multipliers()` without stabilization; and for a `jaxdae.DAE`, by `jaxdae.solve` or
    with a `DAETerm`. Of a motion that is not stiff explicit methods compute more digits in less
    time: a step costs one Jacobian, some five to twenty evaluations of all three stages, and two LU
    decompositions, of `c = 2 n + k + 2 m + r` rows, one of them complex, for `n` coordinates, `k`
    actuator states, `m` position and `r` velocity constraints.

    Derivatives are those of the discrete motion, by the implicit function theorem, in both modes.
    Kernels make its steps for up to some twenty rows and independent constraints; what is larger
    `backend="auto"` leaves to the plain backend. From thirteen rows on they leave out Jacobians of
    all stages, and do not pass singular positions: say `backend="plain"` there.
    """

    term_structure: ClassVar[Any] = AbstractConstrainedTerm
    interpolation_cls: ClassVar[Callable[..., Collocation]] = Collocation
    state_is_prediction: ClassVar[bool] = True

    def order(self, terms):
        """Order of convergence of positions and velocities: 5."""
        return 5

    def error_order(self, terms):
        """Order of the error estimate: 4."""
        return 4

    def init(self, terms, t0, t1, y0, args):
        """The prediction of the first step: coordinates move on as they do, velocities stay."""
        (start, _), t0 = ravel_pytree(y0), jnp.asarray(t0)
        here = terms.vf(t0, y0, args)
        if isinstance(here, DAEAt):
            return radau_dae.begin(here, t0)
        rate, _ = ravel_pytree(here.rate(jnp.zeros_like(here.dynamics.force)))
        one = terms.contr(t0, t0 + 1).astype(start.dtype)
        changes = jnp.asarray(NODES, start.dtype)[:, None] * one * rate
        multipliers = here.dynamics.gamma.size + here.dynamics.phi.size
        past = Past(changes, jnp.zeros(multipliers, start.dtype), jnp.ones((), t0.dtype))
        return jax.lax.stop_gradient(past)

    def func(self, terms, t0, y0, args):
        """The equations at a time [s]."""
        return terms.vf(t0, y0, args)

    def counted_step(
        self, terms, t0, t1, y0, args, solver_state, made_jump, *, in_kernel: bool = False
    ):
        """One step, and what its iterations took; a step of no length changes nothing.

        In kernels matrices of all stages are left out where they are much code.
        """
        if isinstance(terms.vf(t0, y0, args), DAEAt):
            given = terms, t0, t1, y0, args, solver_state, made_jump
            return radau_dae.step(*given)
        start, unravel = ravel_pytree(y0)
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        h = terms.contr(t0, t1).astype(start.dtype)
        times = [t0 + float(c) * (t1 - t0) for c in NODES[:-1]] + [t1]
        states = start.size

        @jax.jit  # traced once, for iterations and their derivatives
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
            slopes = product(jnp.asarray(INVERSE, x.dtype), x[:, :states])
            ys = start + x[:, :states]
            every = lambda *x: residual(*x)[0]  # noqa: E731
            return jax.vmap(every)(jnp.stack(times), slopes, ys, x[:, states:])

        guess = predicted(solver_state, h, t1 - t0, made_jump)
        renews = not in_kernel or guess.shape[1] <= _MOST_ROWS_RENEWED
        known = jax.lax.stop_gradient
        last = guess[0, states:]
        inverse = jnp.asarray(INVERSE, start.dtype)
        at_middle = times[1], product(inverse[1], guess[:, :states])
        there, forces = start + guess[1, :states], guess[1, states:]
        slope, matrices = jax.jacfwd(lambda y: residual(*at_middle, y, forces), has_aux=True)(there)
        inertia, linear, added = known(_matrices(slope, *matrices))
        matrix = StageMatrix.of(inertia, linear, added)

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

        tangent = Partial(tangent_of, matrix=matrix, renews=renews)
        x, counts = implicit_root(all_stages, guess, solve, tangent)
        changes, converged = x[:, :states], counts.converged
        y1 = jnp.where(converged > 0, start + changes[-1], jnp.nan)
        weighted = product(jnp.asarray(ESTIMATE, x.dtype), changes)
        error = matrix.real.solved(-residual(t0, -weighted, start, last)[0])[:states]
        error = jnp.where(converged > 0, error, jnp.inf)
        dense = {"y0": y0, "y1": unravel(y1), "k": jax.vmap(unravel)(changes)}
        past = known(Past(changes, x[-1, states:] / h, t1 - t0))
        result = diffrax.RESULTS.successful
        return (unravel(y1), unravel(error), dense, past, result), counts


def _matrices(slope, mass, jac, pushed):
    """Derivatives of the equations of a stage by `h dy/dt`, and by the state and multipliers.

    And what is added to the diagonal of the latter, so that dependent constraints leave it regular.
    """
    (rows, states), (c, n), (q, m) = slope.shape, jac.shape, pushed.shape
    velocities = slice(q, q + n)
    inertia = jnp.asarray(np.diag(np.arange(rows) < states).astype(slope.dtype))
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
