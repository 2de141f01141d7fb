"""RATTLE: fixed symmetric steps that keep constraints, and energies for long times."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.lu import product
from jaxdae.solvers.base import AbstractIterativeSolver, AbstractStatelessSolver
from jaxdae.solvers.constrained_term import added, ConstrainedTerm
from jaxdae.solvers.newton import Counts, filled, nothing_yet, root
from jaxdae.solvers.quintic import QuinticHermite, two_derivatives
from jaxdae.systems import constraint_residuals, State
from jaxdae.systems.dynamics import momentum
from jaxdae.systems.kinematics import along_motion, coordinate_rate, has_rate


def _mirrored(*half: float) -> tuple[float, ...]:
    """Steps of a symmetric composition; the middle one makes their sum 1."""
    return (*half, 1 - 2 * sum(half), *reversed(half))


# Parts of a step, from one end to its middle: one of order 2, five of order 4 [Suzuki1990], nine of
# order 6 [KahanLi1997]. All of them stay between the ends of the step.
_SUZUKI = 1 / (4 - 4 ** (1 / 3))
_PARTS: dict[int, tuple[float, ...]] = {
    2: (1.0,),
    4: _mirrored(_SUZUKI, _SUZUKI),
    6: _mirrored(
        0.39216144400731413928, 0.33259913678935943860, -0.70624617255763935981,
        0.08221359629355080023,
    ),
}  # fmt: skip


class Rattle(AbstractIterativeSolver, AbstractStatelessSolver):
    r"""The RATTLE method: symmetric steps for motions of long times [Andersen1983; Jay1996].

    With momenta `p = dT/dv`, and `L` all forces but those of constraints, of `dT/dq` too,

        p(t_0, q_0, v_a) = p_0 + h/2 (L(t_0, q_0, v_a, w_0, u_0) - J(t_0, q_0, v_a)^T lam_a),
        p(t_1, q_1, v_b) = p(t_0, q_0, v_a),
        q_1 = q_0 + h/2 (N(t_0, q_0) v_a + N(t_1, q_1) v_b),        phi(t_1, q_1) = 0,
        w_1 = w_0 + h/2 (w'(t_0, q_0, v_a, w_0, u_0) + w'(t_1, q_1, v_b, w_1, u_1)),
        p_1 = p(t_1, q_1, v_b) + h/2 (L(t_1, q_1, v_b, w_1, u_1) - J(t_1, q_1, v_b)^T lam_b),
        phi_dot(t_1, q_1, v_1) = 0

    where `u` is the control input at the state beside it [HairerLubichWanner2006, section VII.1].
    Every step ends on the constraints of positions and of velocities, to round-off.

    - Of position constraints and forces that have a potential the step is symplectic, whether the
      mass matrix depends on `q` or not: energy errors stay bounded, of the order of the method, for
      as long as round-off lets them. Of a constant mass matrix and forces that do not depend on
      velocities only the multipliers are implicit.
    - Dissipation, `force` and controllers act at both ends of a step with the velocities `v_a` and
      `v_b` of its middle, and actuator states follow the trapezoidal rule: the step stays symmetric
      and of order 2, and is no more symplectic than the motion.
    - Velocity constraints are not those of a symplectic motion. The step is a reversible one in the
      manner of [McLachlanPerlmutter2006]: they hold at both ends, and `lam_a` of theirs makes them
      hold at the mean of `t`, `q` and `v` of the step, `g((t_0 + t_1)/2, (q_0 + q_1)/2,
      (v_a + v_b)/2) = 0`. Energy errors stay bounded where a reversible motion is integrable, and
      need not elsewhere.
    - The same of velocities that are not rates of coordinates (`System.rate`): symmetric, of order
      2, not symplectic.

    Orders 4 and 6 are compositions of such steps with parts of `h`, five by [Suzuki1990] and nine
    by [KahanLi1997], some of them back in time: stiff dampers make these unstable.

    Equations are solved by simplified Newton iterations with exact Jacobians, to round-off, for
    multipliers scaled by the step, `h lam / 2`; a step whose iterations do not converge has no end.
    Of dependent constraints, such as those of redundant loops, motions are determined all the same.

    It is for `Multipliers()` without stabilization, and for fixed steps: it has no error estimate,
    and steps that follow the motion would lose what symmetric ones keep. Rows between steps are on
    Hermite's polynomials, cubic ones of order 4 or, for order 6, quintic ones of order 6, and are
    projected onto the constraints. `Trajectory.multipliers`, computed from the states, are of the
    order of the method. Derivatives are those of the discrete motion, by the implicit function
    theorem, in both modes. Kernels make its steps for up to some thirty coordinates and independent
    constraints; what is larger `backend="auto"` leaves to the plain backend. Forces that depend on
    the multipliers are refused.

    Args:
        order: of convergence: 2, 4 or 6.

    Raises:
        ValueError: for another order.
    """

    parts: tuple[float, ...] = eqx.field(static=True)
    term_structure: ClassVar[Any] = ConstrainedTerm

    def __init__(self, order: int = 2):
        if order not in tuple(_PARTS):
            raise ValueError(f"Rattle: order is {order!r}, must be one of {tuple(_PARTS)}.")
        self.parts = _PARTS[order]

    def __repr__(self) -> str:
        return f"Rattle(order={self.order(None)})"

    def order(self, terms):
        """Order of convergence of positions and velocities."""
        return next(order for order, parts in _PARTS.items() if parts == self.parts)

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Dense output: Hermite's polynomial of degree 3, or 5 for order 6."""
        cubic = diffrax.ThirdOrderHermitePolynomialInterpolation
        return QuinticHermite if self.order(None) == 6 else cubic

    def counted_step(
        self, terms, t0, t1, y0, args, solver_state, made_jump, *, in_kernel: bool = False
    ):
        """One step, and what its iterations took; a step of no length changes nothing."""
        start, _ = y0
        dtype = start.q.dtype
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        # Times as systems know them, which diffrax makes increase.
        sign = terms.contr(jnp.zeros_like(t0), jnp.ones_like(t0))
        length = terms.contr(t0, t1)
        still = length == 0
        # A step of no length is made of one that has some, whose end is left out.
        h = jnp.where(still, float(jnp.finfo(dtype).eps) ** 0.5, length).astype(dtype)

        def equations(t, state):
            return terms.vf(sign * t, (state, None), args)

        def part(known, row):
            begin, end, weight = row
            begin_time = sign * t0 + begin * length
            end_time = jnp.where(end == 1, sign * t1, sign * t0 + end * length)
            size = weight.astype(dtype) * h
            state, counts = _step(equations, args[0], begin_time, end_time, size, known[0])
            return (state, known[1].and_also(counts)), None

        known = start, nothing_yet(dtype)
        if len(self.parts) == 1:
            (state, counts), _ = part(known, jnp.asarray([0.0, 1.0, 1.0], t0.dtype))
        else:
            ends = np.cumsum(self.parts)
            ends[-1] = 1.0
            rows = np.stack([[0.0, *ends[:-1]], ends, self.parts], axis=1)
            (state, counts), _ = jax.lax.scan(part, known, jnp.asarray(rows, t0.dtype))

        def end(before, after):
            return jnp.where(still, before, jnp.where(counts.converged > 0, after, jnp.nan))

        y1 = jax.tree.map(end, start, state), None
        dense = {"y0": y0, "y1": y1}
        for name, t, y in (("0", t0, start), ("1", t1, y1[0])):
            if self.order(None) == 6:
                rate = lambda t, y: equations(t, y).consistent_rate()  # noqa: E731
                slope, bend = two_derivatives(rate, sign * t, y, length)
                dense["c" + name] = bend, None
            else:
                rate = equations(sign * t, y).consistent_rate()
                slope = jax.tree.map(lambda x: length.astype(x.dtype) * x, rate)
            dense["k" + name] = slope, None
        return (y1, None, dense, None, diffrax.RESULTS.successful), counts


class _Unknown(NamedTuple):
    """What a step is solved for, up to its middle.

    Args:
        a: velocities of the momenta in the middle at the first position, `(n,)`.
        b: those at the last one; empty where they are the same.
        moved: `q_1 - q_0` where velocities are not rates, or empty.
        impulses: `h lam_a / 2`, shape `(m + r,)`.
        w: actuator state at the end, `(k,)`.
    """

    a: Any
    b: Any
    moved: Any
    impulses: Any
    w: Any


def _step(equations: Callable, system, t0, t1, h, start: State) -> tuple[State, Counts]:
    """The end of a step of order 2, and what its iterations took."""
    q0, v0, w0 = start.q, start.v, start.w
    p = partial(momentum, system)
    varies = any(depends_on(p, i, t0, q0, v0) for i in (0, 1))
    framed = has_rate(system)
    first = equations(t0, start).dynamics
    m, c = first.phi.size, first.gamma.size

    def impulse(t, q, v, w):
        """`h L / 2`, the rows of the constraints and the rate of actuators."""
        here = equations(t, State(q, v, w))
        force = here.dynamics.force
        if varies:  # without what changes of momenta at constant velocities take
            motion = along_motion(system, t, q, v)
            force = force + jax.jvp(lambda t, q: p(t, q, v), (t, q), motion)[1]
        return h / 2 * force, here.dynamics.jac, h / 2 * here.actuators

    at_start = partial(impulse, t0, q0, w=w0)
    if not depends_on(lambda v: impulse(t0, q0, v, w0), 0, v0):
        known = at_start(v0)
        at_start = lambda _: known  # noqa: E731
    p0 = p(t0, q0, v0)

    def end_of(x: _Unknown):
        """The other velocities, and the last position."""
        b = x.b if varies else x.a
        return b, q0 + (x.moved if framed else h / 2 * (x.a + b))

    def residual(numbers):
        x = unravel(numbers)
        b, q1 = end_of(x)
        force, jac, rate = at_start(x.a)
        middle = p(t0, q0, x.a)
        rows = [middle - p0 - force + product(jac.T, x.impulses)]
        if varies:
            rows.append(p(t1, q1, b) - middle)
        if framed:
            ends = ((t0, q0, x.a), (t1, q1, b))
            rows.append(x.moved - h / 2 * sum(coordinate_rate(system, *end) for end in ends))
        rows.append(system.position_constraints(t1, q1) / h)
        if c > m:
            means = (t0 + t1) / 2, (q0 + q1) / 2, (x.a + b) / 2
            rows.append(system.velocity_constraints(*means))
        if w0.size:
            rows.append(x.w - w0 - rate - impulse(t1, q1, b, x.w)[2])
        return jnp.concatenate([row.astype(q0.dtype) for row in rows])

    none = q0[:0]
    moved = h * coordinate_rate(system, t0, q0, v0) if framed else none
    guess = _Unknown(v0, v0 if varies else none, moved, jnp.zeros(c, q0.dtype), w0)
    at, unravel = ravel_pytree(guess)
    small = added(first.mass, first.jac)
    # Iterations end by what they change of states, not of multipliers.
    position, velocity = 1 / (1 + jnp.max(jnp.abs(q0))), 1 / (1 + jnp.max(jnp.abs(v0)))
    actuator = 1 / (1 + jnp.max(jnp.abs(w0), initial=0.0))
    scales = [jnp.abs(h) * position] * 2 + [position, 0.0, actuator]
    weights = filled(guess, *scales)
    found, counts = root(residual, at, filled(guess, 0.0, 0.0, 0.0, small, 0.0), weights)
    x = unravel(found)
    b, q1 = end_of(x)
    force, jac, _ = impulse(t1, q1, b, x.w)
    before = p(t1, q1, b) + force

    def last(numbers):
        v1, impulses = jnp.split(numbers, [v0.size])
        change = p(t1, q1, v1) - before + product(jac.T, impulses)
        rows = change, constraint_residuals(system, t1, q1, v1).phi_dot
        return jnp.concatenate([row.astype(q0.dtype) for row in rows])

    guess = b, jnp.zeros(c, q0.dtype)
    at, _ = ravel_pytree(guess)
    found, also = root(last, at, filled(guess, 0.0, small), filled(guess, velocity, 0.0))
    return State(q1, found[: v0.size], x.w), counts.and_also(also)
