"""Batches of starts: normally perturbed, on the constraints or off them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxdae.systems import consistent_state, State, System
from jaxdae.systems.calls import check_instance


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
        system: if given, every start is projected onto its constraints.
        t: time of the projection [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or a perturbed start cannot be projected.
    """
    check_instance("state", state, State, "jaxdae.State(q, v)")
    check_instance("key", key, jax.Array | np.ndarray, "jax.random.key(0)")
    if not isinstance(count, int | np.integer):
        raise TypeError(f"perturbed_states: count is {count!r}, must be an integer.")
    if count < 1:
        raise ValueError(f"perturbed_states: count is {count}, must be at least 1.")
    first, second = jax.random.split(key)
    shape = (count, *state.q.shape)
    q = state.q + position * jax.random.normal(first, shape, state.q.dtype)
    v = state.v + velocity * jax.random.normal(second, shape, state.v.dtype)
    w = jnp.broadcast_to(state.w, (count, *state.w.shape))
    if system is None:
        return jax.vmap(State)(q, v, w)
    states = jax.vmap(lambda q, v, w: consistent_state(system, q, v, t, w=w))(q, v, w)
    if not isinstance(states.q, Tracer):
        _require_projected(np.asarray(states.q + states.v))
    return states


def _require_projected(values: np.ndarray) -> None:
    failed = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if failed.size:
        raise ValueError(
            f"perturbed_states: {failed.size} of {values.shape[0]} starts (the first is number "
            f"{failed[0]}) could not be projected onto the constraints; perturb less, or leave "
            "`system` out to start off the constraints."
        )
