"""Events: a run ends where a function of time and state falls to zero."""

import abc
from typing import Any

import jax.numpy as jnp
import optimistix as optx

from jaxdae.reprs import Module
from jaxdae.systems import State, System


class AbstractEvent(Module):
    """Something that ends a run.

    Both backends compare the function at the two ends of every step that is kept, locate the
    zero on the dense output of the step, to the round-off of the time, and end the run there:
    its result is `diffrax.RESULTS.event_occurred`, a success. A function that is zero or negative
    at the start has to become positive before it can fall. Two zeros within one step that undo
    each other are not seen.
    """

    @abc.abstractmethod
    def function(self, system: System, t, state: State) -> Any:
        """What falls from a positive value to zero, or below it, where the event is: a scalar.

        Args:
            system: what moves.
            t: time [s].
            state: coordinates, velocities and actuator states.
        """

    def value(self, t, y, args) -> Any:
        """The function of what is integrated.

        Args:
            t: time [s].
            y: the formulation's own state, and works or `None`.
            args: `(system, formulation, controller)`.

        Raises:
            ValueError: for a function of which the result is not one real number.
        """
        system, formulation, _ = args
        found = jnp.asarray(self.function(system, t, formulation.recover(system, t, y[0])))
        if found.shape or not jnp.issubdtype(found.dtype, jnp.floating):
            raise ValueError(
                f"the function of the event {type(self).__name__} returned {found.dtype} of shape "
                f"{found.shape}; it must return one real number, which falls to zero at the event."
            )
        return found.astype(jnp.result_type(t))


class _Halving(optx.AbstractRootFinder):
    """Bisection between `options["lower"]` and `options["upper"]` until both are neighbours.

    The function is positive at the lower end. `optimistix.Bisection` ends by a tolerance in units
    of the function, which those of an event have not got.
    """

    rtol: float = 0.0
    atol: float = 0.0
    norm: Any = optx.max_norm

    def init(self, fn, y, args, options, f_struct, aux_struct, tags):
        del fn, args, f_struct, aux_struct, tags
        lower, upper = (jnp.asarray(options[x], y.dtype) for x in ("lower", "upper"))
        return lower, upper, jnp.array(False)

    def step(self, fn, y, args, options, state, tags):
        del options, tags
        value, aux = fn(y, args)
        lower, upper, _ = state
        ahead = value > 0
        lower, upper = jnp.where(ahead, y, lower), jnp.where(ahead, upper, y)
        middle = lower + 0.5 * (upper - lower)
        done = (middle <= lower) | (middle >= upper)
        return jnp.where(done, upper, middle), (lower, upper, done), aux

    def terminate(self, fn, y, args, options, state, tags):
        del fn, y, args, options, tags
        return state[2], optx.RESULTS.successful

    def postprocess(self, fn, y, aux, args, options, state, tags, result):
        del fn, args, options, tags, result, state
        return y, aux, {}


HALVING = _Halving()


def fall(function, before, after) -> Any:
    """Where a function falls to zero.

    Args:
        function: of a time; positive at the first, zero or negative at the second of these.
        before: time [s].
        after: time [s].

    Returns:
        The first time found, next to one at which the function is positive.
    """
    ends = {"lower": before, "upper": after}
    return optx.root_find(lambda t, _: function(t), HALVING, after, options=ends, throw=False).value
