"""The one place where the rates of coordinates are made of velocities."""

from functools import partial

import jax
import jax.numpy as jnp


def coordinate_rate(system, t, q, v):
    """Rates `dq/dt` of the coordinates at velocities `v`, or their change in any direction of `v`.

    Linear in `v`, of the shape of `q`; `v` itself, as long as velocities are rates of coordinates.
    Whatever differentiates along a motion, or moves coordinates by velocities, asks here.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates.
        v: velocities, or a direction of them.
    """
    del system, t, q
    return v


def along_motion(system, t, q, v) -> tuple:
    """The tangent `(1, dq/dt)` of `(t, q)` along a motion, for `jax.jvp`."""
    return jnp.ones_like(t), coordinate_rate(system, t, q, v)


def generalized_force(system, t, q, v, gradient):
    """The force on the velocities that a gradient by the coordinates is: `(dq/dt)`'s transpose.

    Args:
        system: the declaration.
        t: time [s].
        q: coordinates.
        v: velocities; their shape is that of the result.
        gradient: of an energy, of the shape of `q`.
    """
    return jax.vjp(partial(coordinate_rate, system, t, q), v)[1](gradient)[0]
