"""Coordinates and velocities: rates, their inverse, and what they make of the inertial forces."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.systems.base import Labels, System

# Steps of the flow by which coordinates move where velocities are not their rates.
_FLOW_STEPS = 4


def has_rate(system: Any) -> bool:
    """Whether a system declares rates of its coordinates that are not its velocities."""
    inner = getattr(system, "inner", None)
    if isinstance(inner, System) and getattr(type(system), "forwards_rate", False):
        return has_rate(inner)
    declared = getattr(type(system), "rate", System.rate)
    # A field of this name is a parameter of the user's.
    if declared is System.rate or not callable(declared):
        return False
    # Some declare rates and have none that differ, such as bodies on hinges alone.
    same = getattr(type(system), "velocities_are_rates", None)
    return not (isinstance(same, property) and bool(system.velocities_are_rates))


def refuse_rates(system: Any, controller: Any) -> None:
    """Refuse a controller that takes velocities for rates where a system has others.

    It has no system from which to know the rates of what it controls.

    Args:
        system: the declaration.
        controller: `u = controller(t, q, v, w)`; its `takes_rates` is false where it needs rates.
    """
    if has_rate(system) and not getattr(controller, "takes_rates", True):
        raise ValueError(
            f"{type(controller).__name__} takes velocities for rates of coordinates, and "
            f"{type(system).__name__} declares others by `rate`. Give a law of (t, q, v, w) that "
            "needs no rates, or declare the system in velocities that are rates, as on hinges and "
            "slides."
        )


def coordinate_rate(system, t, q, v):
    """Rates `dq/dt` of the coordinates at velocities `v`, or their change in any direction of `v`.

    Linear in `v`, of the shape of `q`; `v` itself where velocities are rates of coordinates.
    Whatever differentiates along a motion, or moves coordinates by velocities, asks here.
    """
    return system.rate(t, q, v) if has_rate(system) else v


def depends_on_velocities(system, t, state) -> np.ndarray:
    """Which rates of coordinates depend on which velocities, anywhere, shape `(n, n_v)`.

    What is traced has other numbers here, of the same shapes: this is no question of numbers.
    """
    rng = np.random.default_rng(0)
    number = lambda x: rng.uniform(0.4, 1.3, np.shape(x)).astype(x.dtype)  # noqa: E731
    known = lambda x: x if are_known(x) else number(x)  # noqa: E731
    system, t = jax.tree.map(known, (system, t))
    with jax.ensure_compile_time_eval():
        frames = [np.asarray(_frame(system, t, jnp.asarray(number(state.q)))) for _ in range(2)]
    return np.asarray(np.any(np.stack(frames) != 0, axis=0))


def velocities_of(system, t, q, q_dot):
    """Velocities `v` of given rates of the coordinates: the left inverse of `coordinate_rate`.

    Of the rates the nearest that velocities can give are taken.
    """
    if not has_rate(system):
        return q_dot
    frame = _frame(system, t, q)
    return jnp.linalg.solve(frame.T @ frame, frame.T @ q_dot)


def velocity_count(system, t, q) -> int:
    """Number of velocities: that of coordinates, or as many as `rate` takes."""
    if not has_rate(system):
        return q.size
    for count in range(q.size, 0, -1):
        try:
            out = jax.eval_shape(
                partial(system.rate, t, q), jax.ShapeDtypeStruct((count,), q.dtype)
            )
        except Exception:  # of a user's function, for velocities that it is not made for
            continue
        if getattr(out, "shape", None) == q.shape:
            return count
    raise ValueError(
        f"{type(system).__name__}.rate gives no rates of shape {q.shape} for any number of "
        "velocities up to that of the coordinates; return N(t, q) @ v."
    )


def at_rest(system, t, q):
    """Velocities of a system at rest, zeros; as many as it has."""
    return jnp.zeros(velocity_count(system, t, q), q.dtype)


def velocity_labels(system: System, count: int) -> Labels:
    """Labels whose coordinates are as many as velocities, `count`, and have the names of these.

    Where velocities are rates of coordinates they have the names of the coordinates.
    """
    labels = system.labels()
    if not has_rate(system):
        return labels
    given = labels.velocities
    names = tuple(given[i] if i < len(given) else f"v{i + 1}" for i in range(count))
    return dataclasses.replace(labels, coordinates=names)


def moved(system, t, q, change):
    """Coordinates moved by a change of position that velocities describe.

    Args:
        system: the declaration.
        t: time [s], which stays.
        q: coordinates.
        change: velocities times a short time; added where they are rates, else the flow of
            `dq/ds = N(t, q) change` for a unit of `s`, which keeps what the rates keep.
    """
    if not has_rate(system):
        return q + change
    h = 1.0 / _FLOW_STEPS
    rate = lambda q: system.rate(t, q, change)  # noqa: E731
    for _ in range(_FLOW_STEPS):  # the classical Runge-Kutta method
        k1 = rate(q)
        k2 = rate(q + 0.5 * h * k1)
        k3 = rate(q + 0.5 * h * k2)
        q = q + h / 6 * (k1 + 2 * k2 + 2 * k3 + rate(q + h * k3))
    return q


def along_motion(system, t, q, v) -> tuple:
    """The tangent `(1, dq/dt)` of `(t, q)` along a motion, for `jax.jvp`."""
    return jnp.ones_like(t), coordinate_rate(system, t, q, v)


def generalized_force(system, t, q, v, gradient):
    """The force on the velocities that a gradient by the coordinates is: `(dq/dt)`'s transpose."""
    return jax.vjp(partial(coordinate_rate, system, t, q), v)[1](gradient)[0]


def frame_force(system, t, q, v, momentum, lifted: Callable | None = None):
    r"""Inertial force of velocities that are not rates: the terms of Boltzmann and Hamel.

    Virtual displacements `dq = N eta` vary the velocities by `eta' + C eta` with
    `C eta = N^+ (dN/dt eta - (dN/dq N eta) v)`, `dN/dt` along the motion, so that the momentum `p`
    adds `C^T p` to the forces (d'Alembert's principle; for constant `C` Euler's equations).
    `lifted` is the map `p -> N^+^T p`, by dense matrices where it is not given.
    """
    if not has_rate(system):
        return jnp.zeros_like(v)
    if lifted is None:
        frame = _frame(system, t, q)
        weights = frame @ jnp.linalg.solve(frame.T @ frame, momentum)
    else:
        weights = lifted(momentum)

    def power(eta):
        along = along_motion(system, t, q, v)
        turned = jax.jvp(lambda t, q: system.rate(t, q, eta), (t, q), along)[1]
        other = jax.jvp(lambda q: system.rate(t, q, v), (q,), (system.rate(t, q, eta),))[1]
        return weights @ (turned - other)

    return jax.grad(power)(jnp.zeros_like(v))


def _frame(system, t, q):
    """`N(t, q)`, shape `(n, velocities)`."""
    basis = jnp.eye(velocity_count(system, t, q), dtype=q.dtype)
    return jax.vmap(lambda e: system.rate(t, q, e), out_axes=1)(basis)
