"""The generalized-alpha method with constraints: second order, damping of fast vibrations."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from jaxdae.derivatives.implicit import implicit_root
from jaxdae.linalg.lu import Factors, product
from jaxdae.solvers.base import AbstractIterativeSolver
from jaxdae.solvers.constrained_term import ConstrainedTerm
from jaxdae.solvers.newton import newton, tangent_of
from jaxdae.solvers.projection import policy
from jaxdae.systems import State
from jaxdae.systems.kinematics import has_rate

# Of the matrices of iterations, as a power of the machine epsilon, as in `RadauIIA`.
_ADDED = 2 / 3


class Coefficients(NamedTuple):
    """Coefficients of the method, for accelerations or for the rates of first-order equations.

    Args:
        alpha_m: weight of the algorithmic acceleration at the beginning of a step.
        alpha_f: weight of the acceleration of the equations of motion there.
        gamma: weight of the algorithmic acceleration at the end, in the velocities.
        beta: twice that in the coordinates; 0 for first-order equations.
    """

    alpha_m: float
    alpha_f: float
    gamma: float
    beta: float

    @property
    def shift(self) -> float:
        """Algorithmic accelerations are those of the motion so many steps later."""
        return self.alpha_m - self.alpha_f

    @property
    def position_error(self) -> float:
        """Error of the coordinates in a step, over `h^3 d^3 q/dt^3` [HulbertJang1995]."""
        return 1 / 6 - self.beta - self.shift / 2

    @property
    def velocity_error(self) -> float:
        """Error of the velocities in a step, over `h^3 d^3 v/dt^3`.

        That of algorithmic accelerations `d^2 v/dt^2`, of which each has an error of second order,
        too, as the relation between them and those of the motion is not exact for parabolas.
        """
        d, g, m = self.shift, self.gamma, self.alpha_m
        own = (1 - self.alpha_f) / 2 - (1 - m) * (1 + d) ** 2 / 2 - m * d**2 / 2
        return 1 / 6 - (1 - g) * d**2 / 2 - g * (1 + d) ** 2 / 2 - own


def coefficients(rho_inf: float) -> Coefficients:
    """Those for accelerations, of second order, optimal at a damping [ChungHulbert1993].

    Args:
        rho_inf: spectral radius of the method for infinitely fast vibrations.
    """
    alpha_m, alpha_f = (2 * rho_inf - 1) / (rho_inf + 1), rho_inf / (rho_inf + 1)
    gamma = 0.5 - alpha_m + alpha_f
    return Coefficients(alpha_m, alpha_f, gamma, 0.25 * (gamma + 0.5) ** 2)


def first_order_coefficients(rho_inf: float) -> Coefficients:
    """Those for first-order equations [JansenWhitingHulbert2000].

    Args:
        rho_inf: spectral radius of the method for infinitely fast decay.
    """
    alpha_m, alpha_f = 0.5 * (3 * rho_inf - 1) / (rho_inf + 1), rho_inf / (rho_inf + 1)
    return Coefficients(alpha_m, alpha_f, 0.5 - alpha_m + alpha_f, 0.0)


class PreviousStep(NamedTuple):
    """What the last step leaves to the next, in numbers that do not depend on the step.

    Args:
        rates: `dv/dt` and `dw/dt` by the equations of motion, shape `(n+k,)`.
        ahead: what the algorithmic rates are beyond them, over the step, shape `(n+k,)`.
        slope: change of `rates` with time, shape `(n+k,)`.
        since: the time for which `slope` has held [s].
        normal: of index 3, velocities off the constraints, over the step squared, shape `(n,)`.
        multipliers: shape `(c,)`.
    """

    rates: Any
    ahead: Any
    slope: Any
    since: Any
    normal: Any
    multipliers: Any


class GeneralizedAlpha(AbstractIterativeSolver, diffrax.AbstractAdaptiveSolver):
    r"""The generalized-alpha method for equations of motion with constraints [ArnoldBruls2007].

    Of second order, unconditionally stable in linear equations, with damping of vibrations that
    steps do not resolve: `rho_inf` is what a step leaves of infinitely fast ones
    [ChungHulbert1993].

        q_1 = q_0 + h v_0 + h^2 ((1/2 - beta) a_0 + beta a_1) - J_phi^T mu,
        v_1 = v_0 + h ((1 - gamma) a_0 + gamma a_1),
        (1 - alpha_m) a_1 + alpha_m a_0 = (1 - alpha_f) v'_1 + alpha_f v'_0,
        M(t_1, q_1) v'_1 = f(t_1, q_1, v_1, w_1, u_1) - J^T lam,
        phi(t_1, q_1) = 0,        phi_dot(t_1, q_1, v_1) = 0

    with the algorithmic accelerations `a`, which are handed from step to step. Actuator states obey
    the same with coefficients for first-order equations [JansenWhitingHulbert2000].

    - *Index 2* (`index=2`, the default): as above, stabilized like [GearGuptaLeimkuhler1985]; `lam`
      enforces the velocity constraints, `mu` the position constraints [ArnoldCardonaBruls2016]. No
      step and no row leaves either.
    - *Index 3* (`index=3`): without `mu`, `lam` enforces the position constraints, and the
      velocity constraints that are not derived from them. Velocities at the ends of steps are
      projected onto the constraints, and steps go on from those before the projection, so that
      they are those of the method. There are fewer unknowns, and round-off over the step squared
      in the multipliers of its iterations.

    Both scale their multipliers by the step [BottassoBauchauCardona2007]. Motions begin with
    `a_0 = v'(t_0 + (alpha_m - alpha_f) h)`, and with index 3 with the velocities off the
    constraints that its steps lead to, so that multipliers are of second order from the first step
    on [ArnoldBrulsCardona2015]. After a change of the step `a - v'` changes in proportion. Where
    velocities are not rates of coordinates, `q' = N(t, q) v`, the first line is that of the
    midpoint rule, `q_1 = q_0 + N(t_m, (q_0 + q_1) / 2) (h v_0 + …)`, which keeps the lengths of
    quaternions.

    Its equations are solved by simplified Newton iterations, with one Jacobian for each step, exact
    by automatic differentiation; they end at round-off, or where they come no nearer. A step whose
    iterations do not converge has no end: adaptive steps become shorter then. The estimate of a
    step's error is its leading term: `(1/6 - beta - (alpha_m - alpha_f) / 2) h^2 (a_1 - a_0)` of
    coordinates [HulbertJang1995], and the same of velocities from the second difference of
    accelerations. Dense output is of order 3; rows between steps are projected onto the
    constraints. Constraints may depend on each other, as for `RadauIIA`.

    It is for `Multipliers()` without stabilization. Of smooth motions methods of higher order
    compute more digits in less time: it is for structures and mechanisms with vibrations too fast
    to be of interest, at a few digits. `Projected` and controllers that are sampled change the ends
    of steps, and are refused. Kernels make its steps for up to some twenty rows and independent
    constraints.

    Args:
        rho_inf: spectral radius for infinitely fast vibrations, from 0, which annihilates them in
            a step, to below 1.
        index: 2 or 3, of the differential-algebraic equations that are integrated.

    Raises:
        ValueError: for a spectral radius or an index that there is none of.
    """

    rho_inf: float = eqx.field(default=0.8, static=True)
    index: int = eqx.field(default=2, static=True)

    term_structure: ClassVar[Any] = ConstrainedTerm
    interpolation_cls: ClassVar[Callable[..., diffrax.ThirdOrderHermitePolynomialInterpolation]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation
    )

    def __check_init__(self):
        if not (isinstance(self.rho_inf, float | int) and 0 <= self.rho_inf < 1):
            raise ValueError(
                f"GeneralizedAlpha: rho_inf is {self.rho_inf!r}, must be a number from 0, the most "
                "damping, to below 1; at 1 nothing would damp the multipliers, whose errors grow."
            )
        if self.index not in (2, 3):
            raise ValueError(
                f"GeneralizedAlpha: index is {self.index!r}, must be 2, which enforces positions "
                "and velocities, or 3, which enforces positions and projects velocities."
            )

    def order(self, terms):
        """Order of convergence of positions, velocities and multipliers: 2."""
        return 2

    def error_order(self, terms):
        """Order of the error estimate: 3."""
        return 3

    def func(self, terms, t0, y0, args):
        """The equations at a time [s]."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args):
        """Accelerations and multipliers of the equations of motion, and their change with time."""
        t0 = jnp.asarray(t0)
        solve = policy(args[1])

        def motion(t, y):
            here = terms.vf(t, y, args)
            d = here.dynamics
            acceleration, lam = solve(d.mass, d.force, d.jac, -d.gamma)
            rates = jnp.concatenate([acceleration, here.actuators])
            return rates, (here.rate(acceleration), lam, d)

        rates, (moves, lam, d) = motion(t0, y0)
        one = terms.contr(jnp.zeros_like(t0), jnp.ones_like(t0))
        # Along the motion.
        _, slope = jax.jvp(lambda t, y: motion(t, y)[0], (t0, y0), (one.astype(t0.dtype), moves))
        normal = jnp.zeros(0, rates.dtype)
        n = d.force.size
        mech, first = coefficients(self.rho_inf), first_order_coefficients(self.rho_inf)
        if self.index == 3:
            # Of what the steps' own errors do to the positions, along the forces of constraints.
            off = mech.position_error * slope[:n]
            normal = off - _tangential(solve, d, off)
        ahead = jnp.concatenate([mech.shift * slope[:n], first.shift * slope[n:]])
        return PreviousStep(rates, ahead, slope, jnp.zeros((), rates.dtype), normal, lam)

    def counted_step(
        self, terms, t0, t1, y0, args, solver_state, made_jump, *, in_kernel: bool = False
    ):
        """One step, and what its iterations took; a step of no length changes nothing."""
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        (state, _), past = y0, solver_state
        if made_jump is not False:
            begun = partial(self.init, terms, t0, t1, y0, args)
            past = jax.lax.cond(made_jump, begun, lambda: solver_state)
        q0, v0, w0 = state.q, state.v, state.w
        dtype, n, k = v0.dtype, v0.size, w0.size
        h = terms.contr(t0, t1).astype(dtype)
        # Of a step of no length nothing is kept, but derivatives go through what is not, too.
        still = h == 0
        h = jnp.where(still, jnp.asarray(float(jnp.finfo(dtype).eps) ** 0.5, dtype), h)
        mech, first = coefficients(self.rho_inf), first_order_coefficients(self.rho_inf)

        def weights(name):
            return jnp.asarray([getattr(mech, name)] * n + [getattr(first, name)] * k, dtype)

        alpha_m, alpha_f, gamma = map(weights, ("alpha_m", "alpha_f", "gamma"))
        before = terms.vf(t0, y0, args)
        c, m = before.dynamics.gamma.size, before.dynamics.phi.size
        pushing = before.dynamics.jac[:m].T
        turns, stabilized = has_rate(args[0]), self.index == 2
        middle = t0 + 0.5 * (t1 - t0)
        a0 = past.rates + h * past.ahead
        own_v0 = v0 if stabilized else v0 + h**2 * past.normal
        # Algorithmic rates from those of the equations of motion: a_1 = share z_1 + rest.
        share = (1 - alpha_f) / (1 - alpha_m)
        rest = (alpha_f * past.rates - alpha_m * a0) / (1 - alpha_m)
        splits = [n + k, n + k + c, n + k + c + (m if stabilized else 0)]

        def ended(x):
            """The state that unknowns lead to, the change of position, and multipliers.

            Unknown are `h z_1`, `h lam`, `mu`, and coordinates where these turn.
            """
            z, _, mu, q1 = jnp.split(x, splits)
            a1 = share * z / h + rest
            u1 = jnp.concatenate([own_v0, w0]) + h * ((1 - gamma) * a0 + gamma * a1)
            change = h * own_v0 + h**2 * ((0.5 - mech.beta) * a0 + mech.beta * a1)[:n]
            if stabilized:
                change = change - product(pushing, mu)
            return State(q1 if turns else q0 + change, u1[:n], u1[n:]), change, a1

        def residual(x):
            (y, change, _), (z, lam, *_) = ended(x), jnp.split(x, splits)
            here = terms.vf(t1, (y, None), args)
            d = here.dynamics
            rows = [
                product(d.mass, z[:n]) - h * d.force + product(d.jac.T, lam),
                z[n:] - h * here.actuators,
            ]
            rows += [d.phi_dot, -d.phi] if stabilized else [d.phi / h, d.phi_dot[m:]]
            if turns:
                between = State(0.5 * (q0 + y.q), y.v, y.w)
                rows.append(y.q - q0 - terms.vf(middle, (between, None), args).moved(change))
            return jnp.concatenate(rows), (d.mass, d.jac)

        known = jax.lax.stop_gradient
        ahead = past.rates + past.slope * h
        parts = [h * ahead, h * past.multipliers, jnp.zeros(m if stabilized else 0, dtype)]
        guess = jnp.concatenate([*parts, q0 + h * before.coordinates] if turns else parts)
        guess = known(guess)
        slope, (mass, jac) = jax.jacfwd(residual, has_aux=True)(guess)
        mass, jac = known(mass), known(jac)
        matrix = Factors.of(slope, _added(mass, jac, splits, guess.size))

        def sizes(change, x):
            """Of changes, relative: of states, and of momenta that forces make."""
            (moved, _, _), (here, _, _) = jax.jvp(ended, (x,), (change,))[1], ended(x)
            # Of index 3 velocities are known to round-off of positions over the step.
            speeds = moved.v if stabilized else h * moved.v
            ends = ((moved.q, here.q), (speeds, here.v), (moved.w, here.w))
            states = [_largest(a) / (1 + _largest(b)) for a, b in ends]
            momentum = _largest(product(mass, v0))
            if not stabilized:
                momentum += _largest(mass) * (1 + _largest(here.q)) / jnp.abs(h)

            def forces(x):
                return product(jac.T, x[n + k :][:c])

            everything = momentum + _largest(forces(x)) + _largest(product(mass, x[:n]))
            everything = jnp.where(everything > 0, everything, 1.0)
            return jnp.stack([jnp.max(jnp.stack(states)), _largest(forces(change)) / everything])

        def solve(function, guess):
            return newton(function, guess, matrix, sizes)

        tangent = Partial(tangent_of, matrix=matrix)
        equations = lambda x: residual(x)[0]  # noqa: E731
        x, counts = implicit_root(equations, guess, solve, tangent)
        end, _, a1 = ended(x)
        z, lam, *_ = jnp.split(x, splits)
        rates = z / h
        y1 = (end, None)
        normal = past.normal
        if not stabilized:
            y1, normal = self._on_constraints(terms, t1, end, args, h)
        second = ((rates - past.rates) / h - past.slope) / (0.5 * h + past.since)
        error_q = mech.position_error * h**2 * (a1 - a0)[:n]
        error_u = h**3 * weights("velocity_error") * second
        error = State(before.moved(error_q), error_u[:n], error_u[n:])
        after = terms.vf(t1, y1, args)
        new = PreviousStep(
            rates, (a1 - rates) / h, (rates - past.rates) / h, 0.5 * h, normal, lam / h
        )
        good = counts.converged > 0
        y1 = jax.tree.map(lambda a, b: jnp.where(still, a, jnp.where(good, b, jnp.nan)), y0, y1)
        error = jax.tree.map(lambda e: jnp.where(still, 0.0, jnp.where(good, e, jnp.inf)), error)
        new = jax.tree.map(lambda a, b: jnp.where(still, a, b), past, new)

        def change(here, rates):
            found_rate, none = here.rate(rates[:n])
            return jax.tree.map(lambda r: jnp.where(still, 0.0, h * r), found_rate), none

        dense = {"y0": y0, "y1": y1, "k0": change(before, past.rates), "k1": change(after, rates)}
        error = (error, None)
        return (y1, error, dense, new, diffrax.RESULTS.successful), counts

    def _on_constraints(self, terms, t1, end: State, args, h):
        """Velocities projected onto the constraints, and what they were off, over `h^2`."""
        solve, v = policy(args[1]), end.v
        m = end.q.size
        for _ in range(2):
            d = terms.vf(t1, (State(end.q, v, end.w), None), args).dynamics
            m = d.phi.size
            v = v + solve.least_change(d.mass, d.jac, d.phi_dot)
            if m == d.phi_dot.size:  # linear
                break
        return (State(end.q, v, end.w), None), (end.v - v) / h**2


def _largest(x):
    return jnp.max(jnp.abs(x), initial=0.0)


def _tangential(solve, d, v):
    """Velocities without what constraints forbid, in the mass metric."""
    return v + solve(d.mass, jnp.zeros_like(v), d.jac, -product(d.jac, v))[0]


def _added(mass, jac, splits, size: int):
    """What is added to the diagonal, so that dependent constraints leave the matrix regular."""
    small = float(jnp.finfo(mass.dtype).eps) ** _ADDED * jnp.sum(jac**2)
    by_mass = small / jnp.sum(jnp.abs(jnp.diagonal(mass)))
    first, second, third = splits
    place = jnp.arange(size)
    added = jnp.where((place >= first) & (place < second), -by_mass, 0.0)
    return jnp.where((place >= second) & (place < third), small, added).astype(mass.dtype)
