"""Short moves along a motion, and how functions of events change along it."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.events.crossings import Rates

# Of the classical Runge-Kutta method.
_NODES, _WEIGHTS = (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)


# Compiled apart, all are traced once however often a part of a run asks for them.
@jit
def slope(motion, t, y) -> Any:
    """The rate of what is integrated; failed members of a batch are left alone.

    Args:
        motion: a problem without a start and times, `motion`.
        t: time [s].
        y: what is integrated.
    """
    return with_nan_safe_derivative(_slope, y, motion, t, y)


def _slope(motion, t, y):
    return motion.slope(t, y)


@jit
def moved(motion, t, y, change) -> Any:
    """The state at a time next to another, by one step of the classical Runge-Kutta method.

    Of a change that is zero it has the derivatives of the flow by that change up to the fourth.

    Args:
        motion: a problem without a start and times, `motion`.
        t: time [s].
        y: what is integrated: the formulation's own state, and works or `None`.
        change: of the time [s].
    """

    def stage(carry, numbers):
        before, total = carry
        node, weight = numbers
        at = jax.tree.map(lambda x, k: x + node * change * k, y, before)
        rate = slope(motion, t + node * change, at)
        return (rate, jax.tree.map(lambda a, k: a + weight * k, total, rate)), None

    zero = jax.tree.map(jnp.zeros_like, y)
    numbers = tuple(jnp.asarray(x, t.dtype) for x in (_NODES, _WEIGHTS))
    (_, total), _ = jax.lax.scan(stage, (zero, zero), numbers)
    return jax.tree.map(lambda x, k: x + change * k, y, total)


@jit
def event_rates(motion, t, y, sign) -> Rates:
    """Functions of events at a state, and their derivatives along the motion.

    Args:
        motion: a problem with events, without a start and times, `motion`.
        t: time [s].
        y: what is integrated.
        sign: 1 forward in time, -1 backward.
    """
    empty = jnp.zeros(len(motion.events), t.dtype)
    return with_nan_safe_derivative(_event_rates, Rates(empty, empty, empty), motion, t, y, sign)


def _event_rates(motion, t, y, sign) -> Rates:
    def values(t, y):
        state = motion.state_of(t, y)
        return jnp.stack([x.value(t, state) for x in motion.events])

    def along(t, y):
        return jax.tree.map(lambda x: sign * x, motion.slope(t, y))

    def first(t, y):
        return jax.jvp(values, (t, y), (sign * jnp.ones_like(t), along(t, y)))

    (value, rate), (_, curvature) = jax.jvp(first, (t, y), (sign * jnp.ones_like(t), along(t, y)))
    return Rates(value, rate, curvature)
