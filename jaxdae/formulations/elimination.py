"""Dependent velocities from independent ones: what the constraints say of velocities."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.compiled import shared
from jaxdae.linalg.columns import split_columns
from jaxdae.reprs import Module
from jaxdae.systems import constraint_residuals, mass_and_jacobian


class Split(NamedTuple):
    """Indices of the independent coordinates `(n-m-r,)`, and of those that depend on them."""

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

    rest = jnp.zeros_like(q)
    return jax.jacfwd(residual)(rest), residual(rest)


@shared
def best_split(system, t, q) -> Split:
    """The split that determines the dependent velocities best, in the metric of the inertia."""
    mass, _ = mass_and_jacobian(system, t, q, jnp.zeros_like(q))
    inertia = jnp.diagonal(mass)
    # A massless coordinate is the best one to depend on the others, whatever its unit.
    least = jnp.finfo(q.dtype).eps * jnp.max(inertia)
    jac, _ = velocity_rows(system, t, q)
    return Split(*split_columns(jac, 1 / jnp.sqrt(jnp.maximum(inertia, least))))


def eliminate(system, split: Split, t, q) -> Elimination:
    """`v = N v_I + b` at given coordinates."""
    free, basic = split
    jac, rate = velocity_rows(system, t, q)
    block = jac[:, basic]
    columns = jnp.concatenate([jac[:, free], rate[:, None]], axis=1)
    solved = jnp.linalg.solve(block, -columns)
    kernel = jnp.zeros((q.size, free.size), q.dtype).at[free, jnp.arange(free.size)].set(1.0)
    kernel = kernel.at[basic].set(solved[:, :-1])
    return Elimination(kernel, jnp.zeros_like(q).at[basic].set(solved[:, -1]), block)


def orientation_of(block):
    """Sign of a determinant; of a singular one zero."""
    return jax.lax.stop_gradient(jnp.linalg.slogdet(jax.lax.stop_gradient(block))[0])
