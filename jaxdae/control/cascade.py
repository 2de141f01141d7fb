"""Control loops in one another: an outer one gives the inner one its reference."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdae.control.base import AbstractDynamicController, AbstractHybridController
from jaxdae.systems import State
from jaxdae.systems.calls import check_instance, check_parameters


class Cascade(AbstractHybridController):
    r"""An outer loop that is sampled, around an inner loop that follows its output.

        u = inner(r)(t, q, v, w),        r = outer's output

    The inner loop may be any controller: a function, a `PID` that goes on between the samples of
    the outer one, a `Sampled` of another period, an input on a grid, or a cascade again. At times
    that both loops have in common, the outer one is asked first.

    Args:
        outer: an `AbstractHybridController` that keeps all of its state, such as `Sampled`.
        inner: `inner(r)`, the controller for a reference; an `eqx.Module` if it has gains to tune.

    Raises:
        TypeError: for an outer loop that is none.
        ValueError: for one that goes on between its samples.
    """

    outer: AbstractHybridController
    inner: Callable

    def __check_init__(self):
        check_instance(
            "outer", self.outer, AbstractHybridController, "jaxdae.Sampled(policy, period)"
        )
        check_parameters("inner", self.inner, ("r",))

    def prepared(self, t, state):
        return self._loops(t, state, self.outer.prepared(t, state))

    def _loops(self, t, state, outer) -> "CascadeLoops":
        if self.outer.moving(t, state):
            raise ValueError(
                "the outer loop of a Cascade must keep all of its state from sample to sample."
            )
        c = self.outer.initial(t, state)
        reference = self.outer.output(t, state.q, state.v, state.w, c)
        return CascadeLoops(outer, self.inner, reference, c.size)

    @property
    def clocks(self):
        return self.outer.clocks

    def initial(self, t, state):
        return self._loops(t, state, self.outer).initial(t, state)

    def renew(self, t, q, v, w, c):
        return self.prepared(t, State(q, v, w)).renew(t, q, v, w, c)

    def moving(self, t, state):
        return self.prepared(t, state).moving(t, state)

    def rate(self, t, q, v, w, c):
        return self.prepared(t, State(q, v, w)).rate(t, q, v, w, c)

    def output(self, t, q, v, w, c):
        return self.prepared(t, State(q, v, w)).output(t, q, v, w, c)


class CascadeLoops(AbstractHybridController):
    """Both loops of a cascade, as runs take them: the inner state before the outer one.

    Args:
        outer: the outer loop.
        inner: the controller for a reference.
        reference: the first one, whose shape all have.
        size: numbers of the outer state.
    """

    outer: AbstractHybridController
    inner: Callable
    reference: Any
    size: int = eqx.field(static=True)

    @property
    def name(self):
        return Cascade.__name__

    @property
    def clocks(self):
        inner = self.inner(self.reference)
        more = inner.clocks if isinstance(inner, AbstractHybridController) else ()
        return (*self.outer.clocks, *more)

    def initial(self, t, state):
        outer = self.outer.initial(t, state)
        inner = self._inner(t, state.q, state.v, state.w, outer)
        if not isinstance(inner, AbstractDynamicController):
            return outer
        begun = inner.initial(t, state)
        if jnp.ndim(begun) != 1:
            name = type(inner).__name__
            raise ValueError(
                f"{name}.initial returned shape {jnp.shape(begun)}; the state of an inner loop "
                "must be a vector."
            )
        return jnp.concatenate([begun, outer])

    def renew(self, t, q, v, w, c):
        inner_state, outer = self._parts(c)
        outer = self.outer.renew(t, q, v, w, outer)
        inner = self._inner(t, q, v, w, outer)
        if isinstance(inner, AbstractHybridController):
            inner_state = inner.renew(t, q, v, w, inner_state)
        return jnp.concatenate([inner_state, outer])

    def moving(self, t, state):
        inner = self.inner(self.reference)
        if isinstance(inner, AbstractHybridController):
            return inner.moving(t, state)
        if isinstance(inner, AbstractDynamicController):
            return eqx.filter_eval_shape(inner.initial, t, state).size
        return 0

    def rate(self, t, q, v, w, c):
        inner_state, outer = self._parts(c)
        inner = self._inner(t, q, v, w, outer)
        if isinstance(inner, AbstractDynamicController):
            inner_state = inner.rate(t, q, v, w, inner_state)
        return jnp.concatenate([inner_state, jnp.zeros_like(outer)])

    def output(self, t, q, v, w, c):
        inner_state, outer = self._parts(c)
        inner = self._inner(t, q, v, w, outer)
        if isinstance(inner, AbstractDynamicController):
            return inner.output(t, q, v, w, inner_state)
        return inner(t, q, v, w)

    def _inner(self, t, q, v, w, outer):
        return self.inner(self.outer.output(t, q, v, w, outer))

    def _parts(self, c):
        """Inner and outer state."""
        first = c.size - self.size
        return c[:first], c[first:]
