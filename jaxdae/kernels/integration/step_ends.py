"""Times at which adaptive steps end: samples of a digital controller, jumps of an input."""

from typing import Any

import equinox.internal as eqxi
import jax
import jax.numpy as jnp

from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes


def step_ends(steps, jumps, dtype) -> jax.Array:
    """Times at which steps end as a kernel takes them, from diffrax's two kinds.

    Args:
        steps: times at which a step ends and the next one begins, shape (k,), or `None`.
        jumps: times at which the right-hand side jumps, shape (l,), or `None`: a step ends just
            before, the next begins just after, and neither evaluates it at the jump.
        dtype: of the times.

    Returns:
        For each time, in order, where a step ends and where the next one begins, one after the
        other, shape (2 (k + l),).
    """
    steps, jumps = (jnp.zeros(0) if x is None else jnp.asarray(x) for x in (steps, jumps))
    steps, jumps = steps.astype(dtype), jumps.astype(dtype)
    ends = jnp.concatenate([steps, eqxi.prevbefore(jumps)])
    begins = jnp.concatenate([steps, eqxi.nextafter(jumps)])
    order = jnp.argsort(ends)
    return jnp.stack([ends[order], begins[order]], axis=1).ravel()


def jumps_of(pairs) -> tuple[jax.Array, jax.Array]:
    """The other way round: times at which steps end, and jumps, infinite where there is none.

    Args:
        pairs: what `step_ends` gives, shape (2 m,).

    Returns:
        Both of shape (m,).
    """
    ends, begins = pairs[0::2], pairs[1::2]
    return ends, jnp.where(begins == ends, jnp.inf, eqxi.nextafter(ends))


class StepEnds:
    """The next time at which the step of each lane has to end.

    Args:
        lanes: the builder.
        times: of each member, as `step_ends` gives them.
    """

    def __init__(self, lanes: Lanes, times: Buffer):
        self.lanes, self.times = lanes, times
        self.count = times.size // 2
        self._members, self._next, self._jumped = (lanes.counters() for _ in range(3))

    def load(self, lane, member) -> None:
        """Begin with a member."""
        self.lanes.set_count(member, self._members, lane)
        self.lanes.set_count(0, self._next, lane)

    def proceed(self, t0, end, lane) -> None:
        """From the end of a step go on to where the next one begins.

        Args:
            t0: time that was reached, which is moved beyond a jump.
            end: of the run.
            lane: whose step it was.
        """
        lanes = self.lanes
        lanes.set_count(0, self._jumped, lane)
        with lanes.while_(
            lambda: self._pending(lane) & (self._time(lane, 0) <= lanes.get(t0, lane))
        ):
            with lanes.if_then(self._time(lane, 0).equals(lanes.get(t0, lane))):
                begin, last = self._time(lane, 1), lanes.get(end, lane)
                jumps = begin.differs(lanes.get(t0, lane))
                lanes.set_count(jumps.as_integer(), self._jumped, lane)
                lanes.set((begin < last).choose(begin, last), t0, lane)
            lanes.set_count(lanes.count(self._next, lane) + 1, self._next, lane)

    def limit(self, t0, t1, lane) -> None:
        """Let a step end no later than it has to.

        Args:
            t0: its beginning.
            t1: its end, which is changed.
            lane: whose step it is.
        """
        lanes = self.lanes
        with lanes.if_then(self._pending(lane)):
            latest, wanted = self._time(lane, 0), lanes.get(t1, lane)
            # A step of less than the round-off of its time would end before it begins.
            free = (wanted < latest) & (wanted > lanes.get(t0, lane))
            lanes.set(free.choose(wanted, latest), t1, lane)

    def jumped(self, lane) -> Any:
        """Whether the step of a lane begins just after a jump."""
        return self.lanes.count(self._jumped, lane).differs(0)

    def _pending(self, lane):
        return self.lanes.count(self._next, lane) < self.count

    def _time(self, lane, which: int):
        lanes = self.lanes
        # Behind the last time there is none to read.
        index = lanes.minimum(lanes.count(self._next, lane), self.count - 1)
        return self.times.read(lanes.count(self._members, lane), index * 2 + which)
