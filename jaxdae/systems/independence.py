"""How many constraints are independent where they hold."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float

from jaxdae.linalg.held_rank import pivoted_rows, rank_tolerance, unit_rows
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.rank import numerical_rank, NumericalRank
from jaxdae.reprs import shown
from jaxdae.systems.base import Labels, State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import constraint_residuals, Violation
from jaxdae.systems.kinematics import coordinate_rate, has_rate, moved
from jaxdae.systems.precision import in_dtype

# Each squares the distance to the constraints once it is small.
_STEPS = 12
# For programs in which hardly any time may be spent.
_FEW_STEPS = 5
# Singular values that vanish on the constraints are of the order of the distance from them. Far
# above that, in parts of the largest one, constraints are independent without a closer look.
_PER_DISTANCE = 100.0
_SURELY_INDEPENDENT = 1e-2


class ConstraintRank(NamedTuple):
    """Rank of the constraint Jacobian on the constraints.

    Args:
        rank: at the point next to a state, an integer in floating point.
        regular: whether it is the same around that point: at a singular position it is not.
        jac: the Jacobian at the point, shape `(m+r, n)`.
    """

    rank: Float[Array, ""]
    regular: Bool[Array, ""]
    jac: Float[Array, "c n"]

    def __repr__(self) -> str:
        return shown(self)

    def held(self) -> Float[Array, ""]:
        """The rank to hold along a motion; NaN where the motion starts at a singular position."""
        return jnp.where(self.regular, self.rank, jnp.nan)


def constraint_rank(
    system: System, t, state: State, kernel: Callable | None = None
) -> ConstraintRank:
    r"""Number of independent constraints next to a state, where the constraints hold.

    A state that is off the constraints by `d` has singular values of the order `d` that vanish on
    them. So the Jacobian is taken at the nearest point that satisfies the constraints. The rank is
    the same along a motion if singular values that are zero remain so: `y^T J'(z) w = 0` for all
    `y^T J = 0`, `J w = 0` and `J z = 0`, with `J'(z)` the derivative of `J` along `z`.

    Args:
        system: the declaration.
        t: time [s].
        state: near the constraints.
        kernel: makes a kernel of a function and examples of its arguments, or returns `None` where
            there can be none. In a batch, kernels take a fraction of the time of XLA's programs.

    Returns:
        `ConstraintRank`, without derivatives.
    """
    system, t, state = _plain(system, t, state)
    q, v = _on_constraints(system, t, state.q, state.v, _STEPS, kernel)
    arrays, rest = eqx.partition(system, eqx.is_array)
    ranked = lambda q, v, t, arrays: _rank_at(eqx.combine(arrays, rest), t, q, v)  # noqa: E731
    rank, regular, jac = _made(ranked, (q, v, t, arrays), kernel)(q, v, t, arrays)
    return ConstraintRank(rank, regular > 0, jac)


def _rank_at(system: System, t, q, v) -> tuple:
    """Rank, 1 where it is the same around a state on the constraints and else 0, and Jacobian."""
    jac = _jacobian(system, t, q, v)
    rows, scales = unit_rows(jac)
    result, columns = (pivoted_rows(x, min(x.shape)) for x in (rows, rows.T))
    # Any directions will do, if only they have nothing to do with the mechanism.
    numbers = jnp.arange(1.0, v.size + 1, dtype=q.dtype)
    z, w = (result.beside(jnp.cos(k * numbers**2)) for k in (1.0, 2.0))
    z = coordinate_rate(system, t, q, z)
    _, turned = jax.jvp(lambda q: _jacobian(system, t, q, v) @ w, (q,), (z,))
    # A row that is zero at this point alone turns too: beside the longest of the others.
    none = scales == 0
    least = jnp.min(jnp.where(none, jnp.inf, scales), initial=jnp.inf)
    turned = jnp.where(none, jnp.where(jnp.isfinite(least), least, 1.0), scales) * turned
    lost = jnp.linalg.norm(columns.beside(turned))
    limit = rank_tolerance(q.dtype) ** 0.5
    regular = lost <= limit * (1 + jnp.linalg.norm(turned))
    return result.rank, regular.astype(q.dtype), jac


def _made(function: Callable, arguments: tuple, kernel: Callable | None) -> Callable:
    """A function as a kernel, where there can be one."""
    one = None if kernel is None else kernel(function, *arguments)
    return function if one is None else one


def unsatisfied(system: System, t, state: State) -> Violation:
    """Residuals that remain at the point next to a state that satisfies the constraints best.

    Round-off where the constraints are compatible, whatever the distance and the rank are. Where
    they are not, about the least residual that any motion can have there.

    Without derivatives; `phi_dot` is zero where all constraints are of positions, whose rates can
    be satisfied wherever they themselves can.
    """
    system, t, state = _plain(system, t, state)
    q, v = _on_constraints(system, t, state.q, state.v, _STEPS)
    result = constraint_residuals(system, t, q, v)
    if result.phi.size == result.phi_dot.size:
        return Violation(result.phi, jnp.zeros_like(result.phi_dot))
    return Violation(result.phi, result.phi_dot)


class Look(NamedTuple):
    """What a state itself says of the independence of its constraints.

    Args:
        jac: Jacobian, shape `(m+r, n)`.
        phi: residuals of the position constraints, shape `(m,)`.
        ratio: lower bound of the ratio of its singular values, least to largest, with unit rows;
            NaN where it has none.
        distance: largest residual of a position constraint, in lengths of its row.
    """

    jac: Any
    phi: Any
    ratio: Any
    distance: Any

    def bounds_suffice(self):
        """Whether the bound shows that constraints are independent, on the host."""
        return self.ratio > np.maximum(_SURELY_INDEPENDENT, _PER_DISTANCE * self.distance)


def look(system: System, t, state: State) -> Look:
    """What a state itself says of the independence of its constraints."""
    jac = _jacobian(system, t, state.q, state.v)
    phi = system.position_constraints(t, state.q)
    rows, scales = unit_rows(jac)
    distance = jnp.max(jnp.abs(phi) * scales[: phi.size], initial=0.0)
    # Of A = J J^T the least eigenvalue is at least 1 / tr A^-1, the largest at most max |A|. Scalar
    # operations: in a batch, calls of a library would take longer than many runs.
    product = jnp.sum(rows[:, None] * rows[None], axis=2)
    inverse = solve_positive_definite(product, jnp.eye(len(rows), dtype=rows.dtype))
    largest = jnp.max(jnp.sum(jnp.abs(product), axis=1))
    return Look(jac, phi, 1 / jnp.sqrt(largest * jnp.trace(inverse)), distance)


def surely_independent(jac: np.ndarray, phi: np.ndarray) -> bool:
    """Whether constraints are independent without a closer look, by their singular values.

    `jac (m+r, n)` has position constraints first, `phi (m,)` are their residuals.
    """
    lengths = np.linalg.norm(jac[: phi.size], axis=1)
    distance = np.max(np.abs(phi) / np.where(lengths > 0, lengths, 1.0), initial=0.0)
    values = numerical_rank(jac).singular_values
    if values[0] == 0:  # constraints that are all released
        return False
    exact = Look(jac, phi, values[-1] / values[0], distance)
    return jac.shape[0] <= jac.shape[1] and bool(exact.bounds_suffice())


def are_dependent(system: System, t, state: State, kernel=None) -> Bool[Array, ""]:
    """Whether constraints depend on each other next to a state that is near the constraints.

    For programs in which hardly any time may be spent: one loop of few steps to the constraints,
    which ends where all members of a batch are surely independent, mostly after the first.

    `kernel` makes a kernel of a function and examples of its arguments, or returns `None` where
    there can be none.
    """
    system, t, state = _plain(system, t, state)
    q, v = state.q, state.v
    m, r = constraint_counts(system, state)
    arrays, rest = eqx.partition(system, eqx.is_array)
    independent = jnp.asarray(True)
    if m:

        def phi(q, t, arrays):
            return eqx.combine(arrays, rest).position_constraints(t, q)

        def after(change, q, t, arrays):
            return phi(moved(eqx.combine(arrays, rest), t, q, change), t, arrays)

        # Where velocities follow, coordinates must be on the constraints.
        if has_rate(system):
            change, independent = _closer(after, (jnp.zeros_like(v), q, t, arrays), r == 0, kernel)
            q = moved(system, t, q, change)
        else:
            q, independent = _closer(phi, (q, t, arrays), r == 0, kernel)
    if r:

        def phi_dot(v, q, t, arrays):
            return constraint_residuals(eqx.combine(arrays, rest), t, q, v).phi_dot

        _, independent = _closer(phi_dot, (v, q, t, arrays), True, kernel)
    return ~independent


class _Nearer(NamedTuple):
    """A step to the constraints.

    Args:
        x: after it, shape `(n,)`.
        surely: 1 where the constraints are independent without a closer look, else 0.
        independent: 1 where they are if `x` was on them, else 0.
    """

    x: Any
    surely: Any
    independent: Any


def _closer(residual, arguments, ends: bool, kernel):
    """The point of `residual(x, ...) = 0` next to `x`, and whether constraints are independent.

    `residual(x, ...)` takes `arguments`; the loop `ends` where constraints are surely independent.
    """
    x, *rest = arguments

    def nearer(x, *rest):
        return _nearer(lambda x: residual(x, *rest), x)

    # One kernel beside that of the run costs less than XLA's compiling of the same operations.
    one = _made(nearer, arguments, kernel)

    def step(result):
        count, last = result
        return count + 1, one(last.x, *rest)

    none = jnp.zeros((), x.dtype)
    goes_on = lambda result: (result[0] <= _FEW_STEPS) & ~((result[1].surely > 0) & ends)  # noqa: E731
    start = jnp.zeros((), int), _Nearer(x, none, none)
    _, (x, surely, independent) = jax.lax.while_loop(goes_on, step, start)
    return x, (surely > 0) | (independent > 0)


def _nearer(residual, x) -> _Nearer:
    """The steps of `approach`, in scalar operations: calls of a library take longer in batches."""
    jac, r = jax.jacfwd(lambda x: (residual(x),) * 2, has_aux=True)(x)
    added = _added(x.dtype)
    rows, scales = unit_rows(jac)
    r = scales * r
    mu = jnp.minimum(r @ r / (1 + x @ x), 1.0) + added
    product = jnp.sum(rows[:, None] * rows[None], axis=2)
    unit = jnp.eye(r.size, dtype=x.dtype)
    both = jnp.concatenate([unit, r[:, None]], axis=1)
    solved = solve_positive_definite(product + mu * unit, both)
    # The least eigenvalue of A is at least 1 / tr A^-1, the largest at most max |A|.
    least = 1 / jnp.trace(solved[:, :-1])
    largest = jnp.max(jnp.sum(jnp.abs(product), axis=1))
    limit = jnp.maximum(_SURELY_INDEPENDENT, _PER_DISTANCE * jnp.max(jnp.abs(r)))
    surely = least - mu > limit**2 * largest
    # On the constraints an eigenvalue that vanishes is the round-off that was added to it.
    result = surely, least > 4 * added
    return _Nearer(x - solved[:, -1] @ rows, *(x.astype(r.dtype) for x in result))


def approach(residual, x, steps: int = _STEPS):
    r"""The point of `residual(x) = 0` next to `x`; the constraints may depend on each other.

    Levenberg-Marquardt steps `dx = -J^T (J J^T + mu)^-1 r` with rows of unit length and `mu` the
    square of the distance, which converge quadratically whatever the rank of `J` is
    [YamashitaFukushima2001].
    """
    return _approached(residual, (x,), steps, None)


def _approached(residual, arguments: tuple, steps: int, kernel: Callable | None):
    """The same of `residual(x, ...)` by its `arguments`, each step a kernel where there is one."""
    x, *rest = arguments

    def step(x, *rest):
        jac, r = jax.jacfwd(lambda x: (residual(x, *rest),) * 2, has_aux=True)(x)
        rows, scales = unit_rows(jac)
        r = scales * r
        mu = jnp.minimum(r @ r / (1 + x @ x), 1.0) + _added(x.dtype)
        matrix = rows @ rows.T + mu * jnp.eye(r.size, dtype=x.dtype)
        return x - rows.T @ cho_solve((jnp.linalg.cholesky(matrix), True), r)

    one = _made(step, arguments, kernel)
    return jax.lax.fori_loop(0, steps, lambda _, x: one(x, *rest), x)


def _added(dtype) -> float:
    """What is added to products of rows at least: more than their round-off."""
    return 100 * float(jnp.finfo(dtype).eps)


def involved(labels: Labels, result: NumericalRank) -> str:
    """The smallest sets of constraints that depend on each other, in words."""
    sets = (", ".join(repr(labels.constraint(i)) for i in x) for x in result.dependent_sets)
    return f"involved: {'; and '.join(sets)}"


def _plain(system: System, t, state: State):
    """Without derivatives, in the precision of the state."""
    dtype = state.q.dtype
    everything = in_dtype(system, dtype), jnp.asarray(t, dtype), state
    arrays, rest = eqx.partition(everything, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def _on_constraints(system: System, t, q, v, steps: int, kernel: Callable | None = None):
    """Coordinates and velocities next to given ones that satisfy the constraints."""
    arrays, rest = eqx.partition(system, eqx.is_array)

    def phi(q, t, arrays):
        return eqx.combine(arrays, rest).position_constraints(t, q)

    def phi_after(change, q, t, arrays):
        return phi(moved(eqx.combine(arrays, rest), t, q, change), t, arrays)

    def phi_dot(v, q, t, arrays):
        return constraint_residuals(eqx.combine(arrays, rest), t, q, v).phi_dot

    if eqx.filter_eval_shape(phi, q, t, arrays).shape[0]:
        if has_rate(system):
            start = jnp.zeros_like(v), q, t, arrays
            q = moved(system, t, q, _approached(phi_after, start, steps, kernel))
        else:
            q = _approached(phi, (q, t, arrays), steps, kernel)
    if eqx.filter_eval_shape(system.velocity_constraints, t, q, v).shape[0]:
        v = _approached(phi_dot, (v, q, t, arrays), steps, kernel)
    return q, v


def _jacobian(system: System, t, q, v) -> Float[Array, "c n"]:
    return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)
