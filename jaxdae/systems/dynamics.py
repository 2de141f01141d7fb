"""Everything a formulation needs from a system, by automatic differentiation."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.compiled import shared
from jaxdae.reprs import Module, shown
from jaxdae.systems.base import System
from jaxdae.systems.calls import check_instance, traced_in_words
from jaxdae.systems.checks import check_state
from jaxdae.systems.kinematics import (
    along_motion,
    coordinate_rate,
    frame_force,
    generalized_force,
    has_rate,
)
from jaxdae.systems.precision import as_floats, in_dtype


class Dynamics(Module):
    """The equations of motion of a system at one state.

    `mass @ a + jac.T @ lam = force` and `jac @ a + gamma = d(phi_dot)/dt`.

    Args:
        mass: mass matrix `M`, shape `(n, n)`.
        force: all forces but the constraint reactions, Coriolis terms included, shape `(n,)`; `n`
            stands for the number of velocities, where `System.rate` makes that another one.
        jac: rows `df/dq` of the position, then `dg/dv` of the velocity constraints, `(m+r, n)`.
        gamma: velocity-dependent part of the constraint acceleration, exact, shape `(m+r,)`.
        phi: position constraint residuals, shape `(m,)`.
        phi_dot: velocity-level residuals `(dphi/dt, g)`, shape `(m+r,)`.
    """

    mass: Float[Array, "n n"]
    force: Float[Array, " n"]
    jac: Float[Array, "c n"]
    gamma: Float[Array, " c"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]


class Violation(Module):
    """Constraint residuals at position level, `phi (m,)`, and velocity level, `phi_dot (m+r,)`."""

    phi: Float[Array, "*times m"]
    phi_dot: Float[Array, "*times c"]


class Power(NamedTuple):
    """Rates of change of the generalized energy `h = v . dT/dv - T + V`, by cause [W].

    Along a motion `dh/dt = force + dissipation + constraint + explicit`.
    """

    force: Float[Array, "*times"]
    dissipation: Float[Array, "*times"]
    constraint: Float[Array, "*times"]
    explicit: Float[Array, "*times"]

    def __repr__(self) -> str:
        return shown(self)


def evaluate(system: System, t, q, v, w=None, u=None, lam=None) -> Dynamics:
    r"""Mass matrix, forces and constraint terms of a system at one state.

    Lagrange's equations with multipliers: `M = d2T/dv2` and

        f = dT/dq - d/dt(dT/dv)|_{a=0} - dV/dq - dD/dv + F(t, q, v, w, u).

    `gamma` is the second total derivative of the position constraints, and the first of the
    velocity constraints, along the motion with `a = 0`; both by nested forward differentiation.
    The rows of `J` are `d(phi_dot)/dv`: for velocity constraints that is Chetaev's rule, virtual
    displacements `dq` with `(dg/dv) dq = 0`, whether `g` is affine in `v` or not.

    It is compiled, as by `jax.jit`: of global values that the system's functions read, a change is
    seen after `jax.clear_caches()`.

    Args:
        system: the declaration.
        t: time [s], scalar.
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.
        w: actuator state, shape `(k,)`; `None` for a system without actuators.
        u: control input, any shape the system's `force` and `actuator_rate` expect.
        lam: multipliers, shape `(m+r,)`, for forces that depend on them.

    Returns:
        `Dynamics`.

    Raises:
        TypeError: for what is no system.
        ValueError: for a state that is none; for a system whose forces depend on the multipliers,
            without `lam`; for functions that JAX cannot trace, with the line and the remedy.
    """
    check_instance("system", system, System, "an instance of your jaxdae.System")
    return traced_in_words(type(system).__name__, _evaluate, system, t, q, v, w, u, lam)


def _evaluate(system: System, t, q, v, w, u, lam) -> Dynamics:
    q, v, w = as_floats(q, v, w)
    check_state(system, q, v)
    t = jnp.asarray(t, q.dtype)
    system = in_dtype(system, q.dtype)
    w = jnp.zeros((0,), q.dtype) if w is None else w
    bias = system.bias_force(t, q, v)
    if bias is None:
        mass, inertial = _inertia(system, t, q, v)
        force = inertial + applied_force(system, t, q, v, w, u, lam)
    else:
        mass = _mass(system, t, q, v)
        force = _unbiased_force(system, t, q, v, w, u, lam) - bias
    jac, gamma, phi, phi_dot = _constraints(system, t, q, v)
    return _like(q, Dynamics(mass, force, jac, gamma, phi, phi_dot))


class FreeDynamics(Module):
    """The equations of motion of a system that declares accelerations without constraints.

    `a = free - solve(jac.T @ lam)` and `jac @ a + gamma = d(phi_dot)/dt`.

    Args:
        free: acceleration without constraints.
        solve: the map `b -> x` with `M x = b`.
        jac: as of `Dynamics`.
        gamma: as of `Dynamics`.
        phi: as of `Dynamics`.
        phi_dot: as of `Dynamics`.
    """

    free: Float[Array, " n"]
    solve: Callable
    jac: Float[Array, "c n"]
    gamma: Float[Array, " c"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]


def free_dynamics(system: System, t, q, v, w, u) -> FreeDynamics | None:
    """The equations by the system's own accelerations; `None` where it declares none.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities.
        w: actuator state, shape `(k,)`.
        u: control input.
    """
    q, v, w = as_floats(q, v, w)
    t = jnp.asarray(t, q.dtype)
    system = in_dtype(system, q.dtype)
    declared = system.forward_dynamics(t, q, v, _unbiased_force(system, t, q, v, w, u, None))
    if declared is None:
        return None
    gamma, phi, phi_dot = constraint_bias(system, t, q, v)
    jac = _rows(system, t, q, v, gamma.size) if gamma.size else jnp.zeros((0, v.size), q.dtype)
    values = FreeDynamics(declared.acceleration, declared.solve, jac, gamma, phi, phi_dot)
    return _like(q, values)


def _rows(system: System, t, q, v, count: int):
    """`J` row by row: cheaper than by columns for fewer constraints than velocities."""

    def residuals(v):
        direction = coordinate_rate(system, t, q, v)
        f_dot = jax.jvp(lambda q: system.position_constraints(t, q), (q,), (direction,))[1]
        return jnp.concatenate([f_dot, system.velocity_constraints(t, q, v)])

    back = jax.vjp(residuals, v)[1]
    return jax.vmap(lambda row: back(row)[0])(jnp.eye(count, dtype=q.dtype))


def _like(q, values):
    """Values in the precision of a state: constants of a higher one may stand in a declaration."""
    return jax.tree.map(lambda x: x.astype(q.dtype) if eqx.is_array(x) else x, values)


@shared
def constraint_residuals(system: System, t, q, v) -> Violation:
    """Position- and velocity-level residuals of the constraints.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.

    Returns:
        `Violation(phi (m,), phi_dot (m+r,))`.
    """
    t = jnp.asarray(t, q.dtype)
    phi, phi_dot = jax.jvp(system.position_constraints, (t, q), along_motion(system, t, q, v))
    g = system.velocity_constraints(t, q, v)
    return _like(q, Violation(phi, jnp.concatenate([phi_dot, g])))


@shared
def mass_and_jacobian(system: System, t, q, v) -> tuple[Float[Array, "n n"], Float[Array, "c n"]]:
    """Mass matrix `(n, n)` and constraint Jacobian `(m+r, n)`, for diagnostics."""
    t = jnp.asarray(t, q.dtype)
    return _like(q, (_mass(system, t, q, v), _constraints(system, t, q, v)[0]))


@shared
def momentum(system: System, t, q, v) -> Float[Array, " n"]:
    """Generalized momenta `p = dT/dv`, shape `(n,)`."""
    return jax.grad(system.kinetic_energy, argnums=2)(t, q, v)


@shared
def applied_force(system: System, t, q, v, w, u, lam=None) -> Float[Array, " n"]:
    """Potential, dissipative and other generalized forces, shape `(n,)`."""
    slope = jax.grad(system.potential_energy, argnums=1)(t, q)
    potential = generalized_force(system, t, q, v, slope)
    return _unbiased_force(system, t, q, v, w, u, lam) - potential


def _unbiased_force(system: System, t, q, v, w, u, lam) -> Float[Array, " n"]:
    """Forces that neither inertia nor potential energy have."""
    dissipative = jax.grad(system.dissipation, argnums=2)(t, q, v)
    return other_force(system, t, q, v, w, u, lam) - dissipative


def other_force(system: System, t, q, v, w, u, lam=None) -> Float[Array, " n"]:
    """`force`, and what depends on the multipliers, shape `(n,)`."""
    force = system.force(t, q, v, w, u)
    if lam is None:
        refuse_reaction_forces(system, t, q, v, w, u)
        return force
    more = system.reaction_dependent_force(t, q, v, w, u, lam)
    return force if more is None else force + more


def has_reaction_forces(system: System, t, q, v, w, u) -> bool:
    """Whether forces of the system depend on the multipliers. Computes no values."""
    function = system.reaction_dependent_force
    if getattr(function, "__func__", None) is System.reaction_dependent_force:
        return False
    phi_dot = eqx.filter_eval_shape(constraint_residuals, system, t, q, v).phi_dot
    lam = jnp.zeros(phi_dot.shape, q.dtype)
    return eqx.filter_eval_shape(function, t, q, v, w, u, lam) is not None


def refuse_reaction_forces(system: System, t, q, v, w, u) -> None:
    """Raise `ValueError` where forces depend on the multipliers."""
    if has_reaction_forces(system, t, q, v, w, u):
        raise ValueError(
            f"{type(system).__name__} declares reaction_dependent_force, forces that depend on the "
            "multipliers. Only jaxdae.Multipliers() on independent constraints finds both: take "
            "that one. Dependent constraints leave the multipliers open; other "
            "formulations, equilibria and linearization cannot take such forces."
        )


@shared
def generalized_energy(system: System, t, q, v) -> Float[Array, ""]:
    """Generalized (Jacobi) energy `h = v . dT/dv - T + V` [J].

    It is `T + V` whenever `T` is a quadratic form in `v`.
    """
    t = jnp.asarray(t, q.dtype)
    kinetic, power = jax.jvp(lambda v: system.kinetic_energy(t, q, v), (v,), (v,))
    return power - kinetic + system.potential_energy(t, q)


def power_balance(system: System, t, q, v, w, u, multipliers) -> Power:
    """Power of everything that changes the generalized energy.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.
        w: actuator state, shape `(k,)`.
        u: control input.
        multipliers: `lam`, shape `(m+r,)`; the constraint reaction is `-J^T lam`.

    Returns:
        `Power`: of `force` and of the forces that depend on the multipliers, of `dissipation`, of
        the constraint reactions, and the explicit time dependence `-dL/dt` of the Lagrangian.
    """
    one = jnp.ones_like(t)
    # J v without J: the tangent of the velocity-level residual along v.
    _, jac_v = jax.jvp(lambda v: constraint_residuals(system, t, q, v).phi_dot, (v,), (v,))
    _, dissipated = jax.jvp(lambda v: system.dissipation(t, q, v), (v,), (v,))

    def lagrangian(t):
        return system.kinetic_energy(t, q, v) - system.potential_energy(t, q)

    _, explicit = jax.jvp(lagrangian, (t,), (one,))
    if has_rate(system):  # of rates that depend on time
        explicit = explicit - _of_frame(system, t, q, v) @ v
    force = other_force(system, t, q, v, w, u, multipliers) @ v
    return Power(force, -dissipated, -multipliers @ jac_v, -explicit)


def _kinetic_force(system: System, t, q, v) -> Float[Array, " n"]:
    slope = jax.grad(system.kinetic_energy, argnums=1)(t, q, v)
    return generalized_force(system, t, q, v, slope)


def _mass(system: System, t, q, v):
    declared = system.mass_matrix(t, q)
    return _inertia(system, t, q, v)[0] if declared is None else jnp.asarray(declared, q.dtype)


@shared
def _inertia(system: System, t, q, v):
    """`M`, and the inertial force `dT/dq - d/dt(dT/dv)` at zero acceleration."""
    declared = system.mass_matrix(t, q)
    if declared is not None:
        p_of = jax.grad(system.kinetic_energy, argnums=2)
        dT_dq = _kinetic_force(system, t, q, v)
        _, p_dot = jax.jvp(lambda t, q: p_of(t, q, v), (t, q), along_motion(system, t, q, v))
        return jnp.asarray(declared, q.dtype), dT_dq - p_dot + _of_frame(system, t, q, v)
    times, inertial = inertia_map(system, t, q, v)
    return jax.vmap(times)(_basis(v)), inertial


def inertia_map(
    system: System, t, q, v, lifted: Callable | None = None
) -> tuple[Callable, Float[Array, " n"]]:
    """`M` as the map `e -> M e`, from the energy, and the inertial force `(n,)`.

    `lifted` is that of `frame_force`.
    """
    p_of = jax.grad(system.kinetic_energy, argnums=2)
    dT_dq = _kinetic_force(system, t, q, v)
    # The columns of M and the rate of p along the motion are tangents of one linearization.
    _, tangent = jax.linearize(p_of, t, q, v)
    p_dot = tangent(*along_motion(system, t, q, v), jnp.zeros_like(v))
    inertial = dT_dq - p_dot + _of_frame(system, t, q, v, lifted)
    return lambda e: tangent(jnp.zeros_like(t), jnp.zeros_like(q), e), inertial


def _of_frame(system: System, t, q, v, lifted=None) -> Float[Array, " n"] | float:
    if not has_rate(system):
        return 0.0
    return frame_force(system, t, q, v, momentum(system, t, q, v), lifted)


def position_rate(system: System, t, q, v) -> Float[Array, " m"]:
    """Change of the position constraints in a direction of the velocities, `df/dq dq`."""
    direction = coordinate_rate(system, t, q, v)
    return jax.jvp(lambda q: system.position_constraints(t, q), (q,), (direction,))[1]


@shared
def constraint_bias(system: System, t, q, v):
    """`gamma (m+r,)`, `phi (m,)` and `phi_dot (m+r,)`, position constraints first."""
    motion = along_motion(system, t, q, v)

    def total_rate(t, q):
        return jax.jvp(system.position_constraints, (t, q), along_motion(system, t, q, v))

    (phi, f_dot), (_, gamma_f) = jax.jvp(total_rate, (t, q), motion)
    g, gamma_g = jax.jvp(lambda t, q: system.velocity_constraints(t, q, v), (t, q), motion)
    if g.size == 0:
        return gamma_f, phi, f_dot
    return jnp.concatenate([gamma_f, gamma_g]), phi, jnp.concatenate([f_dot, g])


@shared
def _constraints(system: System, t, q, v):
    """`J`, `gamma`, `phi` and `phi_dot`, position constraints first."""
    gamma, phi, phi_dot = constraint_bias(system, t, q, v)
    jac = jax.vmap(lambda e: position_rate(system, t, q, e), out_axes=1)(_basis(v))
    if gamma.size > phi.size:
        jac_g = jax.jacfwd(system.velocity_constraints, argnums=2)(t, q, v)
        jac = jnp.concatenate([jac, jac_g])
    return jac, gamma, phi, phi_dot


def _basis(v: Float[Array, " n"]) -> Float[Array, "n n"]:
    return jnp.eye(v.size, dtype=v.dtype)
