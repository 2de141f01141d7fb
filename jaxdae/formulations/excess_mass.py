r"""Mass of violations that varies with time, position and velocity.

Excess coordinates `y = phi` have energies `y'^T alpha y' / 2`, `y^T K y / 2` and a dissipation
`y'^T C y' / 2`, whose coefficients depend on `q` and `v` in general [MukharlyamovDeressa2015,
eqs. 24, 25]. Lagrange's equations of the first with `alpha(t, q)` are

    J^T (alpha y'' + alpha' y') - d/dq (y'^T alpha y') / 2,        alpha' = d alpha/dt along q'

of which this library takes `J^T (alpha y'' + alpha' y' / 2)`: the rest,
`J^T alpha' y' / 2 - d/dq (y'^T alpha y') / 2`, has no power for an `alpha(q)`, is of second order
in the violation and does not act on the constraint functions alone, so that no multipliers could
stand for it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.formulations.gains import check_size, definite
from jaxdae.formulations.stabilization import AbstractStabilization
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.systems import State, System
from jaxdae.systems.calls import call_with_shapes, check_parameters, check_real, describe_shape
from jaxdae.systems.kinematics import along_motion, coordinate_rate

_NAMES = ("t", "q", "v")


def mass_and_change(alpha: Callable, system: System, t, state: State) -> tuple[Any, Any]:
    """`alpha(t, q, v)` and its rate along a motion with `v` held, of equal shapes.

    NaN where it is not positive definite: beside a large mass of the system a negative one of the
    violation would go unseen.
    """
    t, v = jnp.asarray(t, state.q.dtype), state.v

    def value(t, q):
        return jnp.asarray(alpha(t, q, v), state.q.dtype)

    mass, change = jax.jvp(value, (t, state.q), along_motion(system, t, state.q, v))
    return jnp.where(_is_positive(jax.lax.stop_gradient(mass)), mass, jnp.nan), change


def _is_positive(mass):
    if mass.ndim < 2:
        return jnp.all(mass > 0)
    # NaN where a pivot is not positive.
    return jnp.all(jnp.isfinite(solve_positive_definite(mass, jnp.ones_like(mass[0]))))


def check_mass_function(alpha: Callable, state: State, count: int) -> None:
    """A function of `(t, q, v)` whose value fits so many constraints. Computes nothing."""
    if isinstance(alpha, AbstractStabilization):  # in the place of alpha
        check_size("alpha", alpha, count, "constraints")
    check_parameters("alpha", alpha, _NAMES)
    t = jnp.zeros((), state.q.dtype)
    out = call_with_shapes("alpha", alpha, (t, state.q, state.v), _NAMES)
    shape = () if isinstance(out, int | float | complex) else getattr(out, "shape", None)
    if shape not in {(), (count,), (count, count)}:
        raise ValueError(
            f"alpha returned {describe_shape(out)}, which does not fit {count} constraints; it "
            f"must return a scalar, a vector of {count}, or a {count} x {count} matrix."
        )
    check_real("alpha", out, differentiated=False)


def why_not_positive(alpha: Callable, system: System, t, state: State) -> str | None:
    """Why a mass is none at a state, in words; `None` where it is positive definite, or traced."""
    if not are_known(t, state):
        return None
    with jax.core.eval_context():  # pyright: ignore[reportAttributeAccessIssue]
        t_array: Any = jnp.asarray(t, state.q.dtype)
        value = np.asarray(_value(alpha, t_array, state.q, state.v), float)
    words = "give positive numbers or a symmetric positive definite matrix at every state."
    where = f"at t = {float(t):.6g}"
    if not np.isfinite(value).all():
        return f"alpha is not finite {where}: {value}; {words}"
    if value.ndim < 2:
        least = value.min(initial=np.inf)
        return None if least > 0 else f"alpha has a value {least:.6g} {where}; {words}"
    skew = np.abs(value - value.T).max(initial=0.0)
    if skew > 1e-5 * np.abs(value).max(initial=0.0):
        return f"alpha is not symmetric {where}: entries differ by up to {skew:.3g}; {words}"
    symmetric = (value + value.T) / 2
    if definite(symmetric):
        return None
    least = np.linalg.eigvalsh(symmetric).min()
    return f"alpha has an eigenvalue {least:.6g} {where}; {words}"


# A step that fails begins where all is well: moments beside it, relative to `1 + |t|` [s].
_BESIDE = (0.0, 1e-12, -1e-12, 1e-9, -1e-9, 1e-6, -1e-6)


def why_it_ends(alpha: Callable, system: System, t, state: State) -> str | None:
    """Why a mass ends where a run stopped, or moments before or behind, in words."""
    if not are_known(t, state):
        return None
    with jax.core.eval_context():  # pyright: ignore[reportAttributeAccessIssue]
        rate = coordinate_rate(system, jnp.asarray(t, state.q.dtype), state.q, state.v)
        for moment in _BESIDE:
            change = moment * (1 + abs(float(t)))
            near = State(state.q + change * rate, state.v, state.w)
            why = why_not_positive(alpha, system, float(t) + change, near)
            if why is not None:
                return why
    return None


@jit
def _value(alpha, t, q, v):
    return alpha(t, q, v)
