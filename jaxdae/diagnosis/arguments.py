"""Arguments of a simulation: their kinds, and times in order; checked before any work."""

from types import FunctionType
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.gains import is_number
from jaxdae.solvers.grid import known_ends
from jaxdae.solvers.sampled import SampleSteps
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance, described
from jaxdae.systems.checks import is_concrete

_MOST_STEPS = 2**31 - 1


def check_kinds(
    system, formulation, state, controller, adjoint, saveat, progress, throw, work
) -> None:
    """Arguments of the right kind.

    Raises:
        TypeError: naming the argument, what it is, and what it should be.
    """
    for name, value, kind, example in (
        ("system", system, System, "an instance of your jaxdae.System"),
        ("formulation", formulation, AbstractFormulation, "jaxdae.Multipliers(Baumgarte(...))"),
        ("state", state, State, "jaxdae.State(q, v) or jaxdae.consistent_state(system, q, v)"),
        ("adjoint", adjoint, diffrax.AbstractAdjoint | None, "diffrax.ForwardMode()"),
        ("saveat", saveat, diffrax.SaveAt | None, "diffrax.SaveAt(ts=...)"),
        ("progress", progress, bool | diffrax.AbstractProgressMeter, "True or False"),
        ("throw", throw, bool | np.bool_, "True or False"),
        ("work", work, bool | np.bool_, "True or False"),
    ):
        check_instance(name, value, kind, example)
    if isinstance(adjoint, diffrax.BacksolveAdjoint):
        raise TypeError(
            "BacksolveAdjoint cannot give the saved rows of a trajectory; use "
            "diffrax.RecursiveCheckpointAdjoint() for reverse mode, diffrax.ForwardMode() for "
            "forward mode."
        )
    if controller is not None and (isinstance(controller, type) or not callable(controller)):
        raise TypeError(
            f"controller is {described(controller)}; give a callable u = controller(t, q, v, w)."
        )
    _check_closure("controller", controller)
    formulation.check_parts()
    for name, value in vars(formulation).items():
        _check_closure(name, value)


def _check_closure(name: str, function) -> None:
    """A function cannot carry a value that is being traced out of the transformation."""
    if not isinstance(function, FunctionType):
        return
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    if not is_concrete(held):
        raise ValueError(
            f"the {name} closes over a value that is being differentiated or batched; write it as "
            "an eqx.Module with that value as a field, so that JAX can see it."
        )


def check_times(t0, t1, dt, stepsize_controller, saveat, max_steps: int) -> None:
    """Times that are finite scalars, in order, and within the number of steps allowed.

    Raises:
        TypeError: for a time that is not a scalar number.
        ValueError: naming the time, and what it should be.
    """
    integer = isinstance(max_steps, int | np.integer) and not isinstance(max_steps, bool)
    if not integer or max_steps < 1:
        raise ValueError(f"max_steps must be a positive integer; got {max_steps!r}.")
    if max_steps > _MOST_STEPS:
        raise ValueError(
            f"max_steps = {max_steps} is more than the {_MOST_STEPS} that counters of 32 bits "
            "hold; give a smaller one."
        )
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if name == "dt" and value is None:
            continue
        if isinstance(value, bool) or not is_number(value) or jnp.shape(value) != ():
            raise TypeError(f"{name} must be a number; got {value!r}.")
    if not is_concrete(t0, t1, dt, saveat):
        return
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if value is not None and not np.isfinite(value):
            raise ValueError(f"{name} is not finite: {value}.")
    _check_saved_times(t0, t1, saveat)
    if dt is None:
        return
    if dt == 0 or (t1 - t0) * dt <= 0:
        raise ValueError(f"dt = {dt} does not lead from t0 = {t0} to t1 = {t1}.")
    if stepsize_controller is None and (t1 - t0) / dt > max_steps:
        raise ValueError(
            f"{(t1 - t0) / dt:.0f} steps of {dt} s are more than max_steps = {max_steps}; "
            "give a larger max_steps."
        )


def wrong_times(times, saved: list, settings: list, controller) -> dict[str, Any]:
    """What is wrong with times and tolerances that are known only when the program runs.

    Args:
        times: `Times` of the run.
        saved: times to be saved [s].
        settings: numbers of the step controller.
        controller: itself, or `None`.

    Returns:
        Whether it is so, a boolean array, by what is wrong in words.
    """
    start, end, step = times.start, times.end, times.first_step
    numbers = [x for x in (start, end, step, times.grid, *saved) if x is not None]
    not_finite = [jnp.any(~jnp.isfinite(x)) for x in numbers] + [
        jnp.any(jnp.isnan(x)) for x in settings
    ]
    found = {"a time, a step or a tolerance is not finite.": _any(not_finite)}
    given: list[Any] = [getattr(controller, name, None) for name in ("rtol", "atol")]
    tolerances = [jnp.asarray(x) for x in given if is_number(x)]
    if settings and tolerances:
        ranges = [jnp.any(~((x >= 0) & jnp.isfinite(x))) for x in tolerances]
        zero = jnp.all(jnp.stack([jnp.all(x == 0) for x in tolerances]))
        found["rtol and atol must be finite, not below zero, and not both zero."] = _any(
            [*ranges, zero]
        )
    if step is not None:
        found["dt does not lead from t0 to t1."] = (step == 0) | ((end - start) * step < 0)
    if isinstance(known_ends(controller).controller, SampleSteps):
        found["a controller that is sampled keeps a memory, which no run backward in time has."] = (
            end < start
        )
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    outside = [
        jnp.any(jnp.diff(x) * jnp.sign(end - start) < 0) | jnp.any((x < low) | (x > high))
        for x in saved
        if x.size
    ]
    if outside:
        words = "must lie between t0 and t1, in the order in which the times are reached."
        found[f"SaveAt(ts=...) {words}"] = _any(outside)
    return found


def _any(conditions: list):
    return jnp.any(jnp.stack(conditions))


def _check_saved_times(t0, t1, saveat) -> None:
    if saveat is not None and (saveat.solver_state or saveat.controller_state or saveat.made_jump):
        raise ValueError(
            "a Trajectory keeps no internal state of solver or step controller; leave "
            "solver_state, controller_state and made_jump out of SaveAt."
        )
    is_sub = lambda x: isinstance(x, diffrax.SubSaveAt)  # noqa: E731
    subs = jax.tree.leaves(None if saveat is None else saveat.subs, is_leaf=is_sub)
    for ts in (np.asarray(sub.ts) for sub in subs if sub.ts is not None):
        if ts.ndim != 1:
            raise ValueError(f"SaveAt(ts=...) has shape {ts.shape}; give a vector of times.")
        low, high = min(t0, t1), max(t0, t1)
        if ts.size and not (low <= ts.min() and ts.max() <= high):
            raise ValueError(
                f"SaveAt(ts=...) asks for times from {ts.min():.6g} to {ts.max():.6g} s, outside "
                f"the simulated {low:.6g} to {high:.6g} s; leave those out, or change t0 or t1."
            )
        if (np.diff(ts) * np.sign(float(t1) - float(t0)) < 0).any():
            raise ValueError("SaveAt(ts=...) must be in the order in which the times are reached.")
