"""Events that happened in a run."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxdae.checks import are_known
from jaxdae.events.declaration import precision
from jaxdae.reprs import Module

# Why a run with events ended before its time, other than by its solver or a terminal event.
GOES_ON, TOO_MANY, OFF_CONSTRAINTS, LASTING, NOT_FINITE, ACCUMULATED = range(6)
REASONS = {
    TOO_MANY: "more events than max_events",
    OFF_CONSTRAINTS: "the reset of an event returned a state off the constraints",
    LASTING: "bodies stay in contact behind an impact",
    ACCUMULATED: "events accumulate at a time",
    NOT_FINITE: "the function or the reset of an event is not finite",
}


class Events(Module):
    """Events that happened in a run, in their order; axes of a batch come first.

    There are `max_events` places. Those without an event have `times = inf`, `indices = -1` and NaN
    for the rest.

    Attributes:
        names: of all events of the run, also of those that did not happen.
        times: when [s], shape `(max_events,)`.
        indices: which: places in `names`, shape `(max_events,)`.
        before: states just before, `q (max_events, n)`, `v`, `w`; of a `DAE` `Variables`.
        after: states just behind; the same where the run ended.
        rates: of the function of the event just before it, by time in the direction of integration,
            shape `(max_events,)`.
        curvatures: its second derivatives by time.
        distances: about the time [s] from the event to the zero of its function: round-off, but
            where the function hardly crosses zero. These three have no derivatives.
        together: whether at the same time as the event before, to the tolerance of times.
        unwatched: for each name the first time [s] behind which the function was zero with its
            first two derivatives, so that its sign was not known and no event of it was looked for
            until the next; `inf` where that was nowhere. Shape `(len(names),)`.
        misfit: how far a function was from what steps take it for: within a step from the cubics
            through its neighbours, relative to its largest value there, the largest of the run.
            Crossings are found up to about 1; a sine has 0.2 where a step is a period long, and 2
            where it is two. Shape `()`.
        misfit_index: which function that was, place in `names`.
        misfit_time: where that step began [s].
        ending: a number that says why the run ended early, `REASONS` by number; 0 where it did not.
        culprit: which event did it, place in `names`; -1 for none.
        amount: by how much, as the reason has it.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    times: Float[Array, "*batch events"]
    indices: Int[Array, "*batch events"]
    before: Any
    after: Any
    rates: Float[Array, "*batch events"]
    curvatures: Float[Array, "*batch events"]
    distances: Float[Array, "*batch events"]
    together: Bool[Array, "*batch events"]
    unwatched: Float[Array, "*batch names"]
    misfit: Float[Array, "*batch"]
    misfit_index: Int[Array, "*batch"]
    misfit_time: Float[Array, "*batch"]
    ending: Int[Array, "*batch"]
    culprit: Int[Array, "*batch"]
    amount: Float[Array, "*batch"]

    @property
    def count(self) -> Int[Array, "*batch"]:
        """How many events happened; one number for each batch member."""
        return (self.indices >= 0).sum(axis=-1)

    @property
    def counts(self) -> dict[str, Any]:
        """How many times each event happened, by name."""
        return {name: (self.indices == i).sum(axis=-1) for i, name in enumerate(self.names)}

    def times_of(self, name: str) -> Float[Array, "*batch events"]:
        """Times of one event [s] in their places, `inf` in those of others.

        Args:
            name: of the event.

        Raises:
            KeyError: for a name that no event has, with those that there are.
        """
        return jnp.where(self.indices == self._index(name), self.times, jnp.inf)

    def _index(self, name: str) -> int:
        if name not in self.names:
            raise KeyError(f"no event is named {name!r}; there are {', '.join(self.names)}.")
        return self.names.index(name)

    def __len__(self) -> int:
        if self.indices.ndim != 1 or not are_known(self.indices):
            raise TypeError("only events of a single run outside of jax.jit can be counted so.")
        return int(np.sum(np.asarray(self.indices) >= 0))

    @classmethod
    def empty(cls, names: tuple[str, ...], places: int, state: Any, t) -> "Events":
        """No events yet.

        Args:
            names: of the events.
            places: for so many.
            state: an example.
            t: a time [s], whose precision is taken.
        """
        dtype = precision(state)
        none = jax.tree.map(lambda x: jnp.full((places, *x.shape), jnp.nan, x.dtype), state)
        full = lambda value, *shape: jnp.full(shape, value, dtype)  # noqa: E731
        zero, unknown = jnp.zeros((), int), full(jnp.nan, places)
        return cls(
            names, jnp.full(places, jnp.inf, t.dtype), jnp.full(places, -1), none, none,
            unknown, unknown, unknown, jnp.zeros(places, bool),
            jnp.full(len(names), jnp.inf, t.dtype), jnp.zeros((), t.dtype), zero, t,
            zero, zero - 1, full(0.0),
        )  # fmt: skip
