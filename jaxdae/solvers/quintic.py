"""Hermite's quintic polynomial: dense output for methods of order 5 and 6."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.solvers.dense_output import AbstractDenseOutput


class QuinticHermite(AbstractDenseOutput):
    """The polynomial of degree 5 with the values and two derivatives of both ends of a step.

    Args:
        t0: beginning of the step [s].
        t1: its end [s].
        y0: state at the beginning.
        y1: state at the end.
        k0: `h dy/dt` at the beginning.
        k1: that at the end.
        c0: `h^2 d^2 y/dt^2` at the beginning.
        c1: that at the end.
    """

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k0: Any
    k1: Any
    c0: Any
    c1: Any

    def at(self, t):
        """The state at a time [s]."""

        def between(y0, y1, k0, k1, c0, c1):
            x = self.part(t).astype(y0.dtype)
            # What Taylor's polynomial at the beginning lacks of value and derivatives at the end.
            value, slope, bend = y1 - y0 - k0 - 0.5 * c0, k1 - k0 - c0, c1 - c0
            third = 10 * value - 4 * slope + 0.5 * bend
            fourth = -15 * value + 7 * slope - bend
            fifth = 6 * value - 3 * slope + 0.5 * bend
            return y0 + x * (k0 + x * (0.5 * c0 + x * (third + x * (fourth + x * fifth))))

        ends = self.y0, self.y1, self.k0, self.k1, self.c0, self.c1
        return jax.tree.map(between, *ends)


def two_derivatives(rate: Callable, t, y, h) -> tuple[Any, Any]:
    """`h dy/dt` and `h^2 d^2 y/dt^2` along the motion.

    Args:
        rate: `dy/dt = rate(t, y)`, of the structure of `y`.
        t: time [s].
        y: state.
        h: length of the step [s].
    """
    t = jnp.asarray(t)
    slope = rate(t, y)
    _, bend = jax.jvp(rate, (t, y), (jnp.ones_like(t), slope))
    scaled = lambda by, tree: jax.tree.map(lambda x: by.astype(x.dtype) * x, tree)  # noqa: E731
    return scaled(h, slope), scaled(h * h, bend)
