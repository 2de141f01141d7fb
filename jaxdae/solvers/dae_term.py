"""Differential-algebraic equations that need not be mechanics, as solvers take them."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.linalg.lu import factored
from jaxdae.reprs import Module
from jaxdae.solvers.constrained_term import AbstractConstrainedTerm
from jaxdae.systems.dae import Variables
from jaxdae.systems.dae_equations import DAEEquations


class DAEAt(Module):
    """The equations of a declaration at one time and values of its variables.

    Args:
        equations: of the declaration and its controller.
        t: time [s].
        variables: differential and algebraic ones, or variables and rates.
        in_kernel: whether a kernel traces them, which keeps members of a batch apart itself.
    """

    equations: DAEEquations
    t: Any
    variables: Variables
    in_kernel: bool = eqx.field(static=True, default=False)

    @property
    def index(self) -> int:
        """The index, read off the structure."""
        return self.equations.index(self.t, self.variables)

    def inertia(self):
        """Derivative of `residual` by the change of `y`, `(n, n)`; `None` where it is not known."""
        if self.equations.implicit:
            return None
        mass = self.equations.mass(self.t, self.variables)
        y = ravel_pytree(self.variables.y)[0]
        return jnp.eye(y.size, dtype=y.dtype) if mass is None else mass

    def residual(self, h, change):
        """What is zero in a step of length `h` [s] where `dy/dt = change / h`.

        Semi-explicit `M change - h rate` and the constraints, implicit `h residual`.
        """
        t, variables, equations = self.t, self.variables, self.equations
        if equations.implicit:
            y, unravel = ravel_pytree(variables.y)
            # A step of no length changes nothing.
            length = jnp.where(h == 0, 1.0, h).astype(y.dtype)
            rates = variables._replace(z=unravel(change / length))
            return length * equations.residual(t, rates)
        mass, rate = equations.mass(t, variables), equations.rate(t, variables)
        inertial = change if mass is None else mass @ change
        return jnp.concatenate([inertial - h * rate, equations.constraints(t, variables)])

    def explicit_change(self, h):
        """`h dy/dt`, with the mass matrix put in, and the constraints, of semi-explicit equations.

        What is not finite is NaN, at which steps are refused.
        """
        t, variables, equations = self.t, self.variables, self.equations
        mass, rate = equations.mass(t, variables), equations.rate(t, variables)
        rate = rate if mass is None else factored(mass)(rate)
        found = jnp.concatenate([h * rate, equations.constraints(t, variables)])
        return jnp.where(jnp.isfinite(found), found, jnp.nan)

    def safe(self, function: Callable, *arguments):
        """A method; its derivatives in reverse mode leave failed members of a batch alone."""
        if self.in_kernel:
            return function(self, *arguments)
        shape = eqx.filter_eval_shape(function, self, *arguments)
        return with_nan_safe_derivative(function, shape, self, *arguments)


class DAETerm(AbstractConstrainedTerm):
    r"""Equations declared as `jaxdae.DAE`, where an `ODETerm` has a vector field.

    For `RadauIIA` and, of index 1, `Rodas5P` in `diffrax.diffeqsolve`. States are `(Variables(y,
    z), None)`, with rates in place of `z` where the declaration is a `residual`; arguments `(dae,
    None, controller)`, the last of which may be `None`.

    Args:
        in_kernel: whether a kernel traces it.
    """

    in_kernel: bool = eqx.field(static=True, default=False)

    def vf(self, t, y, args) -> DAEAt:
        """The equations at a time [s] and a state."""
        (variables, _), (dae, _, controller) = y, args
        return DAEAt(DAEEquations(dae, controller), t, Variables(*variables), self.in_kernel)
