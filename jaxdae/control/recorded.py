"""Inputs of a record: thousands of samples, read between the steps of a run."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.control.inputs import check_grid, HELD, LINEAR
from jaxdae.names import unknown_name
from jaxdae.reprs import Module
from jaxdae.solvers.clocks import time_tolerance

KINDS = (LINEAR, HELD)


class Recorded(Module):
    r"""An input as it was recorded, which a run reads wherever its steps are.

        u(t) = a_k + (t - lag - t_k) / (t_{k+1} - t_k) (a_{k+1} - a_k)       "linear"
        u(t) = a_k                                                           "held"

    for `t_k <= t - lag < t_{k+1}`. Before the first sample it is the first value, behind the last
    one the last. Steps of a run do not end at the samples, unlike with `Interpolated` and `Held`,
    so that steps may be longer than the distance of the samples; then a step sees the input at its
    stages only.

    Records of about equal length, up to the next power of two, are of one shape, so that a batch
    may have them.

    Args:
        times: of the samples [s], increasing, equidistant or not, shape `(times,)`.
        values: of the input there, shape `(times, inputs)`.
        kind: `"linear"` between the samples, or `"held"` from each to the next.
        lag: time by which the input takes effect later than its samples say [s].

    Raises:
        ValueError: for times that do not increase, another number of values, another kind, values
            that are not finite, a lag of a held input that JAX traces.
    """

    times: Any
    values: Any
    lag: Any
    kind: str = eqx.field(static=True)

    def __init__(self, times, values, kind: str = LINEAR, lag: Any = 0.0):
        if kind not in KINDS:
            raise ValueError(unknown_name("interpolation", kind, KINDS))
        times, values = np.asarray(times, float), np.asarray(values, float)
        check_grid("Recorded", times, values, 0)
        if not np.isfinite(values).all():
            row = int(np.argmax(~np.isfinite(values.reshape(len(values), -1)).all(axis=1)))
            raise ValueError(
                f"Recorded: the value at t = {times[row]:.6g} s is {values[row]}; an input has to "
                "be known at all times: leave the sample out, and it is interpolated."
            )
        size = max(2, 1 << (times.size - 1).bit_length())
        more = size - times.size
        later = times[-1] + (1.0 + np.arange(more)) * max(np.ptp(times), 1.0)
        self.times = jnp.asarray(np.concatenate([times, later]))
        self.values = jnp.asarray(np.concatenate([values, np.repeat(values[-1:], more, axis=0)]))
        self.kind, self.lag = kind, _checked(kind, lag)

    def delayed(self, lag: Any) -> "Recorded":
        """The same input with another lag [s], which may be estimated where it is linear.

        Args:
            lag: [s]; a function of parameters in `identify`.

        Raises:
            ValueError: for a lag of a held input that JAX traces.
        """
        return eqx.tree_at(lambda x: x.lag, self, _checked(self.kind, lag))

    def __call__(self, t, q=None, v=None, w=None):
        """Its value at a time [s]."""
        del q, v, w
        times, values = jnp.asarray(self.times), jnp.asarray(self.values)
        t = jnp.asarray(t, values.dtype) - jnp.asarray(self.lag, values.dtype)
        late, i = t + time_tolerance(t), jnp.zeros((), int)
        size = times.shape[0]
        part = size // 2
        while part:
            i = jnp.where(times[i + part] <= late, i + part, i)
            part //= 2
        if self.kind == HELD:
            return values[i]
        i = jnp.minimum(i, size - 2)
        since = jnp.clip((t - times[i]) / (times[i + 1] - times[i]), 0.0, 1.0)
        return values[i] + since * (values[i + 1] - values[i])


def _checked(kind: str, lag: Any) -> Any:
    if kind == HELD and not are_known(lag):
        raise ValueError(
            "Recorded: the lag of a held input is traced, to be differentiated or estimated; "
            "the motion's derivative by it is made of the jumps, which steps that do not end "
            'there never see, and would be zero. Take kind="linear" to estimate it: holding '
            "for a period is a delay of half a period on average, by which the lag found is "
            "longer. Or give the lag as a number."
        )
    if are_known(lag) and not (np.ndim(lag) == 0 and np.isfinite(lag)):
        raise ValueError(f"Recorded: lag is {lag!r}, must be one finite number of seconds.")
    return lag
