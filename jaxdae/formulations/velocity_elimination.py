"""Shulgin's and Voronets' equations: motion without multipliers, on independent velocities."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit, shared
from jaxdae.formulations.base import AbstractFormulation, Examination
from jaxdae.formulations.gains import apply_gain, check_positive, check_size, Gain
from jaxdae.formulations.structure import depends_on
from jaxdae.linalg.held_rank import split_columns
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.rank import numerical_rank
from jaxdae.linalg.saddle_point import Capabilities
from jaxdae.reprs import Module
from jaxdae.systems import (
    constraint_residuals,
    evaluate,
    mass_and_jacobian,
    State,
    System,
)
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.independence import involved
from jaxdae.systems.kinematics import (
    at_rest,
    coordinate_rate,
    has_rate,
    velocity_labels,
)
from jaxdae.systems.singular_positions import nearness

# A choice this many times closer to singular than the constraints costs two digits.
_CLOSE = 100.0


class Split(NamedTuple):
    """Indices of the independent velocities `(n-m-r,)`, and of those that depend on them."""

    free: Any
    basic: Any


class Elimination(Module):
    """All velocities from the independent ones: `v = N v_I + b`, with `N_I = 1`, `N_D = B`.

    Args:
        kernel: `N`, a basis of `ker J`, shape `(n, n-m-r)`.
        offset: `b`, zero unless the constraints depend on time or are affine, shape `(n,)`.
        block: dependent columns of `J`, shape `(m+r, m+r)`.
    """

    kernel: Float[Array, "n d"]
    offset: Float[Array, " n"]
    block: Float[Array, "c c"]

    def velocity(self, independent: Float[Array, " d"]) -> Float[Array, " n"]:
        """`N v_I + b`."""
        return self.kernel @ independent + self.offset


@shared
def velocity_rows(system, t, q):
    """`J` and the velocity-level residual at rest: `phi_dot = J v + rate`."""

    def residual(v):
        return constraint_residuals(system, t, q, v).phi_dot

    rest = at_rest(system, t, q)
    return jax.jacfwd(residual)(rest), residual(rest)


@shared
def best_split(system, t, q) -> Split:
    """The split that determines the dependent velocities best, in the metric of the inertia."""
    mass, _ = mass_and_jacobian(system, t, q, at_rest(system, t, q))
    inertia = jnp.diagonal(mass)
    # A massless coordinate is the best one to depend on the others, whatever its unit.
    least = jnp.finfo(q.dtype).eps * jnp.max(inertia)
    jac, _ = velocity_rows(system, t, q)
    return Split(*split_columns(jac, 1 / jnp.sqrt(jnp.maximum(inertia, least))))


def eliminate(system, split: Split, t, q) -> Elimination:
    """`v = N v_I + b` at given coordinates."""
    free, basic = split
    jac, rate = velocity_rows(system, t, q)
    block, n = jac[:, basic], jac.shape[1]
    columns = jnp.concatenate([jac[:, free], rate[:, None]], axis=1)
    solved = jnp.linalg.solve(block, -columns)
    kernel = jnp.zeros((n, free.size), q.dtype).at[free, jnp.arange(free.size)].set(1.0)
    kernel = kernel.at[basic].set(solved[:, :-1])
    return Elimination(kernel, jnp.zeros(n, q.dtype).at[basic].set(solved[:, -1]), block)


def orientation_of(block):
    """Sign of a determinant; of a singular one zero."""
    return jax.lax.stop_gradient(jnp.linalg.slogdet(jax.lax.stop_gradient(block))[0])


class EliminatedState(Module):
    """Coordinates, independent velocities, actuator state.

    Args:
        q: all coordinates, shape `(n,)`.
        v: independent velocities, shape `(n-m-r,)`.
        w: actuator state, shape `(k,)`.
        orientation: sign of the determinant of the dependent columns of `J` at the start; constant.
        order: where the choice was made at the start, the indices of the independent velocities,
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
    rheonomic ones. Both are the projection `N^T (M a - f) = 0` of Lagrange's equations, and as such
    they are solved, with `a_0` the accelerations at `v_I' = 0`:

        N^T M N v_I' = N^T (f - M a_0),        J a_0 + gamma = 0,        a = N v_I' + a_0

    Of velocities that are not rates of coordinates (`System.rate`) some are independent likewise;
    the terms of Boltzmann and Hamel are in `f`.

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
        independent: names (`System.labels`) or indices of the `n-m-r` independent coordinates, or
            of velocities where these are not their rates. `None` chooses them at the start, and
            under `vmap` for each batch member, by column pivoting in the metric of the diagonal of
            the mass matrix (`choose_independent` is the same choice); the state then carries it
            along.
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
            split = self._given(system, t, state.q)
        orientation = orientation_of(velocity_rows(system, t, state.q)[0][:, split.basic])
        return EliminatedState(state.q, state.v[split.free], state.w, orientation, order)

    def recover(self, system, t, y):
        return State(y.q, self._velocity(system, t, y)[0], y.w)

    def rate_and_multipliers(self, system, t, y, u):
        t, split = jnp.asarray(t, y.q.dtype), self.split(system, y)
        v, result = self._velocity(system, t, y)
        d, kernel, basic = evaluate(system, t, y.q, v, y.w, u), result.kernel, split.basic
        a = jnp.zeros_like(v).at[basic].set(jnp.linalg.solve(result.block, -d.gamma))
        projected = kernel.T @ d.mass @ kernel
        rate = solve_positive_definite(projected, kernel.T @ (d.force - d.mass @ a))
        a = kernel @ rate + a
        q_dot = coordinate_rate(system, t, y.q, v + self._return(system, split, t, y.q))
        w_dot = system.actuator_rate(t, y.q, v, y.w, u)
        order = None if y.order is None else jnp.zeros_like(y.order)
        state_rate = EliminatedState(q_dot, rate, w_dot, jnp.zeros_like(y.orientation), order)
        # What of the forces the accelerations leave to the reactions.
        return state_rate, jnp.linalg.solve(d.jac[:, basic].T, (d.force - d.mass @ a)[basic])

    def in_direction(self, sign):
        if self.decay is None or self.sign is sign:
            return self
        return eqx.tree_at(lambda x: x.sign, self, sign)

    def perturbation_matrix(self, system, t, state):
        """`dphi/dt = -decay phi`, shape `(m, m)`; velocities have no violation. `None` without."""
        m, _ = constraint_counts(system, state)
        decay = self.decay
        if decay is None or m == 0:
            return None
        unit = jnp.eye(m, dtype=state.q.dtype)
        return -jax.vmap(lambda e: apply_gain(decay, e), out_axes=1)(unit)

    def split(self, system: System, y) -> Split:
        """Which velocities are independent at a state."""
        if self.independent is not None:
            return self._given(system, jnp.zeros((), y.q.dtype), y.q)
        # Clipped, they are known to be indices: a kernel can compare them with each that may be.
        order = jnp.clip(jnp.round(y.order), 0, y.order.size - 1).astype(int)
        return Split(order[: y.v.size], order[y.v.size :])

    def _check(self, system, state) -> None:
        m, r = constraint_counts(system, state)
        n, name = state.v.size, type(system).__name__
        if m + r > n:
            kind = _kind(system)
            raise ValueError(f"{m + r} constraints on {n} {kind} cannot be independent.")
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
        split = _split_of_start(self, system, t, state)
        return _why_undetermined(system, t, state.q, split, self._limit(state.q.dtype))

    def _of_stop(self, system, t, y) -> str | None:
        limit = 1e-2 * self._limit(y.q.dtype)
        return _why_undetermined(system, t, y.q, self.split(system, y), limit)

    def _of_run(self, system, ts, ys) -> str | None:
        return _why_close(system, ts, ys.q, jax.vmap(lambda y: self.split(system, y))(ys))

    def _given(self, system, t, q) -> Split:
        rest = at_rest(system, t, q)
        m, r = constraint_counts(system, State(q, rest))
        free = np.asarray(self._indices(system, rest.size, rest.size - m - r), int)
        return Split(free, np.setdiff1d(np.arange(rest.size), free))

    def _indices(self, system, n: int, count: int) -> list[int]:
        values, labels = self.independent or (), velocity_labels(system, n)
        names = ", ".join(labels.coordinate(i) for i in range(n))
        indices = labels.coordinate_indices(values, n, "independent")
        if len(set(indices)) != count or len(indices) != count:
            kind = _kind(system)
            raise ValueError(
                f"independent must name {count} different {kind} of {names} ({n} {kind} "
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
        """Dependent velocities that make the position residuals decay."""
        jac, rate = velocity_rows(system, t, q)
        if self.decay is None:
            return jnp.zeros(jac.shape[1], q.dtype)
        phi = system.position_constraints(t, q)
        decay = -self.sign * apply_gain(self.decay, phi)
        wanted = jnp.zeros_like(rate).at[: phi.size].set(decay)
        back = jnp.linalg.solve(jac[:, split.basic], wanted)
        return jnp.zeros(jac.shape[1], q.dtype).at[split.basic].set(back)


@jit
def _split_of_start(formulation, system, t, state):
    return formulation.split(system, formulation.init(system, t, state))


def _is_not_affine(system, state) -> bool:
    derivative = jax.jacfwd(system.velocity_constraints, argnums=2)
    return depends_on(derivative, 2, jnp.zeros((), state.q.dtype), state.q, state.v)


def choose_independent(system: System, t, q) -> tuple[str, ...]:
    """Names of the independent velocities that determine the others best.

    Column pivoting on the constraint Jacobian with rows of unit length, in the metric of the
    diagonal of the mass matrix: the dependent coordinates are those that the constraints move most
    for their inertia. For use on the host.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.

    Returns:
        Names by `System.labels`: of coordinates, or of velocities where these are not their rates;
        in their order, as `VelocityElimination(independent=…)` takes them.

    Raises:
        ValueError: where the constraints are dependent, so that no choice is good.
    """
    q = jnp.asarray(q, jnp.result_type(q, float))
    t = jnp.asarray(t, q.dtype)
    jac = np.asarray(velocity_rows(system, t, q)[0])
    labels = velocity_labels(system, jac.shape[1])
    result = numerical_rank(jac)
    if result.rank < jac.shape[0]:
        values = ", ".join(f"{x:.3g}" for x in result.singular_values)
        raise ValueError(
            f"the constraints are dependent at t = {float(t):.6g} (singular values [{values}] of "
            f"the rows of J, scaled to unit length; {involved(labels, result)}), so no velocities "
            "can be eliminated there. Where they are so in every position, drop the superfluous "
            "ones or use Multipliers(..., solve=MinimumNormSolve()); at a singular position, use "
            "Multipliers(..., solve=SingularityRobust())."
        )
    return tuple(labels.coordinate(int(i)) for i in best_split(system, t, q).free)


def _why_undetermined(system: System, t, q, split: Split, limit: float) -> str | None:
    """What is wrong with a choice whose `B` has an entry above a limit; else `None`."""
    if not np.isfinite(np.asarray(q)).all():
        return None
    t = jnp.asarray(t, q.dtype)
    jac, kernel = _rows_and_kernel(system, split, t, q)
    labels = velocity_labels(system, jac.shape[1])
    largest = float(jnp.max(jnp.abs(kernel), initial=0.0))
    if largest <= limit:
        return None
    free, basic = (np.asarray(x) for x in split)
    of = "" if has_rate(system) else "of "
    values = np.linalg.svd(_unit_rows(jac)[:, basic], compute_uv=False)
    return (
        f"the independent {_kind(system)} ({_names(labels, free)}) do not determine the velocities "
        f"{of}({_names(labels, basic)}) at t = {float(t):.6g}: the singular values of the "
        f"dependent columns of J, with rows of unit length, are "
        f"[{', '.join(f'{x:.3g}' for x in values)}], and B has entries up to {largest:.3g} "
        f"(allowed {limit:.3g}). {_remedy(system, t, q)}"
    )


def _why_close(system: System, ts, qs, splits: Split) -> str | None:
    """Where a run came close to a singular choice; `None` if it did not.

    The measure is the ratio of the least singular values of `J` and of its dependent columns, rows
    of unit length: how many times closer to singular the choice is than the constraints are. It is
    at most `sqrt(1 + |B|^2)`, the factor from errors of `v_I` to those of `v`.
    """
    jac = np.asarray(_rows_of_run(system, ts, qs))
    good = np.flatnonzero(np.isfinite(jac).all(axis=(1, 2)))
    if good.size == 0 or jac.shape[1] == 0:
        return None
    free, basic = (np.asarray(x)[good] for x in splits)
    rows = _unit_rows(jac[good])
    columns = np.take_along_axis(rows, basic[:, None], axis=2)
    of_all, least = (np.linalg.svd(x, compute_uv=False)[:, -1] for x in (rows, columns))
    ratios = of_all / np.maximum(least, np.finfo(least.dtype).tiny)
    i, labels = int(np.argmax(ratios)), velocity_labels(system, jac.shape[2])
    if ratios[i] <= _CLOSE:
        return None
    t, q = ts[good[i]], qs[good[i]]
    return (
        f"the independent {_kind(system)} ({_names(labels, free[i])}) came close to a singular "
        f"choice at t = {float(t):.6g}: the least singular value of the columns of J that belong "
        f"to ({_names(labels, basic[i])}), with rows of unit length, is {least[i]:.3g}, which is "
        f"{ratios[i]:.3g} times less than that of J. Errors of the independent velocities can "
        f"grow as much in the others, and steps get short. {_remedy(system, t, q)}"
    )


# Compiled: operation by operation the checks on the host would take seconds.
@jit
def _rows_and_kernel(system, split, t, q):
    return velocity_rows(system, t, q)[0], eliminate(system, split, t, q).kernel


@jit
def _rows_of_run(system, ts, qs):
    return jax.vmap(lambda t, q: velocity_rows(system, t, q)[0])(ts, qs)


def _unit_rows(jac) -> np.ndarray:
    """Rows of `J`, scaled to unit length."""
    rows = np.asarray(jac, float)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


def _remedy(system, t, q) -> str:
    """What to use where a choice ends: another one, unless `J` itself loses rank there."""
    result = nearness(system, t, q, at_rest(system, t, q))
    if result.singular:
        return (
            f"J itself is nearly singular there, with the least singular value {result.least:.3g}: "
            f"no choice of independent {_kind(system)} passes that position, nor does NullSpace. "
            "Use Multipliers(..., solve=SingularityRobust())."
        )
    better = ", ".join(repr(k) for k in choose_independent(system, t, q))
    return (
        f"There, use VelocityElimination(independent=({better},)), or NullSpace, which needs no "
        "choice."
    )


def _kind(system) -> str:
    """What there is to choose from."""
    return "velocities" if has_rate(system) else "coordinates"


def _names(labels, indices) -> str:
    return ", ".join(labels.coordinate(int(i)) for i in indices)
