"""Equilibria of constrained systems, with unknown multipliers, actuator states and controls."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxdae.systems import evaluate, State, System
from jaxdae.systems.checks import check_finite, check_system, is_concrete

_MAX_STEPS = 256
# Newton's method on a regular root doubles its digits; from the end of the search this is enough.
_POLISH_STEPS = 3


class EquilibriumError(ValueError):
    """No equilibrium was found."""


class Balance(NamedTuple):
    """What must vanish at an equilibrium.

    Args:
        force: generalized forces less `J^T lam` at rest, shape `(n,)`.
        phi: position constraint residuals, shape `(m,)`.
        phi_dot: velocity-level residuals at rest, shape `(m+r,)`.
        actuator: rates of the actuator state, shape `(k,)`.
    """

    force: Float[Array, " n"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]
    actuator: Float[Array, " k"]


class Equilibrium(eqx.Module):
    """A state of rest.

    Args:
        q: coordinates, shape `(n,)`.
        w: actuator state, shape `(k,)`.
        u: control input that holds it there, or `None`.
        multipliers: `lam` of `J^T lam = f`, shape `(m+r,)`; the reaction is `-J^T lam`.
        residual: what is left of the equations, a `Balance`.
        t: time [s].
    """

    q: Float[Array, " n"]
    w: Float[Array, " k"]
    u: Any
    multipliers: Float[Array, " c"]
    residual: Balance
    t: Float[Array, ""]

    @property
    def state(self) -> State:
        """The state of rest, `State(q, 0, w)`."""
        return State(self.q, jnp.zeros_like(self.q), self.w)


class _Unknowns(NamedTuple):
    q: Any
    w: Any
    u: Any
    multipliers: Any


def equilibrium(
    system: System,
    q,
    w=None,
    u=None,
    *,
    t=0.0,
    free_controls: bool = False,
    fixed: Sequence[str | int] = (),
    tolerance: float | None = None,
) -> Equilibrium:
    r"""The equilibrium near a guess: a state of rest in which all forces balance.

        f(t, q, 0, w, u) = J^T lam,   phi(t, q) = 0,   phi_dot(t, q, 0) = 0,   dw/dt = 0

    in the unknowns `q`, `w`, `lam` and, with `free_controls`, `u` (Shulgin, eq. 12, with the
    multipliers kept). An equilibrium need not be stationary for the potential energy in the
    redundant coordinates. Levenberg-Marquardt steps from the guess, then Newton steps of least
    norm; where equilibria form a family it is a member near the guess, unless `fixed` selects one.
    First derivatives follow from the implicit function theorem.

    Args:
        system: the declaration; at rest it must not depend on time.
        q: guess of the coordinates, shape `(n,)`.
        w: guess of the actuator state, shape `(k,)`.
        u: control input: given, or a guess of it. `None` for a system without inputs.
        t: time [s].
        free_controls: find also the controls, from the guess `u`.
        fixed: names (see `System.labels`) or indices of coordinates to hold at their guess.
        tolerance: largest residual allowed, relative to the size of the forces and coordinates;
            by default the 2/3 power of the machine epsilon.

    Returns:
        `Equilibrium`.

    Raises:
        EquilibriumError: naming the equation that is farthest out of balance, and by how much, or
            the rate at which a system that depends on time leaves the equilibrium. Under `jit` and
            `vmap` the result is NaN instead.
        ValueError: for wrong shapes, unknown names, or numbers that are not finite.
    """
    state = State(q, jnp.zeros_like(jnp.asarray(q)), w)
    dtype = state.q.dtype
    u = None if u is None else jnp.asarray(u, dtype)
    if free_controls and u is None:
        raise ValueError("free_controls=True needs a guess of the controls: give u.")
    t = jnp.asarray(t, dtype)
    check_system(system, state, u)
    if is_concrete(state):
        check_finite(state)
    free = jnp.asarray(_free(system, fixed, state.q.size))
    found, residual, rate = _solve(system, t, state, u, free, free_controls)
    tolerance = float(jnp.finfo(dtype).eps) ** (2 / 3) if tolerance is None else tolerance
    return _require(system, found, residual, rate, t, tolerance, fixed)


def balance(system: System, t, q, w, u, multipliers) -> Balance:
    """What is out of balance at rest in `q`; all zero at an equilibrium.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates, shape `(n,)`.
        w: actuator state, shape `(k,)`.
        u: control input.
        multipliers: `lam`, shape `(m+r,)`.

    Returns:
        `Balance`.
    """
    rest = jnp.zeros_like(q)
    dyn = evaluate(system, t, q, rest, w, u)
    rate = system.actuator_rate(t, q, rest, w, u)
    return Balance(dyn.force - dyn.jac.T @ multipliers, dyn.phi, dyn.phi_dot, rate)


@eqx.filter_jit
def _solve(system, t, state, u, free, free_controls):
    """Unknowns, what is left of the equations, and the rate of that in time."""
    n, k, s = state.q.size, state.w.size, u.size if free_controls else 0
    dyn = evaluate(system, t, state.q, jnp.zeros_like(state.q), state.w, u)
    # Multipliers that balance best: a guess that is an equilibrium is found to be one.
    lam = jnp.linalg.pinv(dyn.jac.T) @ dyn.force

    def unknowns(x):
        q, w, control, multipliers = jnp.split(x, (n, n + k, n + k + s))
        held = jnp.where(free, q, state.q)
        return _Unknowns(held, w, control.reshape(u.shape) if free_controls else u, multipliers)

    def residual(x, system, t):
        return ravel_pytree(balance(system, t, *unknowns(x)))[0]

    control = [jnp.ravel(u)] if free_controls else []
    start = jnp.concatenate([state.q, state.w, *control, lam])
    x = _newton(residual, _search(residual, start, system, t), system, t)
    out = unknowns(x)
    _, rate = jax.jvp(lambda t: residual(x, system, t), (t,), (jnp.ones_like(t),))
    return out, balance(system, t, *out), jnp.max(jnp.abs(rate), initial=0.0)


def _search(residual, x, system, t):
    """Levenberg-Marquardt from the guess; never differentiated."""
    system, t, x = jax.lax.stop_gradient((system, t, x))
    eps = float(jnp.finfo(x.dtype).eps)
    method = optx.LevenbergMarquardt(rtol=eps**0.5, atol=eps**0.5)
    # The method keeps its damping in the default precision and cannot mix two.
    solution = optx.least_squares(
        lambda x, _: residual(x, system, t).astype(x.dtype),
        method,
        x.astype(float),
        max_steps=_MAX_STEPS,
        throw=False,
    )
    return jax.lax.stop_gradient(solution.value).astype(x.dtype)


def _newton(residual, x, system, t):
    """Newton steps of least norm; only the last is differentiated.

    At a root the derivative of one step, `-J^+ dR`, is that of the implicit function theorem.
    """
    plain_system, plain_t = jax.lax.stop_gradient((system, t))
    jacobian = jax.jacfwd(residual)

    def inverse(x):
        rcond = float(jnp.finfo(x.dtype).eps) ** (2 / 3)
        return jnp.linalg.pinv(jacobian(x, plain_system, plain_t), rtol=rcond)

    x = jax.lax.fori_loop(
        0, _POLISH_STEPS, lambda _, x: x - inverse(x) @ residual(x, plain_system, plain_t), x
    )
    x = jax.lax.stop_gradient(x)
    return x - jax.lax.stop_gradient(inverse(x)) @ residual(x, system, t)


def _require(system, found, residual, rate, t, tolerance, fixed) -> Equilibrium:
    """The equilibrium if everything balances; an error, or NaN while tracing, if not."""
    limit = tolerance * (1 + _size(found))
    worst = _size(residual)
    good = (worst <= limit) & (rate <= limit)
    out = Equilibrium(found.q, found.w, found.u, found.multipliers, residual, t)
    if not is_concrete(good):
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), out)
    if not worst <= limit:
        raise EquilibriumError(_message(system, found, residual, limit, fixed))
    if not rate <= limit:
        raise EquilibriumError(
            f"at t = {float(t):.6g} the system balances at q = {np.asarray(found.q)}, but only for "
            f"a moment: the equations of rest change at the rate {float(rate):.3g} per second. An "
            "equilibrium needs constraints and forces that do not depend on time."
        )
    return out


def _size(tree):
    return jnp.max(jnp.abs(ravel_pytree(tree)[0]), initial=0.0)


def _message(system, found, residual, limit, fixed) -> str:
    labels = system.labels()
    names = (
        [f"the force on {labels.coordinate(i)!r}" for i in range(residual.force.size)]
        + [f"constraint {labels.constraint(i)!r}" for i in range(residual.phi.size)]
        + [f"constraint {labels.constraint(i)!r} at rest" for i in range(residual.phi_dot.size)]
        + [f"the rate of actuator state w{i + 1}" for i in range(residual.actuator.size)]
    )
    values = np.abs(np.asarray(ravel_pytree(residual)[0]))
    values = np.where(np.isfinite(values), values, np.inf)
    worst = [f"{names[i]} by {values[i]:.3g}" for i in np.argsort(-values)[:3] if values[i] > limit]
    held = f" with {', '.join(map(str, fixed))} held" if fixed else ""
    return (
        f"no equilibrium was found near the guess{held}; the nearest rest, q = "
        f"{np.asarray(found.q)}, is out of balance: {', '.join(worst)} (allowed {float(limit):.1g})"
        ". Start nearer, hold fewer coordinates, or let the controls be found (free_controls=True)."
    )


def _free(system: System, fixed, n: int) -> np.ndarray:
    labels = system.labels()
    free = np.ones(n, bool)
    for key in fixed:
        index = labels.coordinate_index(key, n) if isinstance(key, str) else int(key)
        if not -n <= index < n:
            raise ValueError(f"fixed coordinate {index} is out of range: there are {n}.")
        free[index] = False
    return free
