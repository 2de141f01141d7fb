"""Limits of actuators and converters: saturation, rates, steps."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.formulations.gains import is_number
from jaxdae.reprs import Module

Bound = float | Float[Array, ""] | Float[Array, " s"] | None


def within(u, lower: Bound, upper: Bound):
    """`u` within bounds, each a number or `(s,)`, or `None` for none."""
    return u if lower is None and upper is None else jnp.clip(u, lower, upper)


def approached(u, before, rate, period):
    """The output that follows `before` towards `u`, by no more than `rate` per second."""
    return before + jnp.clip(u - before, -rate * period, rate * period)


def check_bounds(lower: Bound, upper: Bound) -> None:
    """Refuse bounds that cross; parametrizations of them pass."""
    if not (is_number(lower) and is_number(upper)):
        return
    if fails(lambda low, high: np.all(low < high), lower, upper):
        raise ValueError(f"bounds cross: lower = {lower} must be below upper = {upper}.")


def check_above_zero(name: str, value: Any, unit: str) -> None:
    """Require positive numbers; none, and parametrizations, pass."""
    if is_number(value) and fails(lambda x: np.all((x > 0) & np.isfinite(x)), value):
        raise ValueError(f"{name} must be positive and finite; got {value}{unit}.")


class Saturation(Module):
    r"""A signal within bounds, `min(max(u, lower), upper)`.

    Its derivative is the exact one, zero outside of the bounds: a signal that is saturated does not
    change with what is behind it.

    Args:
        lower: number or `(s,)`, in the unit of the signal; `None` for no bound.
        upper: likewise.

    Raises:
        ValueError: for bounds that cross.
    """

    lower: Bound = None
    upper: Bound = None

    def __check_init__(self):
        check_bounds(self.lower, self.upper)

    def __call__(self, u):
        return within(u, self.lower, self.upper)


class RateLimit(Module):
    r"""A signal that changes by no more than a rate, `u_k = u_{k-1} + clip(u - u_{k-1}, ±rate h)`.

    Its memory is what it gave last, at first zero.

    Args:
        rate: largest change, in the unit of the signal per second; number or `(s,)`.
        period: `h` of the samples [s].
        size: number `s` of signals.

    Raises:
        ValueError: for a rate or a period that is not positive.
    """

    rate: Float[Array, ""] | Float[Array, " s"] | float
    period: Float[Array, ""] | float
    size: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        check_above_zero("rate", self.rate, " per second")
        check_above_zero("period", self.period, " s")

    @property
    def memory(self) -> Float[Array, " s"]:
        """What the first sample is given."""
        return jnp.zeros(self.size)

    def __call__(self, u, memory):
        u = approached(u, memory, self.rate, self.period)
        return u, u


class Quantizer(Module):
    r"""A signal in steps, as a converter or an encoder gives it, `step round(x / step)`.

    Its derivative by the signal is one, passed straight through [BengioLeonardCourville2013], and
    by the step zero. The exact one is zero wherever there is one: no gain before a converter could
    be tuned with it.

    Args:
        step: number or `(s,)`, in the unit of the signal.

    Raises:
        ValueError: for a step that is not positive.
    """

    step: Float[Array, ""] | Float[Array, " s"] | float

    def __check_init__(self):
        check_above_zero("step", self.step, "")

    def __call__(self, x):
        return _quantized(x, jnp.asarray(self.step, jnp.result_type(x)))


@jax.custom_jvp
def _quantized(x, step):
    return step * jnp.round(x / step)


@_quantized.defjvp
def _straight_through(primals, tangents):
    x, step = primals
    value = _quantized(x, step)
    return value, jnp.broadcast_to(tangents[0], value.shape)
