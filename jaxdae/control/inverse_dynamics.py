"""Inverse dynamics: the inputs that a wanted motion needs, and a feedforward made of them."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, fails, where_known
from jaxdae.linalg.held_rank import rank_tolerance, unit_rows
from jaxdae.linalg.rank import numerical_rank
from jaxdae.reprs import Module, shown
from jaxdae.systems import evaluate, State, System
from jaxdae.systems.kinematics import velocities_of

# Of the largest terms of all constraints: those of one may be round-off.
_CANCELLED = 1e-4


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


def inverse_dynamics(system: System, t, q, v, a, *, controls: int | None = None) -> InverseDynamics:
    r"""Inputs and multipliers of a motion that is given, forces being affine in the inputs.

        B u - J^T lam = M a - f(u = 0),        B = df/du

    Where each degree of freedom has its input these are as many equations as unknowns. With more
    inputs than that, or redundant constraints, they leave some open: of all inputs that give the
    motion those of least norm are taken, then the multipliers of least norm (in rows of unit
    length). With fewer inputs only some motions can be had. Where inputs lose their hold on the
    motion, as a five-bar's do with its couplers in line, nothing finite comes out.

    Args:
        system: without actuator states.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities.
        a: accelerations, of the shape of `v`.
        controls: number `s` of inputs; by default that of the names of `System.labels`.

    Returns:
        `InverseDynamics`.

    Raises:
        ValueError: for accelerations of another shape, or no number of inputs; of concrete values,
            for a motion that the constraints do not admit or that no inputs give, with what is
            left, and for forces that are not affine in the inputs. Under `jit` and `vmap` what more
            or fewer inputs than degrees of freedom cannot give is NaN instead.
    """
    q, v, a = (jnp.asarray(x) for x in (q, v, a))
    name = type(system).__name__
    if a.shape != v.shape:
        raise ValueError(f"the accelerations have shape {a.shape} and the velocities {v.shape}.")
    controls = len(system.labels().inputs) if controls is None else controls
    if controls == 0:
        raise ValueError(f"{name} names no inputs; give their number, controls=….")
    zero, none = jnp.zeros(controls, q.dtype), jnp.zeros(0, q.dtype)
    d = evaluate(system, t, q, v, none, zero)
    n, c = v.size, len(d.gamma)
    force = lambda u: system.force(t, q, v, none, u)  # noqa: E731
    B = jax.jacfwd(force)(zero)
    needed = d.mass @ a - d.force
    result = None
    if n == controls + c:
        x = jnp.linalg.solve(jnp.concatenate([B, -d.jac.T], axis=1), needed)
        # Redundant constraints make the matrix singular.
        if not fails(lambda x: np.isfinite(x).all(), x):
            result = InverseDynamics(x[:controls], x[controls:])
    result = _least_norm(B, d.jac, needed) if result is None else result
    _check(system, force, B, d, v, a, result)
    return result


def _least_norm(B, jac, needed) -> InverseDynamics:
    """Inputs of least norm, then multipliers; NaN where there are none."""
    part, rows = rank_tolerance(needed.dtype), jac
    if len(jac):
        rows, scales = unit_rows(jac)
        back = jnp.linalg.pinv(rows, rtol=part)
        free = lambda x: x - back @ (rows @ x)  # noqa: E731
    else:
        scales, back, free = jnp.ones(0, needed.dtype), rows.T, lambda x: x
    u = jnp.linalg.pinv(free(B), rtol=part) @ free(needed)
    lam = scales * (back.T @ (B @ u - needed))
    terms = jnp.abs(B) @ jnp.abs(u) + jnp.abs(jac).T @ jnp.abs(lam) + jnp.abs(needed)
    left = jnp.abs(B @ u - jac.T @ lam - needed)
    good = are_known(left) | (jnp.max(left) <= _tolerance(needed.dtype) * jnp.max(terms))
    return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), InverseDynamics(u, lam))


def _tolerance(dtype) -> float:
    return float(np.sqrt(np.finfo(dtype).eps))


@where_known
def _check(system: System, force: Callable, B, d, v, a, result: InverseDynamics) -> None:
    """Refuse what satisfies neither the constraints nor the equations of motion."""
    name, tolerance = type(system).__name__, _tolerance(np.asarray(a).dtype)
    needed = np.asarray(force(result.u) - force(jnp.zeros_like(result.u)))
    B, d, v, a, (u, lam) = jax.tree.map(np.asarray, (B, d, v, a, result))
    left = d.jac @ a + d.gamma
    terms = np.abs(d.jac) @ np.abs(a) + np.abs(d.gamma)
    # Terms of gamma are of the order of J v^2, and may cancel each other in it.
    inside = _CANCELLED * (terms.max(initial=0.0) + np.abs(d.jac).max(initial=0.0) * (v @ v))
    if (np.abs(left) > tolerance * (terms + inside)).any():
        raise ValueError(
            f"the constraints of {name} do not admit this motion: J a + gamma is "
            f"{np.abs(left).max():.3g} and must vanish; differentiate a motion on the constraints "
            "twice."
        )
    terms = np.stack([d.mass @ a, d.jac.T @ lam, -d.force, -needed])
    left = np.abs(terms.sum(axis=0)).max()
    if left <= tolerance * np.abs(terms).max():
        return
    freedoms, acting = _actuation(B, d.jac)
    if acting < freedoms:
        why = (
            f"It has {freedoms} degrees of freedom here, and its inputs ({u.size}) act on {acting} "
            "of them: add inputs, leave a singular position, or plan a motion that they can give."
        )
    else:
        why = (
            "Either the inputs nearly lose their hold on it here, at a singular position, or its "
            "forces are not affine in the inputs."
        )
    raise ValueError(
        f"no inputs give {name} this motion: {left:.3g} is left of M a + J^T lam - f. {why}"
    )


def _actuation(B: np.ndarray, jac: np.ndarray) -> tuple[int, int]:
    """Degrees of freedom, and on how many of them inputs act."""
    part = rank_tolerance(jac.dtype)
    rank = numerical_rank(jac, part).rank if len(jac) else 0
    both = numerical_rank(np.concatenate([jac, B.T]), part).rank
    return jac.shape[1] - rank, both - rank


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

    system: System
    motion: Callable[..., Float[Array, " n"]]
    controls: int = eqx.field(static=True)
    static: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if are_known(self):
            self(0.0)

    def __call__(self, t) -> Float[Array, " s"]:
        q, v, a = motion_derivatives(self.motion, t, self.system)
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


def motion_derivatives(motion: Callable, t, system: System | None = None):
    """Coordinates, velocities and accelerations of a motion at a time, each of shape `(n,)`.

    Args:
        motion: `t -> q`.
        t: time [s].
        system: whose velocities they are, where these are not rates of coordinates.
    """
    t = jnp.asarray(t, dtype=jnp.result_type(t, float))
    one = jnp.ones_like(t)

    def moving(t):
        q, q_dot = jax.jvp(motion, (t,), (one,))
        return q, q_dot if system is None else velocities_of(system, t, q, q_dot)

    (q, v), (_, a) = jax.jvp(moving, (t,), (one,))
    return q, v, a
