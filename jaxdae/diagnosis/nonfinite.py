"""Which function of a declaration is not finite where a run ended, in words."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.compiled import jit
from jaxdae.control.base import control_input
from jaxdae.systems import State, System
from jaxdae.systems.dynamics import constraint_residuals, mass_and_jacobian
from jaxdae.systems.kinematics import coordinate_rate

# A step that fails begins where all is finite: moments after it, relative to `1 + |t|` [s].
_AHEAD = (0.0, 1e-12, 1e-9, 1e-6)


def describe_nonfinite(system: System, controller, t, state: State) -> str | None:
    """The first function that is NaN or infinite at a state, or a moment after it.

    Args:
        system: what moved.
        controller: `u = controller(t, q, v, w)`, or `None`.
        t: time [s].
        state: the last state that was reached.

    Returns:
        The function, the entry, its value, the time, and what to look for; `None` if all are
        finite.
    """
    ts = float(t) + np.array(_AHEAD) * (1 + abs(float(t)))
    result = _values(system, controller, jnp.asarray(t), jnp.asarray(ts, state.q.dtype), state)
    for i, time in enumerate(ts):
        # A controller that is not finite makes the force so; JAX has sorted the names.
        for name in sorted(result, key=lambda name: name != "the controller"):
            row = np.asarray(result[name])[i]
            bad = np.flatnonzero(~np.isfinite(row))
            if bad.size:
                owner = "" if name.startswith("the") else f"{type(system).__name__}."
                return (
                    f"{owner}{name} is not finite: entry {bad[0]} is {row[bad[0]]} at "
                    f"t = {time:.6g} s. Look for a division by zero, or a root or logarithm of a "
                    "negative number there; jnp.where does not keep the branch that it leaves out "
                    "from making a derivative NaN."
                )
    return None


@jit
def _values(system, controller, start, ts, state):
    v, w = state.v, state.w
    rate = coordinate_rate(system, start, state.q, v)

    def at(t):
        q = state.q + (t - start) * rate
        u = control_input(controller, t, State(q, v, w))
        mass, jac = mass_and_jacobian(system, t, q, v)
        parts = {
            "the controller": u,
            "force": system.force(t, q, v, w, u),
            "potential_energy (its slope)": jax.grad(system.potential_energy, argnums=1)(t, q),
            "dissipation (its slope)": jax.grad(system.dissipation, argnums=2)(t, q, v),
            "kinetic_energy (its slopes)": (
                mass,
                jax.grad(system.kinetic_energy, argnums=(1, 2))(t, q, v),
            ),
            "actuator_rate": system.actuator_rate(t, q, v, w, u),
            "the constraints (their residuals)": constraint_residuals(system, t, q, v),
            "the constraints (their slopes)": jac,
        }
        return {name: ravel_pytree(part)[0] for name, part in parts.items()}

    return jax.vmap(at)(ts)
