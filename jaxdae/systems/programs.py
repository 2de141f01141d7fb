"""Starts of programs that involve actuators: coordinates, velocities and actuator state at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.systems.base import State, System
from jaxdae.systems.calls import call_with_shapes, check_parameters, describe_shape
from jaxdae.systems.dynamics import constraint_residuals
from jaxdae.systems.kinematics import has_rate, moved

# psi(t, q, v, w) -> residuals, shape (p,).
ActuatorProgram = Callable[..., Float[Array, " p"]]


def with_program(system: System, program: ActuatorProgram, t, state: State, x):
    """Residuals of constraints and program at `x = (q, v, w)`, which a program couples.

    They move together, in the metric `|dq|_M^2 + |dv|_M^2 + |dw|^2` of `metric_of_all`. Where
    velocities are not rates of coordinates the first part is a change of position as these
    describe it, `moved`.
    """
    y = separated(system, t, state, x)
    residuals = constraint_residuals(system, t, y.q, y.v)
    return jnp.concatenate([residuals.phi, residuals.phi_dot, program(t, y.q, y.v, y.w)])


def separated(system: System, t, state: State, x) -> State:
    """Coordinates, velocities and actuator state of what is searched for."""
    n = state.v.size
    q = moved(system, t, state.q, x[:n]) if has_rate(system) else x[:n]
    return State(q, x[n : 2 * n], x[2 * n :])


def metric_of_all(mass: Float[Array, "n n"], k: int) -> Float[Array, "2n+k 2n+k"]:
    """The metric in which coordinates, velocities and `k` actuator states move together."""
    return jax.scipy.linalg.block_diag(mass, mass, jnp.eye(k, dtype=mass.dtype))


def check_program_shape(program: ActuatorProgram, t, state: State) -> None:
    """Raise `ValueError` unless a program returns a vector of residuals."""
    names = ("t", "q", "v", "w")
    check_parameters("the program", program, names)
    values = (jnp.asarray(t, state.q.dtype), state.q, state.v, state.w)
    out = call_with_shapes("the program", program, values, names)
    if len(getattr(out, "shape", ())) != 1:
        raise ValueError(
            f"the program returned {describe_shape(out)}; psi(t, q, v, w) must return its "
            "residuals as a vector: jnp.stack([...])."
        )


def unmet(residual, limit: float) -> str:
    """Which residual of a program is larger than allowed, in words."""
    values = [abs(float(x)) for x in residual]
    i = max(range(len(values)), key=values.__getitem__)
    return (
        f"no state was found on which the program holds: its residual {i + 1} of {len(values)} "
        f"is still {values[i]:.3g} (allowed {limit:.1g}). Start nearer to it, hold fewer "
        "coordinates, or leave out what the actuators cannot meet."
    )
