"""Where functions of events cross zero: their signs behind a start, and the first fall of any."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdae.events.declaration import Event
from jaxdae.reprs import Module

# Powers of the round-off: two times this near, relative to 1 + |t|, are one (1e-10 s in double
# precision).
_SAME_TIME = 0.64
# Part of the time until a function that has just left zero is back, in which it is kept above zero
# whatever its round-off.
_LIFTED = 1e-3


def time_tolerance(t):
    """What two times may differ by to be one [s]."""
    return float(jnp.finfo(t.dtype).eps) ** _SAME_TIME * (1 + jnp.abs(t))


class Rates(NamedTuple):
    """Functions of events along a motion, in the direction of integration, each of shape (k,).

    Args:
        value: the functions.
        rate: their first derivatives by time.
        curvature: their second ones.
    """

    value: Any
    rate: Any
    curvature: Any

    @property
    def distance(self):
        """About the time [s] to the nearest zero of each."""
        bent = jnp.sqrt(jnp.abs(self.value * self.curvature))
        slope = jnp.maximum(jnp.abs(self.rate), bent)
        return jnp.abs(self.value) / jnp.where(slope > 0, slope, jnp.finfo(slope.dtype).tiny)


class Signs(NamedTuple):
    """What functions are behind the start of a part of a run, each of shape (k,).

    Args:
        sign: 1 above zero, -1 below.
        zero: whether the function is zero at the start.
        known: false where it is zero with its first two derivatives.
        lift: what keeps a function that leaves zero above it, at the start.
        width: time [s] in which that falls to nothing.
    """

    sign: Any
    zero: Any
    known: Any
    lift: Any
    width: Any


def signs(found: Rates, t, span, crossed) -> Signs:
    """Signs of functions behind a start.

    Args:
        found: functions and their derivatives there.
        t: time [s].
        span: length of the run [s].
        crossed: which are zero but for round-off, as they have just crossed it.
    """
    value, rate, curvature = found
    zero = crossed | (value == 0) | (jnp.abs(value) <= time_tolerance(t) * jnp.abs(rate))
    leaving = jnp.where(rate == 0, jnp.sign(curvature), jnp.sign(rate))
    sign = jnp.where(zero, leaving, jnp.sign(value))
    returns = rate * curvature < 0
    back = jnp.where(returns, -2 * rate / jnp.where(returns, curvature, 1.0), jnp.inf)
    width = _LIFTED * jnp.minimum(back, span)
    height = jnp.abs(rate) * width + 0.5 * jnp.abs(curvature) * width**2
    lift = jnp.where(zero, height + 4 * jnp.abs(value), 0.0)
    known = ~(zero & (leaving == 0))
    tiny = jnp.finfo(value.dtype).tiny
    return Signs(sign, zero, known, jnp.maximum(lift, tiny), jnp.maximum(width, tiny))


class FirstCrossing(Module):
    """The first time at which one of several functions has another sign than behind the start.

    Both backends look for it in every step that is kept, on its dense output, and end there. Its
    functions fall to zero where those of the events cross it, in the direction of integration.
    Functions that leave zero at the start are lifted there, for them to be positive; slopes are
    those without it.

    Args:
        events: of the run.
        sign: of their functions behind the start, zero for those of no sign, shape (k,).
        lift: what keeps a function that leaves zero above it, shape (k,).
        width: time [s] in which that falls to nothing, shape (k,).
        start: time of the start [s].
    """

    events: tuple[Event, ...]
    sign: Any
    lift: Any
    width: Any
    start: Any

    @classmethod
    def behind(cls, events: tuple[Event, ...], found: Signs, start) -> "FirstCrossing":
        """Of functions whose signs are known."""
        sign = jnp.where(found.known, found.sign, 0.0)
        return cls(events, sign, found.lift, found.width, start)

    def values(self, t, y, args) -> Any:
        """Positive from the start to the first crossing, shape (k,).

        Args:
            t: time [s].
            y: the formulation's own state, and works or `None`.
            args: `(system, formulation, controller)`.
        """
        system, formulation, _ = args
        state = formulation.recover(system, t, y[0])
        since = jax.lax.stop_gradient(jnp.abs(t - self.start))
        found = []
        for i, one in enumerate(self.events):
            sign, lift, width = self.sign[i], self.lift[i], self.width[i]
            lifted = sign * one.value(t, state) + lift * jnp.maximum(0.0, 1.0 - since / width)
            found.append(jnp.where(sign == 0, jnp.ones_like(lifted), lifted))
        return jnp.stack(found).astype(jnp.result_type(t))

    def value(self, t, y, args) -> Any:
        """The least of these, a scalar."""
        return jnp.min(self.values(t, y, args))
