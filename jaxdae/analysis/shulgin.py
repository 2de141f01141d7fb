r"""Shulgin's characteristic matrix, and when linearizing the constraint first is wrong.

For position constraints, with `v_D = B(q) v_I` and `W = V - T0`, the roots other than the `m` zeros
of the constraints solve [Krasinskaya2013, eq. 17]

    det[ A s^2 + (Gamma + G) s + C1 + C2 B + B^T C3 + B^T C4 B + C_B + P ] = 0.

Where velocities are not rates of coordinates, local coordinates about the equilibrium are, and take
the place of the declared ones.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from jaxdae.analysis.equilibria import Equilibrium
from jaxdae.analysis.linearization import choose_partition, jacobian_at_rest
from jaxdae.compiled import jit
from jaxdae.reprs import Module
from jaxdae.systems import System
from jaxdae.systems.dynamics import other_force
from jaxdae.systems.kinematics import at_rest, has_rate, velocities_of, velocity_labels
from jaxdae.systems.precision import in_dtype


class CharacteristicMatrix(Module):
    """Parts of Shulgin's characteristic matrix; all `(n-m, n-m)` unless stated.

    Args:
        A: mass matrix of `T*(q, v_I) = T(q, v_I, B v_I)`.
        Gamma: symmetric part of the velocity forces (dissipation).
        G: skew part of the velocity forces (gyroscopic).
        C1: `d2W/dq_I dq_I`.
        C2: `d2W/dq_I dq_D`, shape `(n-m, m)`.
        C3: `C2^T`, shape `(m, n-m)`.
        C4: `d2W/dq_D dq_D`, shape `(m, m)`.
        C_B: `dW/dq_D . dB/dq` along the constraints, which a linearized constraint loses.
        P: minus the derivative of the non-potential forces `Q_I + B^T Q_D` along the constraints.
        P_B: the part of `P` from constant forces on dependent coordinates, `-Q_D . dB/dq`, which a
            linearized constraint loses too.
        B: velocities of dependent coordinates, `v_D = B v_I`, shape `(m, n-m)`.
    """

    A: Float[Array, "d d"]
    Gamma: Float[Array, "d d"]
    G: Float[Array, "d d"]
    C1: Float[Array, "d d"]
    C2: Float[Array, "d m"]
    C3: Float[Array, "m d"]
    C4: Float[Array, "m m"]
    C_B: Float[Array, "d d"]
    P: Float[Array, "d d"]
    P_B: Float[Array, "d d"]
    B: Float[Array, "m d"]

    @property
    def stiffness(self) -> Float[Array, "d d"]:
        """`C1 + C2 B + B^T C3 + B^T C4 B + C_B + P`.

        Its determinant negative is enough for instability [Krasinskaya2013, remark 3].
        """
        B = self.B
        return self.C1 + self.C2 @ B + B.T @ self.C3 + B.T @ self.C4 @ B + self.C_B + self.P

    def roots(self, stiffness=None) -> NDArray[np.complex128]:
        """Roots of the characteristic equation, `2(n-m)` of them, by decreasing real part.

        Args:
            stiffness: another stiffness matrix in place of this one's.
        """
        stiffness = self.stiffness if stiffness is None else stiffness
        zero, eye = jnp.zeros_like(self.A), jnp.eye(len(self.A), dtype=self.A.dtype)
        lower = -jnp.linalg.solve(self.A, jnp.concatenate([stiffness, self.Gamma + self.G], 1))
        companion = jnp.concatenate([jnp.concatenate([zero, eye], 1), lower])
        roots = np.asarray(np.linalg.eigvals(np.asarray(companion)), np.complex128)
        return roots[np.lexsort((roots.imag, -roots.real))]


class LinearizedConstraint(Module):
    """What is lost when the constraint is linearized before the equations are formed.

    Args:
        lost_stiffness: `C_B + P_B`, shape `(n-m, n-m)`; it equals `N^T (lam . d2f/dq2) N`, the
            curvature of the constraints weighted by their multipliers.
        C_B: what the potential contributes.
        P_B: what constant non-potential forces on dependent coordinates contribute.
        roots: of the exact equations.
        wrong_roots: of those with the constraint linearized first.
        valid: whether nothing is lost, to round-off.
        reason: in words, with the numbers.
    """

    lost_stiffness: Float[Array, "d d"]
    C_B: Float[Array, "d d"]
    P_B: Float[Array, "d d"]
    roots: NDArray[np.complex128]
    wrong_roots: NDArray[np.complex128]
    valid: bool
    reason: str


def characteristic_matrix(
    system: System, equilibrium: Equilibrium, *, independent=None
) -> CharacteristicMatrix:
    """The parts of Shulgin's characteristic matrix, by automatic differentiation.

    Actuator states are held at their equilibrium values; use `linearize` for the coupled roots.

    Where velocities are not rates of coordinates (`System.rate`), as of bodies on balls, its
    coordinates are local ones, `q = q(x)`: the flow of `dq/ds = N(t0, q) x` from the equilibrium
    for a unit of `s`, for a ball the rotation vector. They have the names of the velocities, which
    are their rates at the equilibrium. By other local coordinates `C1` to `C4` and `C_B` would be
    others, but not their sum `stiffness`, nor `A`, `Gamma`, `G` and the roots.

    Args:
        system: a declaration without velocity constraints.
        equilibrium: from `jaxdae.analysis.equilibrium`.
        independent: names or indices of the `n-m` independent coordinates, or of velocities where
            these are not their rates; by default chosen by pivoting.

    Returns:
        `CharacteristicMatrix`.

    Raises:
        ValueError: for a system with velocity constraints, or as `linearize`.
    """
    # As arrays: numbers of another value would be compiled anew.
    system, eq = in_dtype(system, equilibrium.q.dtype), equilibrium
    rest = at_rest(system, eq.t, eq.q)
    if has_rate(system):
        system, eq = _Local(system, eq.t, eq.q), eqx.tree_at(lambda x: x.q, eq, rest)
    r = jax.eval_shape(system.velocity_constraints, eq.t, eq.q, rest).shape[0]
    if r:
        raise ValueError(
            f"the system has {r} velocity constraints; Shulgin's equations are for position "
            "constraints. Use linearize and spectrum, which treat both."
        )
    jac = jacobian_at_rest(system, eq)
    independents, _, dependent = choose_partition(system, eq, jac, jac.shape[0], independent)
    return _parts(system, eq, independents, dependent)


class _Local(System):
    """A system in local coordinates about a position, whose rates are velocities.

    Args:
        inner: the system.
        t: time of the frame of velocities [s].
        q: the position, where local coordinates are zero.
    """

    inner: System
    t: Float[Array, ""]
    q: Float[Array, " n"]

    def place(self, x):
        """Coordinates at local ones, to second order, which is all that the equations use."""
        rate = partial(self.inner.rate, self.t)
        first = rate(self.q, x)
        second = jax.jvp(lambda q: rate(q, x), (self.q,), (first,))[1]
        return self.q + first + second / 2

    def at(self, t, x, x_dot):
        """`(t, q, v)` of the inner one."""
        q, q_dot = jax.jvp(self.place, (x,), (x_dot,))
        return t, q, velocities_of(self.inner, t, q, q_dot)

    def _transposed(self, t, x, x_dot, force):
        """A force on the velocities as one on the rates of local coordinates."""
        return jax.vjp(lambda x_dot: self.at(t, x, x_dot)[2], x_dot)[1](force)[0]

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(*self.at(t, q, v))

    def potential_energy(self, t, q):
        return self.inner.potential_energy(t, self.place(q))

    def dissipation(self, t, q, v):
        return self.inner.dissipation(*self.at(t, q, v))

    def force(self, t, q, v, w, u):
        return self._transposed(t, q, v, self.inner.force(*self.at(t, q, v), w, u))

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        force = self.inner.reaction_dependent_force(*self.at(t, q, v), w, u, lam)
        return None if force is None else self._transposed(t, q, v, force)

    def position_constraints(self, t, q):
        return self.inner.position_constraints(t, self.place(q))

    def velocity_constraints(self, t, q, v):
        return self.inner.velocity_constraints(*self.at(t, q, v))

    def labels(self):
        return velocity_labels(self.inner, at_rest(self.inner, self.t, self.q).size)


@jit
def _parts(system, eq, independents, dependent) -> CharacteristicMatrix:
    I, D = jnp.array(independents, int), jnp.array(dependent, int)  # noqa: E741
    d = len(independents)

    def slope(q):
        jac = jax.jacfwd(system.position_constraints, argnums=1)(eq.t, q)
        return -jnp.linalg.solve(jac[:, D], jac[:, I])

    B = slope(eq.q)
    N = jnp.zeros((eq.q.size, d), eq.q.dtype).at[I].set(jnp.eye(d, dtype=eq.q.dtype)).at[D].set(B)

    def along(function, order=eq.q):
        """Derivative of a function of `q` along the constraints, independent direction last."""
        return jnp.moveaxis(jax.vmap(lambda e: jax.jvp(function, (order,), (e,))[1])(N.T), 0, -1)

    def kinetic(q, v_own):
        v = jnp.zeros_like(q).at[I].set(v_own).at[D].set(slope(q) @ v_own)
        return system.kinetic_energy(eq.t, q, v)

    def static(q):
        return system.potential_energy(eq.t, q) - system.kinetic_energy(eq.t, q, jnp.zeros_like(q))

    def other(q, v):
        drag = jax.grad(lambda v: system.dissipation(eq.t, q, v))(v)
        return other_force(system, eq.t, q, v, eq.w, eq.u) - drag

    rest, still = jnp.zeros(d, eq.q.dtype), jnp.zeros_like(eq.q)
    W_q, W_qq = jax.grad(static)(eq.q), jax.hessian(static)(eq.q)
    push = other(eq.q, still)
    curvature = along(slope)  # (m, d, d): dB_mu,s / dq along each independent direction
    velocity = -N.T @ jax.jacfwd(lambda v: other(eq.q, v))(still) @ N
    # The momenta of T1 depend on position: d/dt of them less the slope of T1 is a skew matrix.
    turn = along(lambda q: jax.grad(kinetic, argnums=1)(q, rest))
    velocity = velocity + turn - turn.T
    P_B = -jnp.einsum("m,msj->sj", push[D], curvature)
    return CharacteristicMatrix(
        A=jax.hessian(kinetic, argnums=1)(eq.q, rest),
        Gamma=(velocity + velocity.T) / 2,
        G=(velocity - velocity.T) / 2,
        C1=W_qq[I][:, I],
        C2=W_qq[I][:, D],
        C3=W_qq[D][:, I],
        C4=W_qq[D][:, D],
        C_B=jnp.einsum("m,msj->sj", W_q[D], curvature),
        P=P_B - N.T @ along(lambda q: other(q, still)),
        P_B=P_B,
        B=B,
    )


def linearized_constraint(
    system: System, equilibrium: Equilibrium, *, independent=None
) -> LinearizedConstraint:
    """Whether the constraint may be linearized before the equations of motion are formed.

    Eliminating dependent coordinates by the linearized constraint loses `C_B + P_B`. It is right if
    `C_B = 0` and no constant non-potential force acts on a dependent coordinate [Krasinskaya2013,
    remark 6]; exactly, if and only if the sum vanishes. Where velocities are not rates of
    coordinates, this is said of the local coordinates of `characteristic_matrix`.

    Args:
        system: a declaration without velocity constraints.
        equilibrium: from `jaxdae.analysis.equilibrium`.
        independent: see `characteristic_matrix`.

    Returns:
        `LinearizedConstraint`, with the roots both ways.

    Raises:
        ValueError: as `characteristic_matrix`.
    """
    parts = characteristic_matrix(system, equilibrium, independent=independent)
    lost = parts.C_B + parts.P_B
    kept = parts.stiffness - lost
    scale = np.abs(np.asarray(kept)).max(initial=0.0) + np.abs(np.asarray(parts.C_B)).max(initial=0)
    size = np.abs(np.asarray(lost)).max(initial=0.0)
    # Both are sums of second derivatives of order `scale`, accurate to round-off.
    valid = bool(size <= 1e3 * float(jnp.finfo(lost.dtype).eps) * scale)
    roots, wrong = parts.roots(), parts.roots(kept)
    shift = np.abs(roots - wrong).max(initial=0.0)
    reason = (
        "nothing is lost: C_B + P_B vanishes."
        if valid
        else f"linearizing the constraint first loses stiffness up to {size:.6g} (C_B up to "
        f"{np.abs(np.asarray(parts.C_B)).max():.6g}, constant forces on dependent coordinates up "
        f"to {np.abs(np.asarray(parts.P_B)).max():.6g}) and moves roots by up to {shift:.6g}."
    )
    return LinearizedConstraint(lost, parts.C_B, parts.P_B, roots, wrong, valid, reason)
