"""Random states about a given one: off the constraints, or on them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxdae.checks import fails
from jaxdae.systems.base import State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.consistent import consistent_state


def perturbed_states(
    state: State,
    key: Array,
    count: int,
    position: Any = 1e-3,
    velocity: Any = 1e-3,
    *,
    system: System | None = None,
    t: float = 0.0,
) -> State:
    """A batch of normally perturbed starts, off the constraints unless a system is given.

    Off the constraints, as they are after round-off, truncation or an imprecise start, they are
    what stabilization has to work on.

    Args:
        state: the start to perturb.
        key: random key.
        count: number of starts.
        position: standard deviation of the coordinates [m or rad], scalar or (n,).
        velocity: standard deviation of the velocities [m/s or rad/s], scalar or (n,).
        system: if given, every start is projected onto its constraints, as `random_starts` does.
        t: time of the projection [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or a perturbed start cannot be projected.
    """
    states = _drawn("perturbed_states", state, key, count, position, velocity)
    return states if system is None else _projected("perturbed_states", system, states, t)


def random_starts(
    system: System,
    state: State,
    key: Array,
    count: int,
    *,
    position: Any,
    velocity: Any,
    t: float = 0.0,
) -> State:
    """A batch of random starts on the constraints, for draws inside of a `Stochastic` objective.

    Coordinates and velocities are normal around a state, independent of each other, and then moved
    to the nearest consistent state in the mass metric, as `consistent_state` does: what is normal
    is the part along the constraints, to first order. Coordinates that are to be spread over all of
    a circle are drawn by angle instead, and given to `jax.vmap` of `consistent_state`.

    Inside of `jax.jit` a start that cannot be projected is NaN, and a run from it fails.

    Args:
        system: whose constraints the starts are on.
        state: the mean, before the projection.
        key: random key.
        count: number of starts.
        position: standard deviation of the coordinates [m or rad], scalar or (n,).
        velocity: standard deviation of the velocities [m/s or rad/s], scalar or (n,).
        t: time of the starts [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or outside of `jax.jit` a start cannot be projected.
    """
    check_instance("system", system, System, "the system that moves, then the state")
    states = _drawn("random_starts", state, key, count, position, velocity)
    return _projected("random_starts", system, states, t)


def _drawn(caller: str, state: State, key: Array, count: int, position, velocity) -> State:
    """Normally perturbed states, not on the constraints."""
    check_instance("state", state, State, "jaxdae.State(q, v)")
    check_key(key)
    if not isinstance(count, int | np.integer):
        raise TypeError(f"{caller}: count is {count!r}, must be an integer.")
    if count < 1:
        raise ValueError(f"{caller}: count is {count}, must be at least 1.")
    first, second = jax.random.split(key)
    shape = (count, *state.q.shape)
    q = state.q + position * jax.random.normal(first, shape, state.q.dtype)
    v = state.v + velocity * jax.random.normal(second, shape, state.v.dtype)
    w = jnp.broadcast_to(state.w, (count, *state.w.shape))
    return jax.vmap(State)(q, v, w)


def _projected(caller: str, system: System, states: State, t) -> State:
    """The nearest states on the constraints, each of them there where the numbers are known."""
    on = jax.vmap(lambda x: consistent_state(system, x.q, x.v, t, w=x.w))(states)
    good = jnp.isfinite(on.q + on.v).all(axis=1)
    if fails(np.all, good):
        raise ValueError(
            f"{caller}: {np.sum(~good)} of {good.size} starts (the first is number "
            f"{np.argmin(good)}) could not be projected onto the constraints; perturb less, or "
            "take `perturbed_states` without `system` to start off the constraints."
        )
    return on


def check_key(key: Any) -> None:
    """Require one random key of JAX, of the new kind or the old."""
    check_instance("key", key, jax.Array | np.ndarray, "jax.random.key(0)")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (key.shape == () if typed else key.dtype == np.uint32 and key.ndim == 1):
        raise TypeError(
            f"key is an array {key.dtype}{list(key.shape)}; give one key, jax.random.key(0)."
        )
