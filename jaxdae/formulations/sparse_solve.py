"""Multipliers without dense matrices, for systems of many bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.formulations.base import Examination
from jaxdae.formulations.sparsity import compressed, find_sparsity, Sparsity
from jaxdae.linalg.capabilities import Capabilities
from jaxdae.linalg.saddle_point import AbstractSolve
from jaxdae.reprs import Module
from jaxdae.systems import State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import (
    applied_force,
    constraint_bias,
    inertia_map,
    position_rate,
)
from jaxdae.systems.kinematics import refuse_rates
from jaxdae.systems.precision import as_floats, in_dtype


class Entries(Module):
    """The equations of motion of a system at one state, by the entries that may be nonzero.

    Args:
        mass: entries of `M`, in the order of `Sparsity.mass`.
        force: `f`, shape `(n,)`.
        jac: entries of `J`, in the order of `Sparsity.jac`.
        gamma: shape `(m+r,)`.
        phi: shape `(m,)`.
        phi_dot: shape `(m+r,)`.
        pattern: which entries these are.
    """

    mass: Float[Array, " k"]
    force: Float[Array, " n"]
    jac: Float[Array, " l"]
    gamma: Float[Array, " c"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]
    pattern: Sparsity = eqx.field(static=True)


class SparseSolve(AbstractSolve):
    r"""No dense matrices, for many bodies: regular mass matrix, independent constraints.

    The equations of `FullRankSolve()`, to round-off, at a cost linear in the number of bodies for
    chains, trees and closed loops of them; that of `FullRankSolve()` grows with the cube. The
    entries of `M` and `J` that may be nonzero come from few directional derivatives [Curtis1974],
    and `J M^-1 J^T` is eliminated along a tree of blocks. `M` must be block-diagonal, as it is in
    coordinates of each body by itself; a `mass_matrix` that the system declares is not used.

    For `Multipliers(stabilization, SparseSolve())`. Gains that are full matrices are dense.

    Args:
        sparsity: what may be nonzero; found from the declaration where it is not given.
    """

    sparsity: Sparsity | None = eqx.field(static=True, default=None)

    @property
    def capabilities(self):
        obstacle = "SparseSolve() is for more bodies than a kernel can hold entry by entry"
        return Capabilities(arrays=False, obstacle=obstacle)

    @property
    def examination(self):
        return Examination(declaration=self._check, holds=self._holds, start=self._left_out)

    def dynamics(self, evaluate, system, t, y, u, lam):
        del evaluate, lam
        return entries(system, self._pattern(system, y), t, y.q, y.v, y.w, u)

    def accelerate(self, dynamics: Entries, rhs):
        d = dynamics
        return d.pattern.solver.solve(d.mass, d.jac, d.force, rhs)

    def _pattern(self, system, state) -> Sparsity:
        return find_sparsity(system, state) if self.sparsity is None else self.sparsity

    def _check(self, system, state) -> None:
        refuse_rates(system, "SparseSolve()")
        pattern = self._pattern(system, state)
        expected = (sum(constraint_counts(system, state)), state.q.size)
        if pattern.jac_shape != expected:
            raise ValueError(
                f"the sparsity is that of a Jacobian {pattern.jac_shape}; the system has "
                f"{expected[0]} constraints on {expected[1]} coordinates."
            )
        pattern.solver  # noqa: B018  refuses what it cannot solve

    def _holds(self, system, t, state) -> bool:
        # Elimination reveals the rank: a pivot at round-off counts as zero.
        return bool(_is_regular(system, self._pattern(system, state), t, state))

    def _left_out(self, system, t, state) -> str | None:
        """What a declared sparsity misses of a directional derivative beyond round-off."""
        pattern = self._pattern(system, state)
        e = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.0, state.q.size), state.q.dtype)
        products = _products(system, pattern, t, state, e)
        for name, pair in zip(("mass matrix", "Jacobian"), products, strict=True):
            sparse, full = map(np.asarray, pair)
            size = np.abs(full).max(initial=0.0)
            error = np.abs(sparse - full).max(initial=0.0) / max(size, 1e-300)
            if error > 1e3 * np.finfo(sparse.dtype).eps:
                return (
                    f"the declared sparsity leaves out entries of the {name}: it misses "
                    f"{error:.2g} of a derivative along a random direction. Add them, or leave "
                    "sparsity out to have it found."
                )
        return None


def entries(system: System, pattern: Sparsity, t, q, v, w=None, u=None) -> Entries:
    """Entries of mass matrix and Jacobian that may be nonzero, and the forces, as `evaluate` does.

    Args:
        system: the declaration.
        pattern: what may be nonzero.
        t: time [s], scalar.
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.
        w: actuator state, shape `(k,)`; `None` for a system without actuators.
        u: control input.

    Returns:
        `Entries`.
    """
    q, v, w = as_floats(q, v, w)
    t = jnp.asarray(t, q.dtype)
    system = in_dtype(system, q.dtype)
    w = jnp.zeros((0,), q.dtype) if w is None else w
    times, inertial = inertia_map(system, t, q, v)
    mass = _mass(times, pattern, q.dtype)
    force = inertial + applied_force(system, t, q, v, w, u)
    gamma, phi, phi_dot = constraint_bias(system, t, q, v)
    jac = _jacobian(system, pattern, phi.size, t, q, v)
    return Entries(mass, force, jac, gamma, phi, phi_dot, pattern)


def _matrices(system: System, pattern: Sparsity, t, state: State):
    """Entries of `M` and `J` alone, in the precision of the state."""
    q, v = state.q, state.v
    system, t = in_dtype(system, q.dtype), jnp.asarray(t, q.dtype)
    mass = _mass(inertia_map(system, t, q, v)[0], pattern, q.dtype)
    m, _ = constraint_counts(system, state)
    return mass, _jacobian(system, pattern, m, t, q, v)


def _mass(times, pattern: Sparsity, dtype):
    rows, columns = pattern.mass
    return compressed(times, pattern.mass_colors, rows, columns, dtype)


def _jacobian(system: System, pattern: Sparsity, m: int, t, q, v):
    """Entries of `df/dq`, then of `dg/dv`."""
    maps = (
        lambda e: position_rate(system, t, q, e),
        lambda e: jax.jvp(lambda v: system.velocity_constraints(t, q, v), (v,), (e,))[1],
    )
    parts = []
    for tangent, ends in zip(maps, ((0, m), (m, pattern.jac_shape[0])), strict=True):
        rows, columns, colors = pattern.jac_rows(*ends)
        parts.append(compressed(tangent, colors, rows, columns, q.dtype))
    return jnp.concatenate(parts)


@jit
def _is_regular(system: System, pattern: Sparsity, t, state: State):
    """Whether mass matrix and `J M^-1 J^T` are positive definite beyond round-off."""
    mass, jac = _matrices(system, pattern, t, state)
    rhs = jnp.zeros(pattern.jac_shape[0], state.q.dtype)
    a, lam = pattern.solver.solve(mass, jac, jnp.zeros_like(state.q), rhs)
    return jnp.all(jnp.isfinite(a)) & jnp.all(jnp.isfinite(lam))


@jit
def _products(system: System, pattern: Sparsity, t, state: State, e):
    """`M e` and `J e`, each from the entries and as one directional derivative."""
    q, v = state.q, state.v
    mass, jac = _matrices(system, pattern, t, state)
    times, _ = inertia_map(system, t, q, v)
    f = position_rate(system, t, q, e)
    g = jax.jvp(lambda v: system.velocity_constraints(t, q, v), (v,), (e,))[1]
    sparse = [
        jnp.zeros(size, q.dtype).at[rows].add(values * e[columns])
        for size, (rows, columns), values in (
            (q.size, pattern.mass, mass),
            (pattern.jac_shape[0], pattern.jac, jac),
        )
    ]
    return [(sparse[0], times(e)), (sparse[1], jnp.concatenate([f, g]))]
