"""Projection of the equations of motion on the kernel of the constraint Jacobian."""

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

from jaxdae.formulations.lagrange import AbstractLagrangeFormulation
from jaxdae.formulations.stabilization import Stabilization
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import Capabilities


class NullSpace(AbstractLagrangeFormulation):
    r"""Projection on a basis `N` of `ker J`, without multipliers in the equations of motion.

        N^T M a = N^T f,        J a = s,        s = Phi - gamma

    solved as `a = a_s + N z`, with `J a_s = s` and `N^T M N z = N^T (f - M a_s)`: `n - m - r`
    equations, positive definite if `M` is so on `ker J`. The state is `(q, v, w)`. The multipliers
    are recovered from `J^T lam = f - M a`.

    The acceleration does not depend on the basis, so its derivatives need no smooth choice of one,
    only one that spans `ker J` next to the state too. The orthonormal basis comes from the complete
    factorization `J^T = Q R`, taken as constant and projected on `ker J` with the differentiable
    thin factor: the same numbers, and the derivatives of every order of a basis of `ker J`.

    Args:
        stabilization: as for `Multipliers`.
    """

    stabilization: Stabilization | None = None

    @property
    def capabilities(self):
        return Capabilities(regular_mass=False, stabilization=self.stabilization, plain_state=True)

    def accelerate(self, dynamics, rhs):
        d, (c, n) = dynamics, dynamics.jac.shape
        if c > n:
            raise ValueError(f"{c} constraints on {n} coordinates cannot be independent.")
        if c == 0:
            return solve_positive_definite(d.mass, d.force), rhs
        fixed = jnp.linalg.qr(jax.lax.stop_gradient(d.jac).T, mode="complete")[0][:, c:]
        thin, upper = jnp.linalg.qr(d.jac.T)
        # No row of J = R^T Q^T may lie in the span of those before it, to round-off.
        limit = 8 * n * jnp.finfo(d.jac.dtype).eps * jnp.linalg.norm(d.jac, axis=1)
        independent = jnp.all(jnp.abs(jnp.diagonal(upper)) > limit)
        upper = jnp.where(independent, upper, jnp.nan)
        kernel = fixed - thin @ (thin.T @ fixed)
        particular = thin @ solve_triangular(upper, rhs, trans=1)
        reduced = kernel.T @ d.mass
        force = kernel.T @ d.force - reduced @ particular
        a = particular + kernel @ solve_positive_definite(reduced @ kernel, force)
        return a, solve_triangular(upper, thin.T @ (d.force - d.mass @ a))
