"""Starts of programs that involve actuators: coordinates, velocities and actuator state at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.systems.base import State, System
from jaxdae.systems.calls import call_with_shapes, check_parameters, describe_shape
from jaxdae.systems.dynamics import constraint_residuals, mass_and_jacobian

# psi(t, q, v, w) -> residuals, shape (p,).
ActuatorProgram = Callable[..., Float[Array, " p"]]


def nearest_on_program(nearest, system: System, program: ActuatorProgram, t, state: State, free):
    r"""The state nearest to a given one on the constraints and on `psi(t, q, v, w) = 0`.

    In the metric `|dq|_M^2 + |dv|_M^2 + |dw|^2`: a program couples all three, so that they move
    together.

    `nearest(constraint, metric, x0, free)` is the point of `constraint(x) = 0` nearest to `x0`;
    `free` says which coordinates, at both levels, and actuator states may move, shape `(n + k,)`.
    """
    n, k = state.q.size, state.w.size
    free = jnp.concatenate([free[:n], free])
    mass, _ = mass_and_jacobian(system, t, state.q, state.v)
    weight = jax.scipy.linalg.block_diag(mass, mass, jnp.eye(k, dtype=mass.dtype))

    def constraint(x):
        q, v, w = jnp.split(x, (n, 2 * n))
        residuals = constraint_residuals(system, t, q, v)
        return jnp.concatenate([residuals.phi, residuals.phi_dot, program(t, q, v, w)])

    x0 = jnp.concatenate([state.q, state.v, state.w])
    x = nearest(constraint, weight, x0, free)
    return State(*jnp.split(x, (n, 2 * n)))


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
