r"""The vector field of a run in two parts, for methods that take one of them implicitly.

    dy/dt = E(t, y) + I(t, y)

The implicit part `I` has what makes equations stiff: what the stabilization of the constraints adds
to the accelerations (the law of `RealizingForces`), what `System.stiff_force` does, and the rates
of the coordinates, without which a stiff spring would bound the steps. `E` is the rest. The two add
up to the vector field whatever is declared stiff: what is not, and should be, bounds the steps.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.control.base import control_input
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.simulation.field import field
from jaxdae.systems import System
from jaxdae.systems.wrapped import AbstractWrappedSystem


@jit
def explicit_field(t, y, args):
    """`E`, of the arguments of `vector_field`."""
    return with_nan_safe_derivative(_explicit, y, t, y, args)


@jit
def implicit_field(t, y, args):
    """`I`, of the arguments of `vector_field`."""
    return with_nan_safe_derivative(_implicit, y, t, y, args)


def _explicit(t, y, args):
    inner, _ = y
    system, formulation, controller = args
    u = control_input(controller, t, formulation.recover(system, t, inner))
    left = formulation.without_stiff_part()
    calm = NotStiff(system) if has_stiff_force(system) else system
    rate = (left or formulation).vector_field(calm, t, inner, u)
    if hasattr(rate, "q"):  # states of a user's formulation may have other parts
        rate = eqx.tree_at(lambda x: x.q, rate, jnp.zeros_like(rate.q))
    work = field(t, y, args)[1]
    rate = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, jnp.nan), rate)
    return rate, work


def _implicit(t, y, args):
    (total, _), (explicit, work) = field(t, y, args), _explicit(t, y, args)
    none = jax.tree.map(jnp.zeros_like, work)
    return jax.tree.map(lambda a, b: a - b, total, explicit), none


class NotStiff(AbstractWrappedSystem):
    """A system without its stiff force."""

    def force(self, t, q, v, w, u):
        return self.inner.force(t, q, v, w, u) - self.inner.stiff_force(t, q, v, w, u)

    def actuator_rate(self, t, q, v, w, u):
        return self.inner.actuator_rate(t, q, v, w, u)

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        return self.inner.reaction_dependent_force(t, q, v, w, u, lam)


def has_stiff_force(system: System) -> bool:
    """Whether a system declares one."""
    while isinstance(system, AbstractWrappedSystem):
        system = system.inner
    return type(system).stiff_force is not System.stiff_force


def check_split(name: str, system: System, formulation: AbstractFormulation) -> None:
    """Something that is stiff.

    Args:
        name: of the method.
        system: the declaration.
        formulation: of the run.

    Raises:
        ValueError: where nothing is declared stiff.
    """
    left, kind = formulation.without_stiff_part(), type(formulation).__name__
    if left is None and not has_stiff_force(system):
        raise ValueError(
            f"{name} takes the stiff part of a motion implicitly, and nothing is stiff here: "
            f"{kind} stabilizes nothing, and {type(system).__name__} declares no stiff_force. Use "
            "an explicit method such as diffrax.Dopri8(), declare stiff_force, or take "
            "jaxdae.solvers.Rodas5P(), which is implicit in everything."
        )
