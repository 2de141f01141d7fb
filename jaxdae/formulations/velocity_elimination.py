"""Shulgin's and Voronets' equations: motion without multipliers, on independent velocities."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.formulations.base import AbstractFormulation, Examination
from jaxdae.formulations.elimination import (
    best_split,
    eliminate,
    Elimination,
    orientation_of,
    Split,
    velocity_rows,
)
from jaxdae.formulations.gains import apply_gain, check_positive, check_size, Gain
from jaxdae.formulations.independent_velocities import why_close, why_undetermined
from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.capabilities import Capabilities
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.reprs import Module
from jaxdae.systems import evaluate, momentum, State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import applied_force
from jaxdae.systems.kinematics import along_motion, coordinate_rate, generalized_force


class EliminatedState(Module):
    """Coordinates, independent velocities, actuator state.

    Args:
        q: all coordinates, shape `(n,)`.
        v: independent velocities, shape `(n-m-r,)`.
        w: actuator state, shape `(k,)`.
        orientation: sign of the determinant of the dependent columns of `J` at the start; constant.
        order: where the choice was made at the start, the indices of the independent coordinates,
            then of the dependent ones, `(n,)`, as floating-point numbers; constant. Else `None`.
    """

    q: Float[Array, " n"]
    v: Float[Array, " d"]
    w: Float[Array, " k"]
    orientation: Float[Array, ""]
    order: Float[Array, " n"] | None


class VelocityElimination(AbstractFormulation):
    r"""Shulgin's equations, and Voronets' for nonholonomic constraints.

    The constraints, differentiated once, give the dependent velocities `v_D = B v_I + b_D` and so
    `v = N v_I + b`. With `T*(t, q, v_I) = T(t, q, N v_I + b)` and the forces
    `Q = F - dV/dq - dD/dv`, the equations of motion of a holonomic system are

        d/dt dT*/dv_I - dT*/dq_I - B^T dT*/dq_D = Q_I + B^T Q_D,        q' = N v_I + b

    [Krasinskaya2013, section 2], and those of a nonholonomic one

        d/dt dT*/dv_I - N^T dT*/dq - (dN/dt - dv/dq N)^T dT/dv = N^T Q

    [Voronets1901], where `dN/dt` is taken along the motion and `dv/dq` is that of
    `v(t, q, v_I) = N v_I + b`; the last term on the left vanishes for holonomic constraints, also
    rheonomic ones, and is then left out. Both are the projection `N^T (M a - f) = 0`.

    The state is `(q, v_I, w)`: `n` coordinates and `n-m-r` velocities. The velocity-level
    constraints hold exactly by construction, so velocities of the start that violate them are
    replaced, `v_D` by `B v_I + b_D`. The position-level ones are integrated, and drift by the
    integration error; `decay` returns them: the dependent coordinates then move so that
    `dphi/dt = -decay phi` in the direction of integration, while `v` stays `N v_I + b`.

    Where the dependent columns of `J` become singular the equations end, although the motion may
    go on (a pendulum's abscissa as independent coordinate, where the rod is level). The vector
    field is NaN as soon as an entry of `B` exceeds `limit` or the determinant of those columns has
    changed its sign, so that an adaptive solver stops there and cannot step across; the error of
    the run then says which coordinates to take instead, and a warning does of one that came close.

    Args:
        independent: names (`System.labels`) or indices of the `n-m-r` independent coordinates.
            `None` chooses them at the start, and under `vmap` for each batch member, by column
            pivoting in the metric of the diagonal of the mass matrix (`choose_independent` is the
            same choice); the state then carries it along.
        decay: rate at which position residuals decay [1/s]: positive scalar, `(m,)` or `(m, m)`.
        limit: largest entry of `B`; by default the -1/3 power of the machine epsilon.

    Raises:
        ValueError: for a `decay` that is not positive definite.
    """

    independent: tuple[str | int, ...] | None = eqx.field(static=True, default=None)
    decay: Gain | None = None
    limit: float | None = eqx.field(static=True, default=None)
    # Of time in the direction of integration, in which residuals decay.
    sign: Any = eqx.field(default=1, repr=False, init=False)

    def __init__(
        self,
        independent: Sequence[str | int] | str | int | None = None,
        decay: Gain | None = None,
        limit: float | None = None,
    ):
        if isinstance(independent, str | int):
            independent = (independent,)
        self.independent = None if independent is None else tuple(independent)
        self.decay = decay
        self.limit = limit
        self.sign = 1

    def __check_init__(self):
        check_positive("decay", self.decay)

    @property
    def capabilities(self):
        return Capabilities(regular_mass=False)

    @property
    def examination(self):
        return Examination(
            declaration=self._check, start=self._of_start, stop=self._of_stop, review=self._of_run
        )

    def init(self, system, t, state, like=None):
        if like is not None:
            free, _ = self.split(system, like)
            return EliminatedState(state.q, state.v[free], state.w, like.orientation, like.order)
        t, order = jnp.asarray(t, state.q.dtype), None
        if self.independent is None:
            split = best_split(system, t, state.q)
            order = jnp.concatenate(split).astype(state.q.dtype)
        else:
            split = self._given(system, state.q)
        orientation = orientation_of(velocity_rows(system, t, state.q)[0][:, split.basic])
        return EliminatedState(state.q, state.v[split.free], state.w, orientation, order)

    def recover(self, system, t, y):
        return State(y.q, self._velocity(system, t, y)[0], y.w)

    def rate_and_multipliers(self, system, t, y, u):
        t, split = jnp.asarray(t, y.q.dtype), self.split(system, y)
        v, result = self._velocity(system, t, y)
        rate = _acceleration(system, split, t, y, v, result, u)
        q_dot = coordinate_rate(system, t, y.q, v) + self._return(system, split, t, y.q)
        w_dot = system.actuator_rate(t, y.q, v, y.w, u)
        order = None if y.order is None else jnp.zeros_like(y.order)
        state_rate = EliminatedState(q_dot, rate, w_dot, jnp.zeros_like(y.orientation), order)
        # Accelerations, and what of the forces they leave to the reactions.
        motion = (*along_motion(system, t, y.q, v), rate)
        _, a = jax.jvp(
            lambda t, q, x: eliminate(system, split, t, q).velocity(x), (t, y.q, y.v), motion
        )
        d = evaluate(system, t, y.q, v, y.w, u)
        basic = split.basic
        return state_rate, jnp.linalg.solve(d.jac[:, basic].T, (d.force - d.mass @ a)[basic])

    def in_direction(self, sign):
        if self.decay is None or self.sign is sign:
            return self
        return eqx.tree_at(lambda x: x.sign, self, sign)

    def elimination(self, system: System, t, y: EliminatedState) -> Elimination:
        """`N` and `b` of `v = N v_I + b` at a state."""
        t = jnp.asarray(t, y.q.dtype)
        return eliminate(system, self.split(system, y), t, y.q)

    def perturbation_matrix(self, system, t, state):
        """`dphi/dt = -decay phi`, shape `(m, m)`; velocities have no violation. `None` without."""
        del t
        m, _ = constraint_counts(system, state)
        decay = self.decay
        if decay is None or m == 0:
            return None
        unit = jnp.eye(m, dtype=state.q.dtype)
        return -jax.vmap(lambda e: apply_gain(decay, e), out_axes=1)(unit)

    def split(self, system: System, y) -> Split:
        """Which coordinates are independent at a state."""
        if self.independent is not None:
            return self._given(system, y.q)
        # Clipped, they are known to be indices: a kernel can compare them with each that may be.
        order = jnp.clip(jnp.round(y.order), 0, y.order.size - 1).astype(int)
        return Split(order[: y.v.size], order[y.v.size :])

    def _check(self, system, state) -> None:
        m, r = constraint_counts(system, state)
        n, name = state.q.size, type(system).__name__
        if m + r > n:
            raise ValueError(f"{m + r} constraints on {n} coordinates cannot be independent.")
        if self.decay is not None:
            check_size("decay", self.decay, m, "position constraints")
        if r and _is_not_affine(system, state):
            raise ValueError(
                f"{name}.velocity_constraints must be affine in the velocities for Voronets' "
                "equations, but the program of its derivative uses them; write it as A(t, q) @ v + "
                "b(t, q), or use NullSpace or Multipliers, which allow any constraint."
            )
        if self.independent is not None:
            self._indices(system, n, n - m - r)

    def _of_start(self, system, t, state) -> str | None:
        """Why a start does not determine the dependent velocities."""
        split = _split_of_start(self, system, t, state)
        return why_undetermined(system, t, state.q, split, self._limit(state.q.dtype))

    def _of_stop(self, system, t, y) -> str | None:
        """Why a run ended at a state; `None` if the elimination is regular there."""
        limit = 1e-2 * self._limit(y.q.dtype)
        return why_undetermined(system, t, y.q, self.split(system, y), limit)

    def _of_run(self, system, ts, ys) -> str | None:
        splits = jax.vmap(lambda y: self.split(system, y))(ys)
        return why_close(system, ts, ys.q, splits)

    def _given(self, system, q) -> Split:
        m, r = constraint_counts(system, State(q, q))
        free = np.asarray(self._indices(system, q.size, q.size - m - r), int)
        return Split(free, np.setdiff1d(np.arange(q.size), free))

    def _indices(self, system, n: int, count: int) -> list[int]:
        values, labels = self.independent or (), system.labels()
        names = ", ".join(labels.coordinate(i) for i in range(n))
        indices = [labels.coordinate_index(k, n) if isinstance(k, str) else k for k in values]
        for k in indices:
            if not -n <= k < n:
                raise ValueError(f"independent coordinate {k} is out of range: there are {n}.")
        indices = [k % n for k in indices]
        if len(set(indices)) != count or len(indices) != count:
            raise ValueError(
                f"independent must name {count} different coordinates of {names} ({n} coordinates "
                f"less {n - count} constraints); got {values}."
            )
        return indices

    def _velocity(self, system, t, y) -> tuple[Float[Array, " n"], Elimination]:
        """All velocities, NaN where the independent ones do not determine them."""
        t = jnp.asarray(t, y.q.dtype)
        result = eliminate(system, self.split(system, y), t, y.q)
        largest = jnp.max(jnp.abs(result.kernel), initial=0.0)
        same_side = orientation_of(result.block) == jnp.round(y.orientation)
        regular = same_side & (largest <= self._limit(y.q.dtype))
        return jnp.where(regular, result.velocity(y.v), jnp.nan), result

    def _limit(self, dtype) -> float:
        return float(jnp.finfo(dtype).eps) ** (-1 / 3) if self.limit is None else self.limit

    def _return(self, system, split, t, q):
        """Velocity of the dependent coordinates that makes the position residuals decay."""
        if self.decay is None:
            return jnp.zeros_like(q)
        phi = system.position_constraints(t, q)
        jac, rate = velocity_rows(system, t, q)
        decay = -self.sign * apply_gain(self.decay, phi)
        wanted = jnp.zeros_like(rate).at[: phi.size].set(decay)
        return jnp.zeros_like(q).at[split.basic].set(jnp.linalg.solve(jac[:, split.basic], wanted))


@jit
def _split_of_start(formulation, system, t, state):
    return formulation.split(system, formulation.init(system, t, state))


def _acceleration(system, split, t, y, v, result: Elimination, u):
    """Independent accelerations, from Shulgin's or Voronets' equations."""
    q, zero = y.q, jnp.zeros_like

    def reduced(t, q, x):
        """T*."""
        return system.kinetic_energy(t, q, eliminate(system, split, t, q).velocity(x))

    _, tangent = jax.linearize(jax.grad(reduced, argnums=2), t, q, y.v)
    eye = jnp.eye(y.v.size, dtype=q.dtype)
    mass = jax.vmap(lambda e: tangent(zero(t), zero(q), e))(eye)
    drift = tangent(*along_motion(system, t, q, v), zero(y.v))
    slope = generalized_force(system, t, q, v, jax.grad(reduced, argnums=1)(t, q, y.v))
    force = applied_force(system, t, q, v, y.w, u) + slope
    rhs = result.kernel.T @ force - drift
    if system.velocity_constraints(t, q, v).size:
        rhs = rhs + _nonholonomic(system, split, t, y, v, result.kernel)
    return solve_positive_definite(mass, rhs)


def _nonholonomic(system, split, t, y, v, kernel):
    """Voronets' terms `(dN/dt - dv/dq N)^T dT/dv`, zero for integrable constraints."""
    motion = along_motion(system, t, y.q, v)
    _, turning = jax.jvp(lambda t, q: eliminate(system, split, t, q).kernel, (t, y.q), motion)
    _, tangent = jax.linearize(lambda q: eliminate(system, split, t, q).velocity(y.v), y.q)
    turned = jax.vmap(tangent, in_axes=1, out_axes=1)(kernel)
    return (turning - turned).T @ momentum(system, t, y.q, v)


def _is_not_affine(system, state) -> bool:
    derivative = jax.jacfwd(system.velocity_constraints, argnums=2)
    return depends_on(derivative, 2, jnp.zeros((), state.q.dtype), state.q, state.v)
