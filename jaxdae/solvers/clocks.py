"""Times at which something is done in a run: multiples of a period, or given ones."""

import abc
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae.reprs import Module

# Of the time, in units of its round-off: what two computations of one time may be apart.
_ROUND_OFF = 64


class AbstractClock(Module):
    """Times at which steps end."""

    @abc.abstractmethod
    def is_due(self, t) -> Any:
        """Whether a time [s] is one of them, but for round-off."""

    @abc.abstractmethod
    def following(self, t) -> Any:
        """The next of them behind a time [s] that counts as one itself if it is, but for round-off.

        Infinity where there is none, or where step size controllers are given them all.
        """

    @abc.abstractmethod
    def between(self, t0: float, t1: float) -> np.ndarray:
        """Those from one time to another [s], which are known as they are themselves."""


class Multiples(AbstractClock):
    """Times `k period + delay` with integers `k`.

    Args:
        period: [s].
        delay: [s].
    """

    period: Any
    delay: Any = 0.0

    def is_due(self, t):
        number, period, delay = self._number(t)
        return is_time(t, jnp.round(number) * period + delay, delay)

    def following(self, t):
        number, period, delay = self._number(t)
        behind = jnp.where(self.is_due(t), jnp.round(number), jnp.floor(number)) + 1
        return behind * period + delay

    def between(self, t0, t1):
        period, delay = float(self.period), float(self.delay)
        first, last = np.floor((t0 - delay) / period), np.ceil((t1 - delay) / period)
        return np.arange(first, last + 1) * period + delay

    def _number(self, t):
        """How many periods a time is from zero; period and delay in its precision."""
        period, delay = (jnp.asarray(x, t.dtype) for x in (self.period, self.delay))
        return (t - delay) / period, period, delay


class Listed(AbstractClock):
    """Given times, a delay later.

    Args:
        times: [s], increasing, shape (k,).
        delay: [s].
    """

    times: Any
    delay: Any = 0.0

    def is_due(self, t):
        times, delay = (jnp.asarray(x, t.dtype) for x in (self.times, self.delay))
        return jnp.any(is_time(t, times + delay, delay))

    def following(self, t):
        return jnp.full_like(t, jnp.inf)

    def between(self, t0, t1):
        return np.asarray(self.times, float) + float(self.delay)


def time_tolerance(t, *parts):
    """What two computations of a time [s] from such parts may differ by."""
    size = sum((jnp.abs(x) for x in parts), jnp.abs(t))
    return relative_tolerance(t.dtype) * size


def relative_tolerance(dtype) -> float:
    """The same of a time, as a part of it."""
    return _ROUND_OFF * float(jnp.finfo(dtype).eps)


def is_time(t, other, *parts):
    """Whether a time [s] is another one, but for the round-off of itself and of such parts."""
    return jnp.abs(t - other) <= time_tolerance(t, *parts)


def listed_times(clocks):
    """All times [s] of clocks that are given, or `None`."""
    listed = [x for x in clocks if isinstance(x, Listed)]
    if not listed:
        return None
    times = jnp.sort(jnp.concatenate([jnp.asarray(x.times) + x.delay for x in listed]))
    # One time that two clocks compute differently is one: no step is as short as that.
    again = is_time(times[1:], times[:-1])
    return times.at[1:].set(jnp.where(again, times[:-1], times[1:]))


def step_ends(t0: float, t1: float, dt: float, clocks) -> np.ndarray:
    """Ends of fixed steps, none longer than `dt`, of which some are all times of clocks.

    Between two of these the steps are of one length.

    Args:
        t0: start [s].
        t1: end, behind the start [s].
        dt: step [s].
        clocks: whose times are known.
    """
    times = np.sort(np.concatenate([x.between(t0, t1) for x in clocks]))
    near = _ROUND_OFF * np.finfo(np.float64).eps
    end = near * max(abs(t0), abs(t1))
    times = times[(times > t0 + end) & (times < t1 - end)]
    # One time that two clocks compute differently is one.
    apart = np.diff(times, prepend=-np.inf) > 0.5 * near * np.abs(times)
    ends = np.array([t0, *times[apart], t1])
    counts = np.ceil(np.diff(ends) / dt * (1 - 1e-12)).astype(int)
    pieces = zip(ends[:-1], ends[1:], np.maximum(counts, 1), strict=True)
    parts = [np.linspace(a, b, n, endpoint=False) for a, b, n in pieces]
    return np.concatenate([*parts, ends[-1:]])
