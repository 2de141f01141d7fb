"""Steps with a symmetric projection onto the constraints, of explicit Runge-Kutta methods."""

from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.formulations.base import holding_rank
from jaxdae.solvers.base import AbstractIterativeSolver
from jaxdae.solvers.dense_output import AbstractDenseOutput
from jaxdae.solvers.kernel_steps import ExplicitRungeKutta
from jaxdae.solvers.newton import root
from jaxdae.solvers.projection import nearest, policy
from jaxdae.systems import constraint_residuals, State
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.kinematics import coordinate_rate

# Of the part of the iterations' matrix that dependent constraints leave singular, as a power of the
# machine epsilon: far above round-off, and far below what slows iterations down.
_ADDED = 2 / 3


class SymmetricSteps(AbstractIterativeSolver):
    r"""Steps of `Projected(solver, symmetric=True)` [Hairer2000].

    With the state `z` in the middle of a step, and `P = M^-1 J^T (J M^-1 J^T)^-1` there,

        S(-h/2, z) = y_0 + P r,        y_1 = S(h/2, z) + P r,        residuals of y_1 = 0

    where `S` is a step of `solver`, so that `S(h/2)` after the inverse of `S(-h/2)` is a symmetric
    method whatever `solver` is, and `r`, of the size of its truncation error, takes the same way
    off the constraints at one end of the step as back to them at the other. `P` leads positions
    by `J` of the position constraints and velocities by all of `J`, each by the least change in
    the mass metric; Hairer's is at the ends, which makes it implicit there as well.

    Args:
        solver: explicit, with one tableau.
    """

    solver: diffrax.AbstractERK
    takes_parts: ClassVar[bool] = True
    # Nothing is handed from step to step.
    state_is_prediction: ClassVar[bool] = True

    @property
    def term_structure(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Ordinary differential equations, those that a formulation makes."""
        return self.solver.term_structure

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its dense output."""
        return eqx.Partial(_Halves, ExplicitRungeKutta(self.solver))

    def order(self, terms):
        """Order of convergence: the next even number, which orders of symmetric methods are."""
        order: Any = self.solver.order(terms)
        return order + order % 2

    def error_order(self, terms):
        """Order of the error estimate: that of the solver."""
        return self.solver.error_order(terms)

    def init(self, terms, t0, t1, y0, args):
        """Nothing is handed from step to step."""

    def func(self, terms, t0, y0, args):
        """The rate at a time [s]."""
        return terms.vf(t0, y0, args)

    def counted_step(
        self, terms, t0, t1, y0, args, solver_state, made_jump, *, in_kernel: bool = False
    ):
        """One step, and what its iterations took."""
        (start, _), (system, formulation, _) = y0, args
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        # Times as systems know them, which diffrax makes increase.
        sign = terms.contr(jnp.zeros_like(t0), jnp.ones_like(t0))
        begin, end = sign * t0, sign * t1
        middle = begin + (end - begin) / 2
        numbers, unravel = ravel_pytree(y0)
        method, dtype = ExplicitRungeKutta(self.solver), numbers.dtype

        def rate(t, y):
            return ravel_pytree(terms.vf(sign * t, unravel(y), args))[0].astype(dtype)

        def half(t, z):
            return method.step(rate, middle, t, z, None)

        solve = holding_rank(policy(formulation), system, begin, start)

        def way(z, r):
            """`P r`, as a change of everything."""
            state, work = unravel(z)
            mass, jac = mass_and_jacobian(system, middle, state.q, state.v)
            m = system.position_constraints(middle, state.q).size
            none = jnp.zeros_like(state.v)
            dq = solve(mass, none, jac[:m], r[:m])[0] if m else none
            dv = solve(mass, none, jac, r[m:])[0]
            dq = coordinate_rate(system, middle, state.q, dq)
            moved = State(dq, dv, jnp.zeros_like(state.w)), jax.tree.map(jnp.zeros_like, work)
            return ravel_pytree(moved)[0]

        def residuals(y):
            state, _ = unravel(y)
            result = constraint_residuals(system, end, state.q, state.v)
            return jnp.concatenate([result.phi, result.phi_dot]).astype(dtype)

        n = numbers.size

        def equations(x):
            z, change = x[:n], way(x[:n], x[n:])
            back = half(begin, z).y1 - numbers - change
            return jnp.concatenate([back, residuals(half(end, z).y1 + change)])

        none = jnp.zeros_like(residuals(numbers))
        guess = jnp.concatenate([method.step(rate, begin, middle, numbers, None).y1, none])
        sizes = jax.tree.map(lambda x: jnp.full_like(x, 1 / (1 + _largest(x))), y0)
        weights = jnp.concatenate([ravel_pytree(sizes)[0], none])
        added = jnp.concatenate(
            [jnp.zeros_like(numbers), none + float(jnp.finfo(dtype).eps) ** _ADDED]
        )
        found, counts = root(equations, guess, added, weights)
        z, r = found[:n], found[n:]
        before, after, change = half(begin, z), half(end, z), way(z, r)
        y1 = jnp.where(counts.converged > 0, after.y1 + change, jnp.nan)
        y1_tree = unravel(y1)

        def estimate():
            # The two halves add up, whatever the sign of the power of the step.
            power: Any = self.error_order(terms)
            parity = -1 if int(power) % 2 else 1
            error = after.error() + parity * before.error()
            embedded, work = unravel(y1 - error)
            # What the projection takes away is no error of what it leaves.
            there = nearest(system, formulation, end, embedded, 1)
            off = jax.tree.map(lambda a, b: a - b, y1_tree, (there, work))
            return jax.tree.map(lambda x: jnp.where(counts.converged > 0, x, jnp.inf), off)

        tableau: Any = self.solver.tableau
        adaptive = np.any(np.asarray(tableau.b_error) != 0)
        dense = {"y0": y0, "y1": y1_tree, "middle": z, "change": change}
        dense |= {"before": before.dense(), "after": after.dense()}
        error = estimate() if adaptive else None
        return (y1_tree, error, dense, None, diffrax.RESULTS.successful), counts


class _Halves(AbstractDenseOutput):
    """Dense output of the two halves of a step, moved so that it meets the ends of the step.

    Args:
        method: of both halves.
        t0: beginning of the step [s].
        t1: its end [s].
        y0: state at the beginning.
        y1: state at the end.
        middle: state in the middle, flat.
        change: `P r`, flat.
        before: what dense output of the half before the middle is made of.
        after: of the half behind it.
    """

    method: ExplicitRungeKutta
    t0: Any
    t1: Any
    y0: Any
    y1: Any
    middle: Any
    change: Any
    before: Any
    after: Any

    def at(self, t):
        """The state at a time [s]."""
        middle = self.t0 + (self.t1 - self.t0) / 2
        (y0, unravel), (y1, _) = ravel_pytree(self.y0), ravel_pytree(self.y1)
        parts = ((self.t0, y0 + self.change, self.before), (self.t1, y1 - self.change, self.after))
        early, late = (
            self.method.interpolate(middle, end, self.middle, y, dense, t)
            for end, y, dense in parts
        )
        length = jnp.where(self.t1 == self.t0, 1.0, self.t1 - self.t0)
        part = (2 * ((t - middle) / length)).astype(y0.dtype)
        at = jnp.where(part < 0, early, late) + part * self.change
        return unravel(at)


def _largest(x):
    return jnp.max(jnp.abs(x), initial=0.0)
