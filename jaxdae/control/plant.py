"""The plant as a first-order flow on the state of a formulation, and derivatives along it."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.compiled import shared
from jaxdae.formulations import AbstractFormulation
from jaxdae.reprs import Module, shown
from jaxdae.systems import State, System

# A program constraint: (t, q, v) -> residuals, shape (r,).
Program = Callable[..., Float[Array, " r"]]


class Plant(Module):
    r"""A system under a formulation, `dx/dt = X(t, x, u)`.

    For formulations on `(q, v, w)` this is `q' = v`, `v' = a(t, q, v, w, u)`,
    `w' = actuator_rate(t, q, v, w, u)` [Mukharlyamov2019, eq. 2.1], the reactions of the plant's
    own constraints included in `a`.

    Args:
        system: the declaration.
        formulation: how its own constraints are enforced.
        controls: number `s` of control inputs.
    """

    system: System
    formulation: AbstractFormulation
    controls: int = eqx.field(static=True)

    def init(self, t, state: State) -> PyTree:
        """The formulation's own state `x`."""
        return self.formulation.init(self.system, t, state)

    @shared
    def rate(self, t, x: PyTree, u: Float[Array, " s"]) -> PyTree:
        """`dx/dt`."""
        return self.formulation.vector_field(self.system, t, x, u)

    @shared
    def residual(self, program: Program, t, x: PyTree) -> Float[Array, " r"]:
        """The program constraints at a state of the formulation, shape `(r,)`."""
        state = self.formulation.recover(self.system, t, x)
        return program(t, state.q, state.v)


class Decoupling(NamedTuple):
    """What the controls do to the program constraints, `y_i^(rho_i) = drift_i + (matrix u)_i`.

    Args:
        y: for each constraint its residual and the derivatives below its relative degree,
            `(f_i, f_i', ..., f_i^(rho_i - 1))`, shape `(rho_i,)`.
        drift: the `rho_i`-th derivatives without control, shape `(r,)`.
        matrix: decoupling matrix, shape `(r, s)`.
    """

    y: tuple[Float[Array, " rho"], ...]
    drift: Float[Array, " r"]
    matrix: Float[Array, "r s"]

    def __repr__(self) -> str:
        return shown(self)


def flow_derivatives(plant: Plant, program: Program, order: int) -> Callable[..., tuple]:
    """`(f, f', ..., f^(order - 1))` of `(t, x)` along the uncontrolled flow, by nested `jvp`."""
    if order == 1:
        return lambda t, x: (plant.residual(program, t, x),)
    lower = flow_derivatives(plant, program, order - 1)

    def levels(t, x):
        none = jnp.zeros((plant.controls,), t.dtype)
        # One more, sharing what it has in common with those below.
        values, rates = jax.jvp(lower, (t, x), (jnp.ones_like(t), plant.rate(t, x, none)))
        return (*values, rates[-1])

    return levels


@shared
def decouple(plant: Plant, program: Program, degrees: tuple[int, ...], t, state) -> Decoupling:
    """Residuals, drift and decoupling matrix at one state, for known relative degrees.

    The plant must be affine in the controls.
    """
    x = plant.init(t, state)
    none = jnp.zeros((plant.controls,), state.q.dtype)
    values, along = jax.linearize(flow_derivatives(plant, program, max(degrees)), t, x)
    rate, push = jax.linearize(lambda u: plant.rate(t, x, u), none)

    def highest(t_dot, x_dot):
        rates = along(t_dot, x_dot)
        return jnp.stack([rates[rho - 1][i] for i, rho in enumerate(degrees)])

    zero = jnp.zeros_like(t)
    columns = jax.vmap(lambda e: highest(zero, push(e)))(jnp.eye(none.size, dtype=none.dtype))
    y = tuple(jnp.stack([values[k][i] for k in range(rho)]) for i, rho in enumerate(degrees))
    return Decoupling(y, highest(jnp.ones_like(t), rate), columns.T)
