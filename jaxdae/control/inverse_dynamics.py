"""Inverse dynamics: the inputs that a wanted motion needs, and a feedforward made of them."""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, where_known
from jaxdae.reprs import Module, shown
from jaxdae.systems import evaluate, State, System


class InverseDynamics(NamedTuple):
    """What a motion needs.

    Args:
        u: inputs, shape `(s,)`.
        multipliers: `lam` of `M a + J^T lam = f`, shape `(m+r,)`.
    """

    u: Float[Array, " s"]
    multipliers: Float[Array, " c"]

    def __repr__(self) -> str:
        return shown(self)


def inverse_dynamics(system: System, t, q, v, a, *, controls: int) -> InverseDynamics:
    r"""Inputs and multipliers of a motion that is given, forces being affine in the inputs.

        [B, -J^T] (u, lam) = M a - f(u = 0),        B = df/du

    There are as many unknowns as equations where each degree of freedom has its input: `s` inputs
    and `m+r` independent constraints for `n` coordinates. Where the inputs lose their hold on the
    motion, as a five-bar's do with its couplers in line, the matrix is singular and nothing finite
    comes out.

    Args:
        system: without actuator states.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.
        a: accelerations, shape `(n,)`.
        controls: number `s` of inputs.

    Returns:
        `InverseDynamics`.

    Raises:
        ValueError: for another number of unknowns than equations; of concrete values, for a motion
            that the constraints do not admit, a singular matrix, forces not affine in the inputs.
    """
    q, v, a = (jnp.asarray(x) for x in (q, v, a))
    zero, none = jnp.zeros(controls, q.dtype), jnp.zeros(0, q.dtype)
    d = evaluate(system, t, q, v, none, zero)
    n, c = len(q), len(d.gamma)
    if n != controls + c:
        raise ValueError(
            f"{type(system).__name__} has {n} equations of motion for {controls} inputs and {c} "
            f"multipliers; inverse dynamics needs as many inputs as degrees of freedom, {n - c}."
        )
    force = lambda u: system.force(t, q, v, none, u)  # noqa: E731
    B = jax.jacfwd(force)(zero)
    x = jnp.linalg.solve(jnp.concatenate([B, -d.jac.T], axis=1), d.mass @ a - d.force)
    result = InverseDynamics(x[:controls], x[controls:])
    _check(type(system).__name__, force, d, a, result)
    return result


@where_known
def _check(name: str, force: Callable, d, a, result: InverseDynamics) -> None:
    """Refuse what satisfies neither the constraints nor the equations of motion."""
    tolerance = float(np.sqrt(np.finfo(np.asarray(a).dtype).eps))
    needed = np.asarray(force(result.u) - force(jnp.zeros_like(result.u)))
    d, a, (_, lam) = jax.tree.map(np.asarray, (d, a, result))
    left = d.jac @ a + d.gamma
    if (np.abs(left) > tolerance * (np.abs(d.jac) @ np.abs(a) + np.abs(d.gamma))).any():
        raise ValueError(
            f"the constraints of {name} do not admit this motion: J a + gamma is "
            f"{np.abs(left).max():.3g} and must vanish; differentiate a motion on the constraints "
            "twice."
        )
    terms = np.stack([d.mass @ a, d.jac.T @ lam, -d.force, -needed])
    left = np.abs(terms.sum(axis=0)).max()
    if not left <= tolerance * np.abs(terms).max():
        raise ValueError(
            f"no inputs give {name} this motion: {left:.3g} is left of M a + J^T lam - f. Either "
            "the inputs lose their hold on it here, at a singular position, or its forces are not "
            "affine in the inputs."
        )


class Feedforward(Module):
    """The inputs of a wanted motion by inverse dynamics, `u0(t)` of `PD` or `StateFeedback`.

    With `static=True` the inputs that would hold the system at rest where it should be: gravity
    compensation at the wanted position, with which a PD law of large enough gains reaches a set
    point asymptotically [Ghorbel2000].

    Args:
        system: what is controlled, as far as the controller knows it; without actuator states.
        motion: `t -> q`, a motion on the constraints; differentiated twice.
        controls: number `s` of inputs.
        static: leaves velocities and accelerations out.

    Raises:
        ValueError: as `inverse_dynamics`, for the motion at `t = 0`.
    """

    takes_rates: ClassVar[bool] = False  # its velocities are rates of coordinates

    system: System
    motion: Callable[..., Float[Array, " n"]]
    controls: int = eqx.field(static=True)
    static: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if are_known(self):
            self(0.0)

    def __call__(self, t) -> Float[Array, " s"]:
        q, v, a = motion_derivatives(self.motion, t)
        if self.static:
            v, a = jnp.zeros_like(v), jnp.zeros_like(a)
        return inverse_dynamics(self.system, t, q, v, a, controls=self.controls).u


class MotionReference(Module):
    """States of a wanted motion, `x0(t)` of `StateFeedback`.

    Args:
        motion: `t -> q`, a motion on the constraints.
    """

    motion: Callable[..., Float[Array, " n"]]

    def __call__(self, t) -> State:
        q, v, _ = motion_derivatives(self.motion, t)
        return State(q, v)


def motion_derivatives(motion: Callable, t):
    """Coordinates, velocities and accelerations of a motion at a time, each of shape `(n,)`.

    Args:
        motion: `t -> q`.
        t: time [s].
    """
    t = jnp.asarray(t, dtype=jnp.result_type(t, float))
    one = jnp.ones_like(t)

    def moving(t):
        return jax.jvp(motion, (t,), (one,))

    (q, v), (_, a) = jax.jvp(moving, (t,), (one,))
    return q, v, a
