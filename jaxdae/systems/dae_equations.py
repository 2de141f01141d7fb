"""Differential-algebraic equations on vectors, with their control input put in."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.interpreters.partial_eval import dce_jaxpr

from jaxdae.reprs import Module
from jaxdae.systems.dae import DAE, declares, is_implicit, Variables


class DAEEquations(Module):
    """The equations of a declaration and a controller; results are vectors of the type of `y`.

    Args:
        dae: the declaration.
        controller: `u = controller(t, y, z)`, or `None`.
    """

    dae: DAE
    controller: Callable | None = None

    @property
    def implicit(self) -> bool:
        """Whether they are declared by `residual`."""
        return is_implicit(self.dae)

    def control(self, t, variables: Variables) -> Any:
        """The control input; of implicit equations rates are not given to the controller."""
        if self.controller is None:
            return None
        return self.controller(t, variables.y, None if self.implicit else variables.z)

    def rate(self, t, variables: Variables):
        """Right-hand side `M y'`, shape `(n,)`."""
        u = self.control(t, variables)
        return _vector(self.dae.rate(t, variables.y, variables.z, u), variables)

    def constraints(self, t, variables: Variables):
        """Residuals of the algebraic equations, shape `(m,)`."""
        u = self.control(t, variables)
        return _vector(self.dae.constraints(t, variables.y, variables.z, u), variables)

    def mass(self, t, variables: Variables):
        """The matrix `M`, shape `(n, n)`, or `None` for the identity."""
        found = self.dae.mass(t, variables.y) if declares(self.dae, "mass") else None
        return None if found is None else jnp.asarray(found).astype(dtype_of(variables))

    def residual(self, t, variables: Variables):
        """Residuals of implicit equations, whose rates are `variables.z`, shape `(n,)`."""
        u = self.control(t, variables)
        return _vector(self.dae.residual(t, variables.y, variables.z, u), variables)

    def explicit_rate(self, t, variables: Variables):
        """`y' = M^-1 rate`, shape `(n,)`."""
        mass, rate = self.mass(t, variables), self.rate(t, variables)
        return rate if mass is None else jnp.linalg.solve(mass, rate)

    def rate_of_constraints(self, t, variables: Variables):
        """`dconstraints/dt` along the motion, of constraints without `z`, shape `(m,)`."""
        y, unravel = ravel_pytree(variables.y)

        def along(t, y):
            return self.constraints(t, variables._replace(y=unravel(y)))

        one = jnp.ones((), jnp.result_type(t))
        return jax.jvp(along, (t, y), (one, self.explicit_rate(t, variables)))[1]

    def index(self, t, variables: Variables) -> int:
        """1, or 2 for constraints that do not depend on `z`; 0 without constraints.

        Read off the program; that ranks are those of this index is not checked here. Of implicit
        equations it is 1.
        """
        if self.implicit:
            return 1
        z, unravel = ravel_pytree(variables.z)
        if z.size == 0:
            return 0
        of_z = lambda z: self.constraints(t, variables._replace(z=unravel(z)))  # noqa: E731
        jaxpr = jax.make_jaxpr(of_z)(z).jaxpr
        return 1 if dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1][0] else 2


def lengths(matrix, axis: int = 1):
    """Lengths of rows or columns, without derivatives; 1 for those that are zero."""
    found = jnp.linalg.norm(jax.lax.stop_gradient(matrix), axis=axis, keepdims=True)
    return jnp.where(found > 0, found, 1.0)


def beside_rates(by_rates):
    """Projection onto what `dresidual/dy'` does not reach, and the scales `(n, 1)` of equations.

    It is applied to scaled equations: those with rates by their derivatives by these.
    """
    columns = lengths(by_rates, 0)
    rows = lengths(by_rates / columns)
    scaled = by_rates / columns / rows
    inverse = jnp.linalg.pinv(scaled, rtol=float(jnp.finfo(by_rates.dtype).eps) ** 0.75)
    return jnp.eye(len(scaled), dtype=scaled.dtype) - scaled @ inverse, rows


def dtype_of(variables: Variables):
    """The floating-point type of variables."""
    return jnp.result_type(*jax.tree.leaves(variables))


def _vector(tree, like: Variables):
    return ravel_pytree(tree)[0].astype(dtype_of(like))
