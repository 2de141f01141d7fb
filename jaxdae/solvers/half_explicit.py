"""A half-explicit Runge-Kutta method: explicit in the motion, implicit in what enforces it."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations.lagrange import Multipliers
from jaxdae.linalg.lu import product
from jaxdae.solvers.base import AbstractStatelessSolver, time_of
from jaxdae.solvers.constrained_term import ConstrainedTerm, Equations, solved
from jaxdae.solvers.projection import nearest
from jaxdae.systems import State

_ROOT = 6**0.5
# HEM4 [BraseyHairer1993]: rows of the stages behind the first, and of the end, which is the
# quadrature of Radau IIA.
_ROWS = np.array(
    [
        [3 / 10, 0, 0, 0, 0],
        [(1 + _ROOT) / 30, (11 - 4 * _ROOT) / 30, 0, 0, 0],
        [(-79 - 31 * _ROOT) / 150, (-1 - 4 * _ROOT) / 30, (24 + 11 * _ROOT) / 25, 0, 0],
        [(14 + 5 * _ROOT) / 6, (-8 + 7 * _ROOT) / 6, (-9 - 7 * _ROOT) / 4, (9 - _ROOT) / 4, 0],
        [0, 0, (16 - _ROOT) / 36, (16 + _ROOT) / 36, 1 / 9],
    ]
)
_TIMES = np.array([0, 3 / 10, (4 - _ROOT) / 10, (4 + _ROOT) / 10, 1, 1])
# Of the rates in stages 3 to 5, and of the consistent ones at the end less the beginning: nothing
# for polynomials of degree 2, and for what stages lack in the directions of the constraints.
_ESTIMATE = np.array([0, 0, 1 / 3 + _ROOT / 2, 1 / 3 - _ROOT / 2, -2 / 3, 1]) / 6
# Of Newton's method, where velocity constraints may be nonlinear: from an acceleration of zero.
_ITERATIONS = 4


class HalfExplicit(AbstractStatelessSolver, diffrax.AbstractAdaptiveSolver):
    r"""A half-explicit Runge-Kutta method of order 4 for constrained motions [BraseyHairer1993].

    Stages are explicit in coordinates, velocities and actuator states. The multipliers of a stage
    are those with which the velocities of the next one satisfy the constraints, and those of the
    last stage do so for the end of the step:

        M(Q_i) A_i + J(Q_i)^T lam_i = f(Q_i, V_i)
        phi_dot(Q_(i+1), V_(i+1)) = 0,    V_(i+1) = v_0 + h sum_(j<=i) a_(i+1)j A_j

    so that no second derivative of the constraints is asked for but in the error estimate and the
    dense output. Ends of steps are then projected onto the position constraints, by the least
    change in the mass metric, and onto those of the velocities: both hold to round-off, at saved
    times between steps, too. Five stages (HEM4): order 4 for coordinates, velocities and
    multipliers. Its error estimate is of order 3: a combination of three stages and the consistent
    rates at both ends. Dense output is Hermite's cubic polynomial of the same rates.

    It is for `Multipliers()` without stabilization, fixed or adaptive steps, motions that are not
    stiff. `Projected(diffrax.Dopri8())` takes fewer steps for the same error; the stages of this
    one ask for first derivatives of the constraints alone. Constraints may depend on each other.

    Derivatives are those of the discrete motion, in both modes.
    """

    term_structure: ClassVar[Any] = ConstrainedTerm
    interpolation_cls: ClassVar[Any] = diffrax.ThirdOrderHermitePolynomialInterpolation

    def order(self, terms):
        """Order of convergence: 4."""
        return 4

    def error_order(self, terms):
        """The estimate falls with the fourth power of the step."""
        return 4

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        (start, _), (system, formulation, _) = y0, args
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        h = terms.contr(t0, t1).astype(start.q.dtype)
        zero = jnp.zeros_like(start.v)
        at = lambda t, state: terms.vf(t, (state, None), args)  # noqa: E731

        def stage(known, numbers):
            """The rates in a stage, and the state in the next one."""
            (i, row, own, c, then), (state, rates) = numbers, known
            t, after = (jnp.where(x == 1, t1, t0 + x * (t1 - t0)) for x in (c, then))
            here = at(t, state)
            put = lambda a: State(here.coordinates, a, here.actuators)  # noqa: E731
            # All of the next stage but for what this acceleration adds to its velocities.
            rates = jax.tree.map(lambda k, x: k.at[i].set(x), rates, put(zero))
            ahead = jax.tree.map(lambda y, k: y + h * product(row, k), start, rates)
            equations = lambda v: at(after, State(ahead.q, v, ahead.w))  # noqa: E731
            acceleration = _acceleration(equations, here, ahead.v, own * h)
            rates = State(rates.q, rates.v.at[i].set(acceleration), rates.w)
            state = State(ahead.q, ahead.v + own * h * acceleration, ahead.w)
            return (state, rates), None

        rates = jax.tree.map(lambda x: jnp.zeros((len(_ROWS), x.size), x.dtype), start)
        columns = (_ROWS, np.diagonal(_ROWS), _TIMES[:-1], _TIMES[1:])
        columns = (np.arange(len(_ROWS)), *(jnp.asarray(x, zero.dtype) for x in columns))
        (state, rates), _ = jax.lax.scan(stage, (start, rates), columns)
        law = Multipliers() if formulation is None else formulation
        y1 = nearest(system, law, time_of(terms, t1), state, iterations=2)
        first, last = at(t0, start).consistent_rate(), at(t1, y1).consistent_rate()

        def estimate(k, first, last):
            return h * product(jnp.asarray(_ESTIMATE, k.dtype), jnp.vstack([k, last - first]))

        error = jax.tree.map(estimate, rates, first, last)
        k0, k1 = (jax.tree.map(lambda k: h * k, (x, None)) for x in (first, last))
        dense = {"y0": y0, "y1": (y1, None), "k0": k0, "k1": k1}
        return (y1, None), (error, None), dense, None, diffrax.RESULTS.successful


def _acceleration(ahead: Callable, here: Equations, v, h):
    """The acceleration in a stage with which the velocities of the next one fit the constraints.

    `ahead` makes the equations there of its velocities, which are `v` without this acceleration.
    """
    d = here.dynamics
    h = jnp.where(h == 0, 1.0, h)  # nothing comes of it in a step of no length
    nonlinear = d.phi_dot.size > d.phi.size
    a, lam = jnp.zeros_like(v), jnp.zeros_like(d.gamma)
    # Derivatives of position constraints are linear in the velocities, others need not be.
    for _ in range(_ITERATIONS if nonlinear else 1):
        there = ahead(v + h * a).dynamics
        force = d.force - d.mass @ a - d.jac.T @ lam
        more = solved(d.mass, d.jac, there.jac, force, -there.phi_dot / h)
        a, lam = a + more[0], lam + more[1]
    return a
