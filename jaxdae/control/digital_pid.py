"""PID control as computers run it: at samples, filtered, within the limits of the actuator."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.control.feedback import fed_forward, Input
from jaxdae.control.limits import approached, Bound, check_above_zero, check_bounds, within
from jaxdae.formulations.gains import apply_gain, check_finite_gain, Gain, is_number
from jaxdae.reprs import Module
from jaxdae.systems.calls import check_parameters, describe_shape


class PIDMemory(NamedTuple):
    """What a digital PID controller remembers of the sample before.

    Args:
        integral: part of the next output, shape `(s,)`.
        derivative: filtered part of the output, shape `(s,)`.
        error: shape `(s,)`.
        output: within the limits, shape `(s,)`.
        begun: whether there was a sample; 0 or 1.
    """

    integral: Float[Array, " s"]
    derivative: Float[Array, " s"]
    error: Float[Array, " s"]
    output: Float[Array, " s"]
    begun: Float[Array, ""]


class DigitalPID(Module):
    r"""Digital PID control, with its derivative filtered and its integral kept from winding up.

        v_k = u0(t_k) + K_P e_k + i_k + d_k
        d_k = (T_f d_{k-1} + K_D (e_k - e_{k-1})) / (T_f + h)
        u_k = v_k within lower and upper, and within rate h of u_{k-1}
        i_{k+1} = i_k + h K_I e_k + (h / T_t) (u_k - v_k)

    by the forward difference of the integral, the backward one of the filtered derivative, and
    back-calculation [AstromWittenmark1997, section 8.5; AstromHagglund2006, chapter 13]. It is a
    policy with a memory, `Sampled(pid, pid.period)`.

    Args:
        error: `e(t, q) -> (s,)`, wanted minus actual; where the controller is given measurements
            `e(t, y)`.
        period: `h` of the samples [s].
        K_P: proportional gain: scalar, diagonal `(s,)`, or matrix `(s, s)`.
        K_I: integral gain [1/s times that of `K_P`], likewise.
        K_D: derivative gain [s times that of `K_P`], likewise.
        filter_time: `T_f` of the derivative's filter [s]; zero for none.
        lower: bounds of the output, scalar or `(s,)`; `None` for none.
        upper: likewise.
        rate: largest change of the output per second, likewise; the output begins at zero.
        tracking_time: `T_t`, in which a limited output resets the integral [s]; by default one
            period. Shorter than `K_D / K_P`, noise in the derivative resets it.
        feedforward: `u0`, shape `(s,)`, or a function of time, such as a `Feedforward`; by default
            zero.
        size: number `s` of errors.

    Raises:
        TypeError: for what is no gain.
        ValueError: for gains that are not finite, bounds that cross, times or rates that are not
            positive, or an error that takes other arguments or is of another size.
    """

    error: Callable[..., Float[Array, " s"]]
    period: Float[Array, ""] | float
    K_P: Gain
    K_I: Gain = 0.0
    K_D: Gain = 0.0
    filter_time: Float[Array, ""] | float = 0.0
    lower: Bound = None
    upper: Bound = None
    rate: Bound = None
    tracking_time: Any = None
    feedforward: Input | None = None
    size: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        check_parameters("the error", self.error, ("t", "q"))
        for name in ("K_P", "K_I", "K_D"):
            check_finite_gain(name, getattr(self, name))
        check_above_zero("period", self.period, " s")
        check_above_zero("rate", self.rate, " per second")
        check_above_zero("tracking_time", self.tracking_time, " s")
        check_bounds(self.lower, self.upper)
        time = self.filter_time
        if is_number(time) and fails(lambda x: np.all((x >= 0) & np.isfinite(x)), time):
            raise ValueError(f"filter_time must not be negative; got {time} s.")

    @property
    def memory(self) -> PIDMemory:
        """What the first sample is given."""
        zero = jnp.zeros(self.size)
        return PIDMemory(zero, zero, zero, zero, jnp.zeros(()))

    def __call__(self, t, q, *others):
        *_, memory = others
        h, e = self.period, self.error(t, q)
        if getattr(e, "shape", None) != (self.size,):
            raise ValueError(
                f"the error returned {describe_shape(e)}; DigitalPID(…, size={self.size}) needs "
                f"shape ({self.size},)."
            )
        # No change is known at the first sample.
        change = jnp.where(memory.begun > 0, e - memory.error, 0.0)
        derivative = self.filter_time * memory.derivative + apply_gain(self.K_D, change, "K_D")
        derivative = derivative / (self.filter_time + h)
        wanted = apply_gain(self.K_P, e, "K_P") + memory.integral + derivative
        wanted = fed_forward(self.feedforward, t, wanted)
        u = within(wanted, self.lower, self.upper)
        if self.rate is not None:
            u = approached(u, memory.output, self.rate, h)
        reset = 1.0 if self.tracking_time is None else h / self.tracking_time
        integral = memory.integral + h * apply_gain(self.K_I, e, "K_I") + reset * (u - wanted)
        return u, PIDMemory(integral, derivative, e, u, jnp.ones_like(memory.begun))
