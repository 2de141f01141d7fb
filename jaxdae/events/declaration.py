"""An event as a user declares it."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.reprs import Module
from jaxdae.systems import State, Variables
from jaxdae.systems.calls import call_with_shapes, check_parameters, check_real

# What functions of events are given of a state, by its kind.
NAMES = ("t", "q", "v", "w")
DAE_NAMES = ("t", "y", "z")


class Event(Module):
    r"""What happens in a run where a function of time and state crosses zero.

    The run goes to the time `t_e` of the crossing, `function(t_e, q, v, w) = 0`. Without a `reset`
    it ends there. With one it goes on from the state that the reset returns,

        (q+, v+, w+) = reset(t_e, q-, v-, w-),

    and derivatives of what follows know that `t_e` moves with what they are by (the saltation
    matrix [AizermanGantmacher1958]; here from the implicit function theorem, to every order).

    In a run of a `DAE` functions are `function(t, y, z)` and `reset(t, y, z)`, which returns
    `(y, z)`, with rates in place of `z` where the declaration is a `residual`. What follows from
    `y` is computed anew behind a reset, as by `consistent_start`; what it returned is where
    Newton's method begins. Values of `y` have to satisfy the constraints by themselves.

    A function that is zero at the start, or after a reset, has to leave zero first: it counts when
    it comes back. "Rise" and "fall" are meant in the direction of integration.

    Args:
        function: `function(t, q, v, w)`, one real number; any callable, an `eqx.Module` or a method
            of one if it has parameters. `w` are the actuator states of the system, followed by
            those of a controller that has some.
        direction: -1 counts where the function falls through zero, 1 where it rises, 0 both.
        reset: `reset(t, q, v, w)` returns `(q, v, w)` behind the event, which must satisfy the
            constraints; `None` ends the run. See `jaxdae.impact` for impacts.
        name: by which results and messages have it; the name of the function by default.

    Raises:
        TypeError: for a function or a reset that cannot be called, or a name that is no text.
        ValueError: for another direction.
    """

    function: Callable
    direction: int = eqx.field(static=True, default=-1)
    reset: Callable | None = None
    name: str = eqx.field(static=True, default="")

    def __init__(
        self,
        function: Callable,
        *,
        direction: int = -1,
        reset: Callable | None = None,
        name: str | None = None,
    ):
        self.function, self.direction, self.reset = function, direction, reset
        self.name = _name_of(function) if name is None else name

    def __check_init__(self):
        for what, value in (("function", self.function), ("reset", self.reset)):
            if what == "reset" and value is None:
                continue
            if isinstance(value, type) or not callable(value):
                raise TypeError(
                    f"the {what} of an event is {value!r}; give a callable of (t, q, v, w), of a "
                    "DAE (t, y, z)."
                )
        if isinstance(self.direction, bool) or self.direction not in (-1, 0, 1):
            raise ValueError(
                f"the direction of an event is {self.direction!r}; give -1 where the function "
                "falls through zero, 1 where it rises, 0 for both."
            )
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"the name of an event is {self.name!r}; give a text.")

    @property
    def one_sided(self) -> bool:
        """Whether the function must not become negative: a gap between bodies."""
        return bool(getattr(self.reset, "one_sided", False))

    def value(self, t, state: State | Variables):
        """The function at a state, in the precision of the state."""
        return jnp.asarray(self.function(t, *entries(state))).astype(precision(state))

    def after(self, t, state: State | Variables) -> Any:
        """The state behind the event; the same where the run ends."""
        if self.reset is None:
            return state
        found, old = self.reset(t, *entries(state)), entries(state)
        new = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), tuple(found), old)
        return type(state)(*new)

    def check(self, t, state: State | Variables, names: tuple[str, ...] = NAMES) -> None:
        """Shapes of what function and reset return.

        Args:
            t: time [s].
            state: an example.
            names: of the arguments.

        Raises:
            ValueError: naming the event, what it returned, and what it must return.
        """
        what = f"the function of the event {self.name!r}"
        arguments = (jnp.asarray(t, precision(state)), *entries(state))
        check_parameters(what, self.function, names)
        out = call_with_shapes(what, self.function, arguments, names)
        shape = getattr(out, "shape", () if isinstance(out, int | float) else None)
        if shape != ():
            found = f"{type(out).__name__}" if shape is None else f"shape {shape}"
            raise ValueError(f"{what} returned {found}; it must return one real number.")
        check_real(what, out, differentiated=True)
        if self.reset is None:
            return
        what = f"the reset of the event {self.name!r}"
        check_parameters(what, self.reset, names)
        out = call_with_shapes(what, self.reset, arguments, names)
        shapes = lambda tree: jax.tree.map(lambda x: getattr(x, "shape", None), tree)  # noqa: E731
        wanted = shapes(arguments[1:])
        found = tuple(out) if isinstance(out, tuple) else None
        if shapes(found) != wanted:
            raise ValueError(
                f"{what} returned {_shapes(out)}; it must return ({', '.join(names[1:])}) of "
                f"shapes {', '.join(map(str, wanted))}."
            )
        for x in jax.tree.leaves(found):
            check_real(what, x, differentiated=True)


def entries(state: State | Variables) -> tuple:
    """What functions of events are given of a state."""
    return tuple(state) if isinstance(state, Variables) else (state.q, state.v, state.w)


def precision(state: State | Variables) -> Any:
    """The floating-point type of a state."""
    return jnp.result_type(*jax.tree.leaves(state))


def _name_of(function: Any) -> str:
    name = getattr(function, "__name__", None) or type(function).__name__
    return "event" if name == "<lambda>" else name


def _shapes(out: Any) -> str:
    parts = out if isinstance(out, tuple | list) else (out,)
    kind = type(out).__name__
    texts = (str(x.shape) if hasattr(x, "shape") else type(x).__name__ for x in parts)
    return f"a {kind} of shapes {', '.join(texts)}" if parts is out else f"a {kind}"


def check_events(
    events: Any, max_events: Any, t, state: State | Variables, names: tuple[str, ...] = NAMES
) -> tuple[Event, ...]:
    """The events of a run as a tuple.

    Args:
        events: events, one event, or `None`.
        max_events: how many may happen.
        t: start [s].
        state: start.
        names: of the arguments of functions.

    Raises:
        TypeError: for what is no event.
        ValueError: for two events of one name, a number that is not positive, or what a function or
            a reset returns.
    """
    given = (events,) if isinstance(events, Event) else tuple(() if events is None else events)
    for one in given:
        if not isinstance(one, Event):
            raise TypeError(f"events holds {one!r}; give jaxdae.Event(function, ...).")
    own = [x.name for x in given]
    twice = sorted({x for x in own if own.count(x) > 1})
    if twice:
        raise ValueError(f"two events are named {twice[0]!r}; give each a name of its own.")
    integer = isinstance(max_events, int) and not isinstance(max_events, bool)
    if not integer or max_events < 1:
        raise ValueError(f"max_events must be a positive integer; got {max_events!r}.")
    for one in given:
        one.check(t, state, names)
    return given


def parameters_of(events: tuple[Event, ...]) -> Any:
    """Arrays in events, to see whether they are known."""
    return [x for x in jax.tree.leaves(events) if eqx.is_array(x)]
