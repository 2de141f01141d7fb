"""Why events ended a run as a failure, in words."""

from typing import Any

import jax
import numpy as np

from jaxdae.events.records import (
    ACCUMULATED,
    GOES_ON,
    LASTING,
    NOT_FINITE,
    OFF_CONSTRAINTS,
    TOO_MANY,
)
from jaxdae.systems import constraint_residuals, Variables

# The last interval between two events, relative to the time, below which they are said to
# accumulate.
_SHORT = 1e-4
_ZENO = (
    "they accumulate at about that time (Zeno), and no number of events leads past it. End the run "
    "before, with an event without a reset, or go on with a constraint in place of the contact, as "
    "jaxdae.switching(..., restitution=0.0) does."
)


def failure_of_events(trajectory: Any) -> str | None:
    """Why a run ended early because of its events, in words; `None` where it did not."""
    events = trajectory.events
    if events is None or int(events.ending) == GOES_ON:
        return None
    t, code, culprit = float(trajectory.final_time), int(events.ending), int(events.culprit)
    name = repr(events.names[culprit]) if culprit >= 0 else "them"
    head, amount = f"the run stopped at t = {t:.6g} s", float(events.amount)
    if code == TOO_MANY:
        return f"{head}: {_too_many(events, t)}"
    if code == ACCUMULATED:
        return (
            f"{head}: the event {name} happened {int(events.counts[events.names[culprit]])} times, "
            f"the last {amount:.3g} s after the one before: {_ZENO}"
        )
    if code == OFF_CONSTRAINTS and isinstance(events.after, Variables):
        return (
            f"{head}: the reset of the event {name} returned variables y that are off the "
            f"constraints: consistent ones are {amount:.3g} away. Return what satisfies them, or "
            "allow it by start_tolerance."
        )
    if code == OFF_CONSTRAINTS:
        constraint, value = _worst_constraint(trajectory)
        return (
            f"{head}: the reset of the event {name} returned a state off the constraints, "
            f"{constraint!r} = {value:.3g}. Return velocities that satisfy them, as jaxdae.impact "
            "does, or pass the state through jaxdae.consistent_state's projection; or allow it by "
            "start_tolerance."
        )
    if code == LASTING:
        return f"{head}: {_lasting(events, name, amount)}"
    assert code == NOT_FINITE
    nowhere = (
        "; or no consistent variables were found next to what the reset returned: return a value "
        "of z, or of rates, nearer to a solution"
        if isinstance(events.after, Variables)
        else ""
    )
    return (
        f"{head}: the function or the reset of the event {name} is not finite there. Look for a "
        f"division by zero, or a root or logarithm of a negative number in it{nowhere}."
    )


def _too_many(events: Any, t: float) -> str:
    most, times = len(events.times), np.asarray(events.times)
    indices = np.asarray(events.indices)
    last = float(abs(times[-1] - times[-2])) if most > 1 else float("inf")
    name = events.names[indices[-1]]
    text = f"more than max_events = {most} events happened"
    if most > 1:
        text += f", the last, {name!r}, {last:.3g} s after the one before"
    if last < _SHORT * max(abs(t), last):
        return f"{text}: {_ZENO}"
    return f"{text}. Give a larger max_events."


def _lasting(events: Any, name: str, amount: float) -> str:
    what = (
        "A lasting contact is a constraint, not an impact: end the run there by an event without a "
        "reset, and go on with a system that has the gap among its position_constraints, or let "
        "jaxdae.switching hold and release it, where this is the gap or the reaction of a row that "
        "the reset of another event has made negative."
    )
    if len(events) and events.names[int(events.indices[len(events) - 1])] == name.strip("'"):
        return (
            f"behind the impact {name} the bodies stay together, pressed on each other: their gap "
            f"does not open (second derivative {amount:.3g} m/s^2). {what}"
        )
    return (
        f"the gap of the impact {name} is {amount:.3g} m and not opening where a part of the run "
        f"begins: the bodies touch and press on each other, or overlap. Start apart. {what}"
    )


def _worst_constraint(trajectory: Any) -> tuple[str, float]:
    events, system = trajectory.events, trajectory.system
    last = len(events) - 1
    state = jax.tree.map(lambda x: x[last], events.after)
    found = constraint_residuals(system, events.times[last], state.q, state.v)
    labels = system.labels()
    phi, phi_dot = np.asarray(found.phi), np.asarray(found.phi_dot)
    largest = lambda x: np.abs(x).max(initial=0.0)  # noqa: E731
    rates = largest(phi_dot) > largest(phi)
    values = phi_dot if rates else phi
    worst = int(np.argmax(np.abs(values)))
    name = labels.constraint(worst)
    return (f"d({name})/dt" if rates and worst < phi.size else name), float(values[worst])
