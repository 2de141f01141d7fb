"""References in time: motions from one place to another."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.reprs import Module


class MinimumJerk(Module):
    r"""The motion from rest to rest whose third derivative is least in the mean.

        q(t) = start + (end - start) (10 x^3 - 15 x^4 + 6 x^5),    x = (t - t0) / (t1 - t0)

    [FlashHogan1985]; before `t0` and after `t1` it rests. Velocities and accelerations are
    continuous, so that it is a motion for `Feedforward` and `MotionReference` where its values are
    independent coordinates, of which the others are functions.

    Args:
        start: number or `(n,)`.
        end: likewise.
        t0: [s].
        t1: [s], behind `t0`.

    Raises:
        ValueError: for times that are not in order.
    """

    start: Float[Array, " n"] | float
    end: Float[Array, " n"] | float
    t0: Float[Array, ""] | float
    t1: Float[Array, ""] | float

    def __check_init__(self):
        if fails(lambda a, b: float(a) < float(b) < np.inf, self.t0, self.t1):
            raise ValueError(f"t0 = {self.t0} s must be before t1 = {self.t1} s.")

    def __call__(self, t) -> Float[Array, " n"]:
        x = jnp.clip((t - self.t0) / (self.t1 - self.t0), 0.0, 1.0)
        start, end = jnp.asarray(self.start), jnp.asarray(self.end)
        return start + (end - start) * x**3 * (10.0 + x * (6.0 * x - 15.0))
