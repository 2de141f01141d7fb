"""Accelerations of a run at its rows, by the formulation that made it."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.control.base import control_input
from jaxdae.results import readings

if TYPE_CHECKING:
    from jaxdae.results.trajectory import Trajectory


def accelerations(trajectory: "Trajectory") -> Float[Array, "*batch times n"]:
    """Accelerations at the saved times, shape `(times, n)`; NaN in rows that were not reached.

    They are those of the formulation, `dv/dt` along its own vector field: of penalties with what
    is left of their oscillations.
    """
    return readings.read_rows(trajectory, _acceleration)


def _acceleration(run, t, y):
    u = control_input(run.controller, t, readings.state_of(run, t, y))
    rate = run.formulation.vector_field(run.system, t, y, u)
    velocity = lambda t, y: readings.state_of(run, t, y).v  # noqa: E731
    return jax.jvp(velocity, (t, y), (jnp.ones_like(t), rate))[1]
