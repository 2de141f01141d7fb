"""How fast a motion changes, as its constraints feel it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.reprs import shown
from jaxdae.systems import evaluate


class MotionRate(NamedTuple):
    """Root mean squares along a motion.

    Args:
        size: of the constraints' velocity-dependent acceleration, of all constraints together.
        frequency: of its rate, over that [1/s].
    """

    size: float
    frequency: float

    def __repr__(self) -> str:
        return shown(self)


def motion_frequency(system, trajectory) -> float:
    """Rate at which the constraints' velocity-dependent acceleration changes along a motion [1/s].

    The root mean square of `d gamma/dt` over that of `gamma`, with `J a + gamma = phi_ddot`, by
    differences between saved times. Steps inject into a violation what `gamma` makes of them, see
    `jaxdae.stability.stationary`: `step_gains(..., regime="steps", frequency=...)` takes this rate.

    Args:
        system: the declaration.
        trajectory: of one run, saved often enough to draw the motion from it.

    Returns:
        The rate; zero where `gamma` is constant.

    Raises:
        ValueError: for fewer than three times, a motion that is not finite, or one along which
            `gamma` vanishes.
    """
    return motion_rate(system, trajectory).frequency


def motion_rate(system, trajectory) -> MotionRate:
    """See `motion_frequency`."""
    ts = np.asarray(trajectory.ts, np.float64)
    if ts.ndim != 1 or ts.size < 3:
        raise ValueError(f"a motion needs at least 3 saved times; this one has shape {ts.shape}.")

    def gamma(t, q, v, w):
        return evaluate(system, t, q, v, w).gamma

    each = (jnp.asarray(trajectory.ts), trajectory.q, trajectory.v, trajectory.w)
    values = np.asarray(jax.jit(jax.vmap(gamma))(*each), np.float64)
    finite = np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    if not finite.all():
        raise ValueError(
            f"the motion is not finite at {(~finite).sum()} of {ts.size} saved times: did its run "
            "fail? Give one that reached its end."
        )
    size = np.sqrt(np.mean(np.sum(values**2, axis=-1))) if values.size else 0.0
    if size == 0.0:
        raise ValueError(
            "the motion has no rate that its constraints feel: their velocity-dependent "
            f"acceleration has the root mean square {size}. Give the frequency [1/s] yourself."
        )
    slopes = np.gradient(values, ts, axis=0)
    return MotionRate(size, float(np.sqrt(np.mean(np.sum(slopes**2, axis=-1))) / size))
