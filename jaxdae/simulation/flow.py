"""Short moves along a motion, and how functions of events change along it."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.compiled import jit
from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.events.crossings import Rates
from jaxdae.events.declaration import Event
from jaxdae.simulation.field import field, vector_field

# Of the classical Runge-Kutta method.
_NODES, _WEIGHTS = (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)


# Compiled apart, both are traced once however often a part of a run asks for them.
@jit
def moved(t, y, change, parts) -> Any:
    """The state at a time next to another, by one step of the classical Runge-Kutta method.

    Of a change that is zero it has the derivatives of the flow by that change up to the fourth.

    Args:
        t: time [s].
        y: what is integrated: the formulation's own state, and works or `None`.
        change: of the time [s].
        parts: `(system, formulation, controller)`.
    """

    def stage(carry, numbers):
        slope, total = carry
        node, weight = numbers
        at = jax.tree.map(lambda x, k: x + node * change * k, y, slope)
        slope = vector_field(t + node * change, at, parts)
        return (slope, jax.tree.map(lambda a, k: a + weight * k, total, slope)), None

    zero = jax.tree.map(jnp.zeros_like, y)
    numbers = tuple(jnp.asarray(x, t.dtype) for x in (_NODES, _WEIGHTS))
    (_, total), _ = jax.lax.scan(stage, (zero, zero), numbers)
    return jax.tree.map(lambda x, k: x + change * k, y, total)


@jit
def event_rates(events: tuple[Event, ...], t, y, sign, parts) -> Rates:
    """Functions of events at a state, and their derivatives along the motion.

    Args:
        events: of the run.
        t: time [s].
        y: what is integrated.
        sign: 1 forward in time, -1 backward.
        parts: `(system, formulation, controller)`.
    """
    empty = jnp.zeros(len(events), t.dtype)
    return with_nan_safe_derivative(
        _event_rates, Rates(empty, empty, empty), events, t, y, sign, parts
    )


def _event_rates(events: tuple[Event, ...], t, y, sign, parts) -> Rates:
    system, formulation, _ = parts

    def values(t, y):
        state = formulation.recover(system, t, y[0])
        return jnp.stack([x.value(t, state) for x in events])

    def along(t, y):
        return jax.tree.map(lambda x: sign * x, field(t, y, parts))

    def first(t, y):
        return jax.jvp(values, (t, y), (sign * jnp.ones_like(t), along(t, y)))

    (value, rate), (_, curvature) = jax.jvp(first, (t, y), (sign * jnp.ones_like(t), along(t, y)))
    return Rates(value, rate, curvature)
