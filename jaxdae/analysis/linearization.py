"""Linearization about an equilibrium in redundant coordinates, with inputs and actuator states."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxdae.analysis.equilibria import (
    energy_force,
    Equilibrium,
    independent_rows,
    mass_and_turning,
    remaining_force,
)
from jaxdae.checks import are_known, fails
from jaxdae.compiled import jit
from jaxdae.linalg.rank import numerical_rank
from jaxdae.reprs import Module, shown
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.checks import check_symmetric_mass
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.independence import involved
from jaxdae.systems.kinematics import (
    along_motion,
    at_rest,
    coordinate_rate,
    frame_force,
    has_rate,
    velocities_of,
    velocity_labels,
)
from jaxdae.systems.precision import in_dtype


class Partition(NamedTuple):
    """Which coordinates are independent and which dependent; indices.

    Args:
        independent: `n-m-r` coordinates whose velocities determine all others.
        nonholonomic: `r` coordinates whose velocities the velocity constraints determine.
        holonomic: `m` coordinates that the position constraints determine.
    """

    independent: tuple[int, ...]
    nonholonomic: tuple[int, ...]
    holonomic: tuple[int, ...]

    def __repr__(self) -> str:
        return shown(self)


class Linearization(Module):
    r"""Linear equations of the perturbed motion, `ds/dt = A_full s + B_full du`.

    The redundant state is `s = (x, v_I, dw, z_E, z_D)`: perturbations `x` of the independent
    coordinates, independent velocities, actuator perturbations, and the errors of the dependent
    coordinates,

        q_E = q_E0 + B_E x + z_E,        q_D = q_D0 + B_D x + B_DE z_E + z_D,

    with `v_E = B_E v_I`, `v_D = B_D v_I` the constraints at velocity level. `z_D` has no linear
    rate, so `A_full` has `m` zero rows [Krasinskaya2013, eqs. 15, 16]; the constraints demand
    `z_D = 0`. For velocity constraints that hold at rest (homogeneous ones do) `z_E` has none
    either: `r` zero rows more, and nothing demands `z_E = 0`.

    Where velocities are not rates of coordinates (`System.rate`), as of bodies on balls, changes of
    position are written in the directions of the velocities: `dq = N(t0, q0) dx` with as many `dx`
    as velocities, whose names they have. At rest their rates are the velocities, so that the
    equations are the same.

    Args:
        A: on the constraints, state `(x, v_I, dw, z_E)`, shape `(2(n-m)-r+k, 2(n-m)-r+k)`.
        B: input matrix on the constraints, shape `(2(n-m)-r+k, s)`.
        A_full: on the redundant state, shape `(2n-m-r+k, 2n-m-r+k)`.
        B_full: shape `(2n-m-r+k, s)`.
        positions: `dq = positions @ s`, shape `(n, 2n-m-r+k)`.
        velocities: `v = velocities @ s`, shape `(n, 2n-m-r+k)`.
        drift: rates of `z_E` per state, zero for velocity constraints that hold at rest.
        stiffness: of the conservative forces on the constraints, `N^T (d2W + lam d2f) N`, with
            `W = V - T0`, shape `(n-m, n-m)`.
        damping: `N^T d2D/dv2 N` of the declared dissipation, shape `(n-m-r, n-m-r)`.
        equilibrium: where.
        partition: which coordinates are which.
        conservative: whether all forces are declared by energies and dissipation.
        coordinates: names of the coordinates, or of the velocities where these are not their rates.
        frame: then `N^+`, by which `dx = frame @ dq`, shape `(velocities, n)`; else `None`.
    """

    A: Float[Array, "s s"]
    B: Float[Array, "s i"]
    A_full: Float[Array, "f f"]
    B_full: Float[Array, "f i"]
    positions: Float[Array, "n f"]
    velocities: Float[Array, "n f"]
    drift: Float[Array, "r f"]
    stiffness: Float[Array, "p p"]
    damping: Float[Array, "d d"]
    equilibrium: Equilibrium
    partition: Partition = eqx.field(static=True)
    conservative: bool = eqx.field(static=True)
    coordinates: tuple[str, ...] = eqx.field(static=True)
    frame: Float[Array, "d n"] | None = None

    @property
    def position_constraints(self) -> int:
        """Number `m` of position constraints."""
        return len(self.partition.holonomic)

    @property
    def velocity_constraints(self) -> int:
        """Number `r` of velocity constraints."""
        return len(self.partition.nonholonomic)


def linearize(
    system: System,
    equilibrium: Equilibrium,
    *,
    independent: Sequence[str | int] | None = None,
    controller: Callable | None = None,
) -> Linearization:
    """Linear equations of the perturbed motion about an equilibrium.

    They are those of the ideal constrained motion; no formulation and no stabilization enters.
    Derivatives are exact, by forward differentiation of the accelerations. Of constraints that
    depend on each other around the equilibrium, as many are taken as are independent: `m` and `r`
    count those.

    Args:
        system: the declaration.
        equilibrium: from `jaxdae.analysis.equilibrium`.
        independent: names or indices of the `n-m-r` independent coordinates, or of velocities where
            these are not their rates; by default chosen by pivoting, which needs concrete numbers:
            under `jit` or `vmap` name them.
        controller: `u = controller(t, q, v, w)` closes the loop. `B` is then the effect of an input
            added to it.

    Returns:
        `Linearization`.

    Raises:
        ValueError: for constraints that are dependent there only, coordinates that cannot
            be independent, a controller that does not hold the equilibrium, or a declared mass
            matrix that is not symmetric; with the numbers.
        TypeError: for anything but an equilibrium.
    """
    eq = equilibrium
    check_instance("equilibrium", eq, Equilibrium, "what jaxdae.equilibrium(system, q) found")
    check_symmetric_mass(system, eq.t, State(eq.q, at_rest(system, eq.t, eq.q)))
    # As arrays: numbers of another value would be compiled anew.
    system, controller = in_dtype((system, controller), eq.q.dtype)
    jac = jacobian_at_rest(system, eq)
    m = jax.eval_shape(system.position_constraints, eq.t, eq.q).shape[0]
    if fails(lambda _, jac: numerical_rank(jac).rank == len(jac), (system, eq), jac):
        system, eq = _independent_part(system, eq, m)
        jac = jacobian_at_rest(system, eq)
        m = jax.eval_shape(system.position_constraints, eq.t, eq.q).shape[0]
    partition = choose_partition(system, eq, jac, m, independent)
    _check_controller(system, eq, controller)
    return _linearize(system, eq, controller, partition)


@jit
def jacobian_at_rest(system: System, eq: Equilibrium) -> Float[Array, "c n"]:
    """Constraint Jacobian at an equilibrium, shape `(m+r, n)`, by compiled code."""
    return mass_and_jacobian(system, eq.t, eq.q, at_rest(system, eq.t, eq.q))[1]


def _moved(system: System, eq: Equilibrium, x):
    """Coordinates next to an equilibrium, to first order: `q0 + N(t0, q0) x`."""
    return eq.q + coordinate_rate(system, eq.t, eq.q, x)


def _independent_part(system: System, eq: Equilibrium, m: int) -> tuple[System, Equilibrium]:
    """A system with as many of its constraints as are independent, and the same equilibrium.

    On the constraints its motions are the same, and so are all equations of them. The multipliers
    are others that give the same reaction. Both arguments come back as they are where all `m`
    position constraints and the velocity constraints are independent, or at a singular position.
    """
    state = State(eq.q, at_rest(system, eq.t, eq.q), eq.w)
    rows, regular, jac = map(np.asarray, independent_rows(system, eq.t, state))
    if not regular or rows.all():
        return system, eq
    rows = tuple(np.flatnonzero(rows).tolist())
    kept, reaction = jac[list(rows)], jac.T @ np.asarray(eq.multipliers)
    multipliers = jnp.asarray(np.linalg.lstsq(kept.T, reaction, rcond=None)[0])
    positions = np.array([i for i in rows if i < m], int)
    residual = eq.residual._replace(
        phi=eq.residual.phi[positions], phi_dot=eq.residual.phi_dot[np.array(rows)]
    )
    changed = (multipliers, residual)
    eq = eqx.tree_at(lambda x: (x.multipliers, x.residual), eq, changed)
    made = object.__new__(_part(type(system), rows, m))
    for name, value in vars(system).items():
        object.__setattr__(made, name, value)
    return made, eq


@cache  # programs are known by the class
def _part(kind: type, rows: tuple[int, ...], m: int) -> type:
    positions = np.array([i for i in rows if i < m], int)
    velocities = np.array([i - m for i in rows if i >= m], int)

    class Part(kind):
        """The same system with some of its constraints."""

        def position_constraints(self, t, q):
            return super().position_constraints(t, q)[positions]

        def velocity_constraints(self, t, q, v):
            return super().velocity_constraints(t, q, v)[velocities]

    return Part


def choose_partition(system: System, eq: Equilibrium, jac, m: int, independent=None) -> Partition:
    """Independent and dependent coordinates for a Jacobian, position constraints first."""
    c, n = jac.shape
    labels = velocity_labels(system, n)
    chosen = None
    if independent is not None:
        chosen = labels.coordinate_indices(independent, n, "independent")
        if len(set(chosen)) != n - c:
            raise ValueError(
                f"{len(set(chosen))} independent coordinates were given, {independent}; "
                f"{n} coordinates under {c} constraints have {n - c}."
            )
    if not are_known(jac):
        return _assumed_partition(chosen, m, _similar_jacobian(system, eq))
    jac = np.asarray(jac, np.float64)
    _check_rank(labels, jac)
    dependent = [i for i in range(n) if chosen is None or i not in chosen]
    scaled = jac / np.linalg.norm(jac, axis=1, keepdims=True)
    holonomic, left = _pivots(scaled[:m], dependent)
    rest, _ = _pivots(_without(scaled[m:], scaled[:m], holonomic), sorted(left))
    names = [labels.coordinate(i) for i in dependent]
    if len(holonomic) < m or len(rest) < c - m:
        values = np.linalg.svd(scaled[:, dependent], compute_uv=False)
        raise ValueError(
            f"the constraints do not determine the coordinates {', '.join(names)} by the others: "
            f"their columns of J are singular there (singular values {np.round(values, 9)} of the "
            "unit rows). Choose other independent coordinates, or none."
        )
    independent = tuple(i for i in range(n) if i not in {*holonomic, *rest})
    return Partition(independent, tuple(sorted(rest)), tuple(sorted(holonomic)))


@jit
def _linearize(system, eq, controller, partition) -> Linearization:
    level = _velocity_level(system, eq)
    position_map, velocity_map, rates = _kinematics(level, partition)
    n, d = velocity_map.shape
    r, m, k = len(partition.nonholonomic), len(partition.holonomic), eq.w.size
    rest = at_rest(system, eq.t, eq.q)

    def slope(x):
        return -energy_force(system, eq.t, _moved(system, eq, x), eq.multipliers[:m])

    hessian = jax.jacfwd(slope)(rest)
    free, errors = (jnp.array(x, int) for x in (partition.independent, partition.nonholonomic))
    by_q, by_v, by_w, by_u = _rates(system, eq, controller, level, hessian, free)
    # Columns: x, v_I, dw, z_E, z_D.
    x, z = position_map[:, :d], position_map[:, d:]
    positions = jnp.concatenate([x, jnp.zeros((n, d + k), x.dtype), z], axis=1)
    velocities = jnp.concatenate(
        [jnp.zeros((n, d), x.dtype), velocity_map, jnp.zeros((n, k + r + m), x.dtype)], axis=1
    )
    # A velocity constraint that position perturbations violate at rest moves the coordinates.
    velocities = velocities + rates @ positions
    actuators = (
        jnp.zeros((k, positions.shape[1]), x.dtype)
        .at[:, 2 * d : 2 * d + k]
        .set(jnp.eye(k, dtype=x.dtype))
    )
    dynamic = by_q @ positions + by_v @ velocities + by_w @ actuators
    drift = (rates @ positions)[errors]
    A_full = jnp.concatenate(
        [velocities[free], dynamic, drift, jnp.zeros((m, dynamic.shape[1]), x.dtype)]
    )
    lower = jnp.zeros((r + m, by_u.shape[1]), x.dtype)
    B_full = jnp.concatenate([jnp.zeros((d, by_u.shape[1]), x.dtype), by_u, lower])
    size = A_full.shape[0] - m
    conservative = controller is None and k == 0 and type(system).force is System.force
    return Linearization(
        A=A_full[:size, :size],
        B=B_full[:size],
        A_full=A_full,
        B_full=B_full,
        positions=jax.vmap(lambda x: coordinate_rate(system, eq.t, eq.q, x), 1, 1)(positions),
        velocities=velocities,
        drift=drift,
        stiffness=position_map[:, : d + r].T @ hessian @ position_map[:, : d + r],
        damping=_damping(system, eq, velocity_map),
        equilibrium=eq,
        partition=partition,
        conservative=conservative,
        coordinates=tuple(velocity_labels(system, n).coordinate(i) for i in range(n)),
        frame=_frame(system, eq) if has_rate(system) else None,
    )


class _Level(NamedTuple):
    """Velocity level of the constraints at rest: slopes by `q` and `v`, and their rates in time."""

    by_q: Float[Array, "c n"]
    jac: Float[Array, "c n"]
    by_q_rate: Float[Array, "c n"]
    jac_rate: Float[Array, "c n"]


def _velocity_level(system, eq) -> _Level:
    def level(t, x, v):
        q = _moved(system, eq, x)
        f_dot = jax.jvp(system.position_constraints, (t, q), along_motion(system, t, q, v))[1]
        return jnp.concatenate([f_dot, system.velocity_constraints(t, q, v)])

    rest = at_rest(system, eq.t, eq.q)

    def slopes(t):
        return jax.jacfwd(level, argnums=(1, 2))(t, rest, rest)

    (by_q, jac), rates = jax.jvp(slopes, (eq.t,), (jnp.ones_like(eq.t),))
    return _Level(by_q, jac, *rates)


def _rates(system, eq, controller, level: _Level, hessian, free):
    """Rates of `(v_I, w)` by `q`, `v`, `w` and `u`.

    Nothing accelerates at an equilibrium, so that `M da + J^T dlam = df` and `J da = -dgamma`, with
    the forces differentiated at constant multipliers: no derivative of a mass matrix is needed.
    """
    multipliers = eq.multipliers[eq.residual.phi.size :]
    base = eq.u if controller is None else jnp.zeros_like(_control(system, eq, controller))
    rest, (inputs, unravel) = at_rest(system, eq.t, eq.q), _flat(base)

    def forces(x, v, w, u):
        q, u = _moved(system, eq, x), unravel(u)
        if controller is not None:
            u = controller(eq.t, q, v, w) + u
        force = remaining_force(system, eq.t, q, v, w, u, multipliers)
        if has_rate(system):
            momentum = jax.grad(lambda v: system.kinetic_energy(eq.t, q, v))(v)
            force = force + frame_force(system, eq.t, q, v, momentum)
        return force, system.actuator_rate(eq.t, q, v, w, u)

    mass, turning = mass_and_turning(system, eq.t, eq.q)
    at = (rest, rest, eq.w, inputs)
    by_force, by_actuator = jax.jacfwd(forces, argnums=(0, 1, 2, 3))(*at)
    by_force = (by_force[0] - hessian, by_force[1] + turning, *by_force[2:])
    nothing = (jnp.zeros((len(level.jac), x.size), x.dtype) for x in at[2:])
    by_gamma = (level.by_q_rate, level.by_q + level.jac_rate, *nothing)
    columns = np.cumsum([x.size for x in at])[:-1]
    force, gamma = (jnp.concatenate(x, axis=1) for x in (by_force, by_gamma))
    acceleration = _saddle_point(mass, level.jac, force, gamma)[free]
    rates = jnp.concatenate([acceleration, jnp.concatenate(by_actuator, axis=1)])
    return jnp.split(rates, columns, axis=1)


def _saddle_point(mass, jac, force, gamma):
    """`a` of `M a + J^T lam = f`, `J a = -gamma`; `M` may be singular off `ker J`."""
    n, c = mass.shape[0], jac.shape[0]
    # Constraints of the size of the inertia keep the matrix well conditioned.
    scale = jnp.sqrt(jnp.sum(mass**2) / jnp.maximum(jnp.sum(jac**2), 1e-30)) if c else 1.0
    jac = scale * jac
    matrix = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c), mass.dtype)]])
    return jnp.linalg.solve(matrix, jnp.concatenate([force, -scale * gamma]))[:n]


def _kinematics(level: _Level, partition):
    """`dq` from `(x, z_E, z_D)`, `v` from `v_I`, and the velocities that `dq` imposes at rest."""
    free, errors, dependent = (jnp.array(part, int) for part in partition)
    jac, m = level.jac, len(partition.holonomic)
    both = jnp.concatenate([errors, dependent])
    eye = jnp.eye(jac.shape[1], dtype=jac.dtype)
    slave = jnp.linalg.solve(jac[:, both], -jac[:, free])
    velocity_map = eye[:, free] + eye[:, both] @ slave
    rates = -eye[:, both] @ jnp.linalg.solve(jac[:, both], level.by_q)
    by_error = jnp.linalg.solve(jac[:m, dependent], -jac[:m, errors])
    error_map = eye[:, errors] + eye[:, dependent] @ by_error
    return (
        jnp.concatenate([velocity_map, error_map, eye[:, dependent]], axis=1),
        velocity_map,
        rates,
    )


def _damping(system, eq, velocity_map):
    hessian = jax.hessian(lambda v: system.dissipation(eq.t, eq.q, v))(at_rest(system, eq.t, eq.q))
    return velocity_map.T @ hessian @ velocity_map


def _flat(u):
    if u is None:
        return jnp.zeros(0), lambda _: None
    return ravel_pytree(u)


def _frame(system, eq):
    """`N^+`: changes of position in the directions of the velocities, from changes of `q`."""
    eye = jnp.eye(eq.q.size, dtype=eq.q.dtype)
    return jax.vmap(lambda e: velocities_of(system, eq.t, eq.q, e), 0, 1)(eye)


def _control(system, eq, controller):
    return controller(eq.t, eq.q, at_rest(system, eq.t, eq.q), eq.w)


def _check_controller(system, eq, controller) -> None:
    if controller is None or eq.u is None:
        return
    wanted, control = (ravel_pytree(x)[0] for x in (eq.u, _control(system, eq, controller)))
    if wanted.shape != control.shape:
        raise ValueError(
            f"the controller returns {control.size} controls, the equilibrium has {wanted.size}."
        )
    error, size = (jnp.max(jnp.abs(x), initial=0.0) for x in (control - wanted, wanted))
    if fails(lambda x, size: x <= np.sqrt(np.finfo(control.dtype).eps) * (1 + size), error, size):
        raise ValueError(
            f"the controller gives u = {control} at the equilibrium, which needs u = {wanted}: "
            f"they differ by {error:.3g}. Add the equilibrium's control, or find the equilibrium "
            "of the closed loop."
        )


def _check_rank(labels, jac) -> None:
    rank = numerical_rank(jac)
    if rank.rank < jac.shape[0]:
        raise ValueError(
            f"the constraints are dependent at the equilibrium: their Jacobian has rank "
            f"{rank.rank} of {jac.shape[0]} ({involved(labels, rank)}; singular values "
            f"{np.array2string(rank.singular_values, precision=3)}). Leave out those that repeat "
            "others; at a singular position no linearization exists."
        )


def _similar_jacobian(system: System, eq: Equilibrium) -> np.ndarray:
    """The Jacobian with other numbers, of the same shapes, in place of those that are traced."""
    rng = np.random.default_rng(0)
    number = lambda x: jnp.asarray(rng.uniform(0.4, 1.3, x.shape), x.dtype)  # noqa: E731
    known = lambda x: x if are_known(x) else number(x)  # noqa: E731
    with jax.ensure_compile_time_eval():
        system, t, q = jax.tree.map(known, (system, eq.t, eq.q))
        rest = at_rest(system, t, q)
        return np.asarray(mass_and_jacobian(system, t, q, rest)[1], np.float64)


def _assumed_partition(chosen, m: int, jac: np.ndarray) -> Partition:
    """Where numbers are hidden: dependent ones that position constraints of this kind determine."""
    if chosen is None:
        raise ValueError(
            "independent coordinates are chosen by their numbers, which a transformation hides: "
            "name them, linearize(…, independent=(…)), under jit, vmap and grad."
        )
    n = jac.shape[1]
    dependent = [i for i in range(n) if i not in chosen]
    independent = tuple(i for i in range(n) if i in chosen)
    sizes = np.linalg.norm(jac[:m], axis=1, keepdims=True)
    holonomic, _ = _pivots(jac[:m] / np.where(sizes > 0, sizes, 1.0), dependent)
    if len(holonomic) < m:
        holonomic = dependent[:m]
    rest = tuple(i for i in dependent if i not in holonomic)
    return Partition(independent, rest, tuple(sorted(holonomic)))


def _pivots(rows, candidates):
    """Columns that make `rows` regular, by elimination with full pivoting, and those left over."""
    rows, left, pivots = rows.copy(), list(candidates), []
    for _ in range(rows.shape[0]):
        block = np.abs(rows[:, left])
        i, j = np.unravel_index(np.argmax(block), block.shape) if block.size else (0, 0)
        if not block.size or block[i, j] < 1e-8:
            break
        column = left.pop(j)
        rows = np.delete(rows - np.outer(rows[:, column] / rows[i, column], rows[i]), i, axis=0)
        pivots.append(column)
    return pivots, left


def _without(rows, others, columns):
    """`rows` with `columns` eliminated by `others`."""
    if len(columns) < others.shape[0] or not len(columns):
        return rows
    return rows - rows[:, columns] @ np.linalg.solve(others[:, columns], others)


def drift_rows(lin: Linearization) -> np.ndarray:
    """Combinations of the errors of velocity constraints that move at rest, orthonormal, `(e, r)`.

    Entries of the drift are derivatives. What is not far above the round-off of the largest entry
    of the linearization is no motion.
    """
    drift = np.asarray(lin.drift, np.float64)[:, : lin.A.shape[0]]
    if not drift.size:
        return np.zeros((0, len(drift)))
    left, values, _ = np.linalg.svd(drift)
    scale = np.abs(np.asarray(lin.A)).max(initial=np.finfo(float).tiny)
    rank = int((values > 1e3 * np.finfo(np.asarray(lin.A).dtype).eps * scale).sum())
    return left[:, :rank].T
