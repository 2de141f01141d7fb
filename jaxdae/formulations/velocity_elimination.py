"""Shulgin's and Voronets' equations: motion without multipliers, on independent velocities."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit, shared
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.formulations.gains import apply_gain, check_positive, check_size, Gain
from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.columns import split_columns
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.rank import numerical_rank
from jaxdae.linalg.saddle_point import Assumptions
from jaxdae.systems import (
    constraint_residuals,
    evaluate,
    mass_and_jacobian,
    momentum,
    State,
    System,
)
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import applied_force
from jaxdae.systems.independence import involved
from jaxdae.systems.kinematics import along_motion, coordinate_rate, generalized_force
from jaxdae.systems.singular_positions import nearness

# A choice this many times closer to singular than the constraints costs two digits.
_CLOSE = 100.0


class EliminatedState(eqx.Module):
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


class Elimination(eqx.Module):
    """All velocities from the independent ones: `v = N v_I + b`, with `N_I = 1`, `N_D = B`.

    Args:
        kernel: `N`, a basis of `ker J`, shape `(n, n-m-r)`.
        offset: `b`, zero unless the constraints depend on time or are affine, shape `(n,)`.
    """

    kernel: Float[Array, "n d"]
    offset: Float[Array, " n"]


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
    `df/dt = -decay f`, while `v` stays `N v_I + b`.

    Where the dependent columns of `J` become singular the equations end, although the motion may
    go on (a pendulum's abscissa as independent coordinate, where the rod is level). The vector
    field is NaN as soon as an entry of `B` exceeds `limit` or the determinant of those columns has
    changed its sign, so that an adaptive solver stops there and cannot step across; `diagnose` then
    says which coordinates to take instead. `review` says it of a run that came close and went on.

    Args:
        independent: names (`System.labels`) or indices of the `n-m-r` independent coordinates.
            `None` chooses them at the start, and under `vmap` for each lane, by column pivoting in
            the metric of the diagonal of the mass matrix (`choose_independent` is the same choice);
            the state then carries it along.
        decay: rate at which position residuals decay [1/s]: positive scalar, `(m,)` or `(m, m)`.
        limit: largest entry of `B`; by default the -1/3 power of the machine epsilon.

    Raises:
        ValueError: for a `decay` that is not positive definite.
    """

    independent: tuple[str | int, ...] | None = eqx.field(static=True, default=None)
    decay: Gain | None = None
    limit: float | None = eqx.field(static=True, default=None)

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

    def __check_init__(self):
        check_positive("decay", self.decay)

    def init(self, system, t, state):
        t, order = jnp.asarray(t, state.q.dtype), None
        if self.independent is None:
            free, basic = _choose(system, t, state.q)
            order = jnp.concatenate([free, basic]).astype(state.q.dtype)
        else:
            free, basic = self._given(system, state.q)
        orientation = _orientation(_rows(system, t, state.q)[0][:, basic])
        return EliminatedState(state.q, state.v[free], state.w, orientation, order)

    def moved(self, system, t, y, state):
        del t
        free, _ = self._split(system, y)
        return EliminatedState(state.q, state.v[free], state.w, y.orientation, y.order)

    def recover(self, system, t, y):
        v, _ = self._velocity(system, t, y)
        return State(y.q, v, y.w)

    def vector_field(self, system, t, y, u):
        t, split = jnp.asarray(t, y.q.dtype), self._split(system, y)
        v, found = self._velocity(system, t, y)
        rate = _acceleration(system, split, t, y, v, found, u)
        q_dot = coordinate_rate(system, t, y.q, v) + self._return(system, split, t, y.q)
        w_dot = system.actuator_rate(t, y.q, v, y.w, u)
        order = None if y.order is None else jnp.zeros_like(y.order)
        return EliminatedState(q_dot, rate, w_dot, jnp.zeros_like(y.orientation), order)

    def multipliers(self, system, t, y, u):
        t, split = jnp.asarray(t, y.q.dtype), self._split(system, y)
        v, found = self._velocity(system, t, y)
        rate = _acceleration(system, split, t, y, v, found, u)
        motion = (*along_motion(system, t, y.q, v), rate)
        _, a = jax.jvp(lambda t, q, x: _velocity(system, split, t, q, x), (t, y.q, y.v), motion)
        d = evaluate(system, t, y.q, v, y.w, u)
        basic = split[1]
        return jnp.linalg.solve(d.jac[:, basic].T, (d.force - d.mass @ a)[basic])

    def elimination(self, system: System, t, y: EliminatedState) -> Elimination:
        """`N` and `b` of `v = N v_I + b` at a state."""
        t = jnp.asarray(t, y.q.dtype)
        return _eliminate(system, self._split(system, y), t, y.q)

    def perturbation_matrix(self, system, t, state):
        """`df/dt = -decay f`, shape `(m, m)`; velocities have no violation. `None` without."""
        del t
        m, _ = constraint_counts(system, state)
        decay = self.decay
        if decay is None or m == 0:
            return None
        unit = jnp.eye(m, dtype=state.q.dtype)
        return -jax.vmap(lambda e: apply_gain(decay, e), out_axes=1)(unit)

    def check(self, system, state):
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

    def check_start(self, system: System, t, state: State) -> None:
        """Check, on the host, that the start determines the dependent velocities.

        Raises:
            ValueError: naming the coordinates, the singular values, and a better choice.
        """
        problem = self._problem(system, t, _started(self, system, t, state))
        if problem is not None:
            raise ValueError(problem)

    def diagnose(self, system: System, t, y: EliminatedState) -> str | None:
        """Why a run ended at a state, on the host, or `None` if the elimination is regular there.

        Args:
            system: the declaration.
            t: time [s].
            y: the last state, as integrated.
        """
        return self._problem(system, t, y, near=1e-2)

    def review(self, system, ts, ys):
        """Where the choice came close to a singular one, on the host; `None` if it did not.

        The measure is the ratio of the least singular values of `J` and of its dependent columns,
        rows of unit length: how many times closer to singular the choice is than the constraints
        are. It is at most `sqrt(1 + |B|^2)`, the factor from errors of `v_I` to those of `v`.
        """
        rows, basic = (np.asarray(x) for x in _dependent(self, system, ts, ys))
        good = np.flatnonzero(np.isfinite(rows).all(axis=(1, 2)))
        if good.size == 0 or rows.shape[1] == 0:
            return None
        ratios, least = _nearness(rows[good], basic[good])
        i = int(np.argmax(ratios))
        if ratios[i] <= _CLOSE:
            return None
        t, y = jax.tree.map(lambda x: x[good[i]], (ts, ys))
        labels, (free, dependent) = system.labels(), self._split(system, y)
        return (
            f"the independent coordinates ({_names(labels, free)}) came close to a singular choice "
            f"at t = {float(t):.6g}: the least singular value of the columns of J that belong to "
            f"({_names(labels, dependent)}), with rows of unit length, is {least[i]:.3g}, which is "
            f"{ratios[i]:.3g} times less than that of J. Errors of the independent velocities can "
            f"grow as much in the others, and steps get short. {_remedy(system, t, y.q)}"
        )

    def assumptions(self):
        return Assumptions(independent_constraints=True, regular_mass=False)

    def _split(self, system, y):
        """Indices of the independent and of the dependent coordinates."""
        if self.independent is not None:
            return self._given(system, y.q)
        # Clipped, they are known to be indices: a kernel can compare them with each that may be.
        order = jnp.clip(jnp.round(y.order), 0, y.order.size - 1).astype(int)
        return order[: y.v.size], order[y.v.size :]

    def _given(self, system, q) -> tuple[np.ndarray, np.ndarray]:
        m, r = constraint_counts(system, State(q, q))
        free = np.asarray(self._indices(system, q.size, q.size - m - r), int)
        return free, np.setdiff1d(np.arange(q.size), free)

    def _indices(self, system, n: int, count: int) -> list[int]:
        given, labels = self.independent or (), system.labels()
        names = ", ".join(labels.coordinate(i) for i in range(n))
        indices = [labels.coordinate_index(k, n) if isinstance(k, str) else k for k in given]
        for k in indices:
            if not -n <= k < n:
                raise ValueError(f"independent coordinate {k} is out of range: there are {n}.")
        indices = [k % n for k in indices]
        if len(set(indices)) != count or len(indices) != count:
            raise ValueError(
                f"independent must name {count} different coordinates of {names} ({n} coordinates "
                f"less {n - count} constraints); got {given}."
            )
        return indices

    def _velocity(self, system, t, y):
        """All velocities, NaN where the independent ones do not determine them; and `N`, `b`."""
        split = self._split(system, y)
        found, block = _solve_rows(system, split, jnp.asarray(t, y.q.dtype), y.q)
        largest = jnp.max(jnp.abs(found.kernel), initial=0.0)
        same_side = _orientation(block) == jnp.round(y.orientation)
        regular = same_side & (largest <= self._limit(y.q.dtype))
        return jnp.where(regular, found.kernel @ y.v + found.offset, jnp.nan), found

    def _limit(self, dtype) -> float:
        return float(jnp.finfo(dtype).eps) ** (-1 / 3) if self.limit is None else self.limit

    def _return(self, system, split, t, q):
        """Velocity of the dependent coordinates that makes the position residuals decay."""
        if self.decay is None:
            return jnp.zeros_like(q)
        phi = system.position_constraints(t, q)
        jac, rate = _rows(system, t, q)
        wanted = jnp.zeros_like(rate).at[: phi.size].set(-apply_gain(self.decay, phi))
        return jnp.zeros_like(q).at[split[1]].set(jnp.linalg.solve(jac[:, split[1]], wanted))

    def _problem(self, system, t, y, near: float = 1.0) -> str | None:
        """What is wrong with the choice, where an entry of `B` exceeds `near * limit`."""
        if not np.isfinite(np.asarray(y.q)).all():
            return None
        t, labels = jnp.asarray(t, y.q.dtype), system.labels()
        split, kernel = _chosen(self, system, t, y)
        free, basic = (np.asarray(x) for x in split)
        largest = float(jnp.max(jnp.abs(kernel), initial=0.0))
        limit = near * self._limit(y.q.dtype)
        if largest <= limit:
            return None
        rows = _unit_rows(system, t, y.q)
        values = np.linalg.svd(rows[:, basic], compute_uv=False)
        return (
            f"the independent coordinates ({_names(labels, free)}) do not determine the velocities "
            f"of ({_names(labels, basic)}) at t = {float(t):.6g}: the singular values of the "
            f"dependent columns of J, with rows of unit length, are "
            f"[{', '.join(f'{x:.3g}' for x in values)}], and B has entries up to {largest:.3g} "
            f"(allowed {limit:.3g}). {_remedy(system, t, y.q)}"
        )


def choose_independent(system: System, t, q) -> tuple[str, ...]:
    """Names of the independent coordinates that determine the other velocities best.

    Column pivoting on the constraint Jacobian with rows of unit length, in the metric of the
    diagonal of the mass matrix: the dependent coordinates are those that the constraints move most
    for their inertia. For use on the host.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.

    Returns:
        Names by `System.labels`, in the order of the coordinates, as
        `VelocityElimination(independent=…)` takes them.

    Raises:
        ValueError: where the constraints are dependent, so that no choice is good.
    """
    q = jnp.asarray(q, jnp.result_type(q, float))
    t, labels = jnp.asarray(t, q.dtype), system.labels()
    jac = np.asarray(_rows(system, t, q)[0])
    found = numerical_rank(jac)
    if found.rank < jac.shape[0]:
        values = ", ".join(f"{x:.3g}" for x in found.singular_values)
        raise ValueError(
            f"the constraints are dependent at t = {float(t):.6g} (singular values [{values}] of "
            f"the rows of J, scaled to unit length; {involved(labels, found)}), so no velocities "
            "can be eliminated there. Where they are so in every position, drop the superfluous "
            "ones or use Multipliers(..., solve=MinimumNorm()); at a singular position, use "
            "Multipliers(..., solve=SingularityRobust())."
        )
    free, _ = _choose(system, t, q)
    return tuple(labels.coordinate(int(i)) for i in free)


def _unit_rows(system, t, q) -> np.ndarray:
    """Rows of `J`, scaled to unit length."""
    rows = np.asarray(_rows(system, t, q)[0], float)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _remedy(system, t, q) -> str:
    """What to use where a choice ends: another one, unless `J` itself loses rank there."""
    found = nearness(system, t, q, jnp.zeros_like(q))
    if found.singular:
        return (
            f"J itself is nearly singular there, with the least singular value {found.least:.3g}: "
            "no choice of independent coordinates passes that position, nor does NullSpace. Use "
            "Multipliers(..., solve=SingularityRobust())."
        )
    better = ", ".join(repr(k) for k in choose_independent(system, t, q))
    return (
        f"There, use VelocityElimination(independent=({better},)), or NullSpace, which needs no "
        "choice."
    )


# Compiled: operation by operation the checks on the host would take seconds.
@jit
def _started(formulation, system, t, state):
    return formulation.init(system, t, state)


@jit
def _chosen(formulation, system, t, y):
    """Independent and dependent coordinates of a state, and `N` there."""
    split = formulation._split(system, y)
    return split, _eliminate(system, split, t, y.q).kernel


@jit
def _dependent(formulation, system, ts, ys):
    """`J` and its dependent columns at the times of a run."""

    def at(t, y):
        jac, _ = _rows(system, t, y.q)
        return jac, jac[:, formulation._split(system, y)[1]]

    return jax.vmap(at)(ts, ys)


def _nearness(rows: np.ndarray, basic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ratio of the least singular values of `J` and of some columns, and the latter."""
    lengths = np.linalg.norm(rows, axis=2, keepdims=True)
    lengths = np.where(lengths > 0, lengths, 1.0)
    whole, part = (np.linalg.svd(x / lengths, compute_uv=False)[:, -1] for x in (rows, basic))
    return whole / np.maximum(part, np.finfo(part.dtype).tiny), part


def _acceleration(system, split, t, y, v, found: Elimination, u):
    """Independent accelerations, from Shulgin's or Voronets' equations."""
    q, zero = y.q, jnp.zeros_like

    def reduced(t, q, x):
        """T*."""
        return system.kinetic_energy(t, q, _velocity(system, split, t, q, x))

    _, tangent = jax.linearize(jax.grad(reduced, argnums=2), t, q, y.v)
    eye = jnp.eye(y.v.size, dtype=q.dtype)
    mass = jax.vmap(lambda e: tangent(zero(t), zero(q), e))(eye)
    drift = tangent(*along_motion(system, t, q, v), zero(y.v))
    slope = generalized_force(system, t, q, v, jax.grad(reduced, argnums=1)(t, q, y.v))
    force = applied_force(system, t, q, v, y.w, u) + slope
    rhs = found.kernel.T @ force - drift
    if system.velocity_constraints(t, q, v).size:
        rhs = rhs + _nonholonomic(system, split, t, y, v, found.kernel)
    return solve_positive_definite(mass, rhs)


def _nonholonomic(system, split, t, y, v, kernel):
    """Voronets' terms `(dN/dt - dv/dq N)^T dT/dv`, zero for integrable constraints."""
    motion = along_motion(system, t, y.q, v)
    _, turning = jax.jvp(lambda t, q: _eliminate(system, split, t, q).kernel, (t, y.q), motion)
    _, tangent = jax.linearize(lambda q: _velocity(system, split, t, q, y.v), y.q)
    spread = jax.vmap(tangent, in_axes=1, out_axes=1)(kernel)
    return (turning - spread).T @ momentum(system, t, y.q, v)


def _velocity(system, split, t, q, x):
    found = _eliminate(system, split, t, q)
    return found.kernel @ x + found.offset


def _eliminate(system, split, t, q) -> Elimination:
    return _solve_rows(system, split, t, q)[0]


def _solve_rows(system, split, t, q):
    """`N` and `b`, and the dependent columns of `J`."""
    free, basic = split
    jac, rate = _rows(system, t, q)
    block = jac[:, basic]
    columns = jnp.concatenate([jac[:, free], rate[:, None]], axis=1)
    solved = jnp.linalg.solve(block, -columns)
    kernel = jnp.zeros((q.size, free.size), q.dtype).at[free, jnp.arange(free.size)].set(1.0)
    kernel = kernel.at[basic].set(solved[:, :-1])
    return Elimination(kernel, jnp.zeros_like(q).at[basic].set(solved[:, -1])), block


def _orientation(block):
    """Sign of a determinant; of a singular one zero."""
    return jax.lax.stop_gradient(jnp.linalg.slogdet(jax.lax.stop_gradient(block))[0])


@shared
def _rows(system, t, q):
    """`J` and the velocity-level residual at rest: `phi_dot = J v + rate`."""

    def residual(v):
        return constraint_residuals(system, t, q, v).phi_dot

    rest = jnp.zeros_like(q)
    return jax.jacfwd(residual)(rest), residual(rest)


@shared
def _choose(system, t, q):
    mass, _ = mass_and_jacobian(system, t, q, jnp.zeros_like(q))
    inertia = jnp.diagonal(mass)
    # A massless coordinate is the best one to depend on the others, whatever its unit.
    least = jnp.finfo(q.dtype).eps * jnp.max(inertia)
    return split_columns(_rows(system, t, q)[0], 1 / jnp.sqrt(jnp.maximum(inertia, least)))


def _is_not_affine(system, state) -> bool:
    derivative = jax.jacfwd(system.velocity_constraints, argnums=2)
    return depends_on(derivative, 2, jnp.zeros((), state.q.dtype), state.q, state.v)


def _names(labels, indices) -> str:
    return ", ".join(labels.coordinate(int(i)) for i in indices)
