"""How many constraints are independent where they hold."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdae.linalg.held_rank import pivoted_rows, rank_tolerance, unit_rows
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.rank import numerical_rank, NumericalRank
from jaxdae.systems.base import Labels, State, System
from jaxdae.systems.dynamics import constraint_residuals
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
        rank: at the point next to a state, a whole number in floating point.
        regular: whether it is the same around that point: at a singular position it is not.
        jac: the Jacobian at the point, shape `(m+r, n)`.
    """

    rank: Float[Array, ""]
    regular: Bool[Array, ""]
    jac: Float[Array, "c n"]

    def held(self) -> Float[Array, ""]:
        """The rank to hold along a motion; NaN where the motion starts at a singular position."""
        return jnp.where(self.regular, self.rank, jnp.nan)


def constraint_rank(system: System, t, state: State) -> ConstraintRank:
    r"""Number of independent constraints next to a state, where the constraints hold.

    A state that is off the constraints by `d` has singular values of the order `d` that vanish on
    them. So the Jacobian is taken at the nearest point that satisfies the constraints. The rank is
    the same along a motion if singular values that are zero remain so: `y^T J'(z) w = 0` for all
    `y^T J = 0`, `J w = 0` and `J z = 0`, with `J'(z)` the derivative of `J` along `z`.

    Args:
        system: the declaration.
        t: time [s].
        state: near the constraints.

    Returns:
        `ConstraintRank`, without derivatives.
    """
    system, t, state = _plain(system, t, state)
    q, v = _on_constraints(system, t, state.q, state.v, _STEPS)
    jac = _jacobian(system, t, q, v)
    rows, scales = unit_rows(jac)
    found, columns = pivoted_rows(rows), pivoted_rows(rows.T)
    # Any directions will do, if only they have nothing to do with the mechanism.
    numbers = jnp.arange(1.0, q.size + 1, dtype=q.dtype)
    z, w = (found.beside(jnp.cos(k * numbers**2)) for k in (1.0, 2.0))
    _, turned = jax.jvp(lambda q: _jacobian(system, t, q, v) @ w, (q,), (z,))
    turned = scales * turned
    lost = jnp.linalg.norm(columns.beside(turned))
    limit = rank_tolerance(q.dtype) ** 0.5
    regular = lost <= limit * (1 + jnp.linalg.norm(turned))
    return ConstraintRank(found.rank, regular, jac)


def surely_independent(jac: np.ndarray, phi: np.ndarray) -> bool:
    """Whether constraints are independent without a closer look, on the host.

    Args:
        jac: Jacobian at a state, position constraints first, shape `(m+r, n)`.
        phi: residuals of the position constraints there, shape `(m,)`.
    """
    values = numerical_rank(jac).singular_values
    lengths = np.linalg.norm(jac[: phi.size], axis=1)
    distance = np.max(np.abs(phi) / np.where(lengths > 0, lengths, 1.0), initial=0.0)
    limit = max(_SURELY_INDEPENDENT, _PER_DISTANCE * float(distance))
    return jac.shape[0] <= jac.shape[1] and bool(values[-1] > limit * values[0])


def are_dependent(system: System, t, state: State) -> Bool[Array, ""]:
    """Whether constraints depend on each other next to a state that is near the constraints.

    With few steps to them: it is for programs in which no time may be lost by that.
    """
    system, t, state = _plain(system, t, state)
    q, v = _on_constraints(system, t, state.q, state.v, _FEW_STEPS)
    rows, _ = unit_rows(_jacobian(system, t, q, v))
    return ~(pivoted_rows(rows).rank == rows.shape[0])


def approach(residual, x, steps: int = _STEPS):
    r"""The point of `residual(x) = 0` next to `x`; the constraints may depend on each other.

    Levenberg-Marquardt steps `dx = -J^T (J J^T + mu)^-1 r` with rows of unit length and `mu` the
    square of the distance, which converge quadratically whatever the rank of `J` is (Yamashita,
    Fukushima, On the rate of convergence of the Levenberg-Marquardt method, 2001).

    Args:
        residual: function of `(n,)`, shape `(c,)`.
        x: start, shape `(n,)`.
        steps: their number.

    Returns:
        The point, shape `(n,)`.
    """
    jacobian, eps = jax.jacfwd(residual), jnp.finfo(x.dtype).eps

    def step(_, x):
        rows, scales = unit_rows(jacobian(x))
        r = scales * residual(x)
        # At least beyond the round-off of the product.
        mu = jnp.minimum(r @ r / (1 + x @ x), 1.0) + 100 * eps
        matrix = rows @ rows.T + mu * jnp.eye(r.size, dtype=x.dtype)
        return x - rows.T @ solve_positive_definite(matrix, r)

    return jax.lax.fori_loop(0, steps, step, x)


def involved(labels: Labels, found: NumericalRank) -> str:
    """The smallest sets of constraints that depend on each other, in words."""
    sets = (", ".join(repr(labels.constraint(i)) for i in x) for x in found.dependent_sets)
    return f"involved: {'; and '.join(sets)}"


def _plain(system: System, t, state: State):
    """Without derivatives, in the precision of the state."""
    dtype = state.q.dtype
    everything = in_dtype(system, dtype), jnp.asarray(t, dtype), state
    arrays, rest = eqx.partition(everything, eqx.is_array)
    return eqx.combine(jax.lax.stop_gradient(arrays), rest)


def _on_constraints(system: System, t, q, v, steps: int):
    """Coordinates and velocities next to given ones that satisfy the constraints."""
    if eqx.filter_eval_shape(system.position_constraints, t, q).shape[0]:
        q = approach(lambda q: system.position_constraints(t, q), q, steps)
    if eqx.filter_eval_shape(system.velocity_constraints, t, q, v).shape[0]:
        v = approach(lambda v: constraint_residuals(system, t, q, v).phi_dot, v, steps)
    return q, v


def _jacobian(system: System, t, q, v) -> Float[Array, "c n"]:
    return jax.jacfwd(lambda v: constraint_residuals(system, t, q, v).phi_dot)(v)
