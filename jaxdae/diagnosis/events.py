"""What may be wrong with the events of a run, in words."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.diagnosis.findings import Finding
from jaxdae.diagnosis.singularities import BLOCK, in_blocks
from jaxdae.events.crossings import time_tolerance
from jaxdae.simulation.flow import event_rates
from jaxdae.simulation.problem import Problem

# An event at which the function's rate is below this part of what its curvature makes of it in the
# time of the run is a touch more than a crossing.
_GRAZING = 1e-5
# A flight between two bounces is at most so many times as long as by its last acceleration.
_FLIGHT = 2.0
# Of functions from the cubics that steps take them for (`Events.misfit`): a sine has as much where
# a step is nearly one and a half periods long, and crossings are found up to two.
_MISFIT = 0.75
# The least value between two rows, relative to the largest of the run, that counts as touching.
_TOUCHING = 1e-6


_SMALLER = "Take smaller steps: dt, a smaller tolerance, or dtmax of the stepsize_controller."


class Segment(NamedTuple):
    """Rows of a part of a run between two events.

    Args:
        ts: times [s].
        ys: the formulation's own states there.
        work: integrated work there, or `None`.
    """

    ts: Any
    ys: Any
    work: Any


def segments(ts, ys, work, events: Any) -> list[Segment]:
    """Rows of a run, cut where an event happened; a row at its time is behind it."""
    sign = 1.0 if len(ts) < 2 or ts[-1] >= ts[0] else -1.0
    times = sign * np.asarray(events.times)[: len(events)]
    cuts = np.searchsorted(sign * np.asarray(ts), times, side="left")
    ends = [0, *cuts.tolist(), len(ts)]
    found = []
    for a, b in itertools.pairwise(ends):
        if b - a > 1:
            rows, own = (jax.tree.map(lambda x, a=a, b=b: x[a:b], x) for x in (ys, work))
            found.append(Segment(ts[a:b], rows, own))
    return found


def findings(problem: Any, trajectory: Any, parts: list[Segment]) -> list[Finding]:
    """What may be wrong with the events of a run.

    Args:
        problem: what was simulated.
        trajectory: a single run.
        parts: its rows, cut at events.
    """
    events = trajectory.events
    span = abs(float(trajectory.final_time) - float(problem.times.start))
    found = [
        _at_once(events), _unwatched(events), _unresolved(events), _grazing(trajectory, span),
    ]  # fmt: skip
    found += _between_rows(problem, trajectory, parts)
    return [x._replace(subject="events") for x in found if x is not None]


def _at_once(events: Any) -> Finding | None:
    places = np.flatnonzero(np.asarray(events.together)[: len(events)])
    if not places.size:
        return None
    first = int(places[0])
    a, b = (events.names[int(events.indices[i])] for i in (first - 1, first))
    t = float(events.times[first])
    return Finding(
        f"the events {a!r} and {b!r} happened at the same time, t = {t:.6g} s, to the tolerance of "
        "times: their resets were applied one after the other, as they stand in events, and the "
        "result may depend on that order; it has no derivative there.",
        time=t,
    )


def _unwatched(events: Any) -> Finding | None:
    times = np.asarray(events.unwatched)
    if not np.isfinite(times).any():
        return None
    i = int(np.argmin(times))
    return Finding(
        f"the function of the event {events.names[i]!r} is zero at t = {times[i]:.6g} s with its "
        "first two derivatives: on which side it goes on is not known, and it was not sought "
        "until the next event.",
        time=float(times[i]),
    )


def _unresolved(events: Any) -> Finding | None:
    size, t = float(events.misfit), float(events.misfit_time)
    if size <= _MISFIT:
        return None
    return Finding(
        f"the function of the event {events.names[int(events.misfit_index)]!r} changes quicker "
        f"than steps resolve: within the step from t = {t:.6g} s it is off by {size:.2g} times its "
        "largest value there from what its values and slopes around let expect. Crossings may have "
        f"been missed. {_SMALLER}",
        size,
        t,
    )


def _grazing(trajectory: Any, span: float) -> Finding | None:
    events = trajectory.events
    count = len(events)
    rates, bent = (np.asarray(x)[:count] for x in (events.rates, events.curvatures))
    falls = rates * bent > 0
    rates, bent = np.abs(rates), np.abs(bent)
    times = np.asarray(events.times)[:count]
    missed = np.asarray(events.distances)[:count] > time_tolerance(events.times[:count])
    # A body that bounces is back after twice its rate by its acceleration, and crosses zero surely.
    since = np.abs(np.diff(times, prepend=np.nan))
    bounces = falls & (since * bent <= 2 * _FLIGHT * rates)
    grazes = (rates <= _GRAZING * bent * span) & ~bounces
    places = np.flatnonzero(grazes | np.asarray(missed))
    if not places.size:
        return None
    i = int(places[0])
    name = events.names[int(events.indices[i])]
    return Finding(
        f"at t = {times[i]:.6g} s the function of the event {name!r} nearly touches zero without "
        f"crossing it (grazing): its rate there is {rates[i]:.3g} 1/s, its second derivative "
        f"{bent[i]:.3g} 1/s^2. Whether and when the event happens depends on the smallest error, "
        "and its time has no useful derivative.",
        float(rates[i]),
        float(times[i]),
    )


@jit(options=BRIEFLY)
def _rates_block(problem: Problem, sign, ts, ys):
    one = lambda t, y: event_rates(problem.motion, t, (y, None), sign)  # noqa: E731
    return jax.vmap(one)(ts, ys)


def _between_rows(problem: Problem, trajectory: Any, parts: list[Segment]) -> list[Finding]:
    """Functions that touch zero, or have crossed it, between two rows without an event."""
    events = trajectory.events
    names = events.names
    sign = jnp.where(problem.times.start <= problem.times.end, 1.0, -1.0)
    sign = sign.astype(trajectory.events.rates.dtype)
    pieces = []
    for part in parts:
        block = lambda t, y: _rates_block(problem, sign, t, y)  # noqa: E731
        pieces.append((part.ts, in_blocks(block, BLOCK, part.ts, part.ys)))
    found = []
    for i, name in enumerate(names):
        scale = max((np.abs(x.value[:, i]).max(initial=0.0) for _, x in pieces), default=0.0)
        undefined = _undefined(name, [(ts, x.value[:, i]) for ts, x in pieces])
        if undefined is not None:
            found.append(undefined)
            continue
        for ts, x in pieces:
            ts, direction = np.asarray(ts), problem.events[i].direction
            known = events.misfit > _MISFIT and i == events.misfit_index  # that is said already
            one = None if known else _unseen(name, ts, x.value[:, i], direction, scale)
            one = _touch(name, ts, x.value[:, i], x.rate[:, i], scale) if one is None else one
            if one is not None:
                found.append(one)
                break
    return found


def _undefined(name: str, pieces: list) -> Finding | None:
    """The first row at which a function is not finite."""
    for ts, value in pieces:
        bad = np.flatnonzero(~np.isfinite(value))
        if bad.size:
            t = float(ts[bad[0]])
            return Finding(
                f"the function of the event {name!r} is not finite at t = {t:.6g} s: what happened "
                "near there was not seen. Look for a division by zero, or a root or logarithm of a "
                "negative number in it.",
                time=t,
            )
    return None


def _unseen(name: str, ts, value, direction: int, scale: float) -> Finding | None:
    """The first crossing between two rows of one part, where an event should have been."""
    side = np.where(np.abs(value) > _TOUCHING * scale, np.sign(value), 0.0)
    step = side[1:] * (side[1:] != side[:-1]) * (side[:-1] != 0)
    crossed = np.flatnonzero(step != 0 if direction == 0 else step == direction)
    if not crossed.size:
        return None
    k = int(crossed[0])
    t = float(ts[k] + (ts[k + 1] - ts[k]) * value[k] / (value[k] - value[k + 1]))
    return Finding(
        f"the function of the event {name!r} crosses zero between rows, at about t = {t:.6g} s, "
        f"where no event was found: it changes quicker than steps resolve. {_SMALLER}",
        time=t,
    )


def _touch(name: str, ts, value, rate, scale: float) -> Finding | None:
    """The first place between rows where a function comes to zero and goes back, on its cubic."""
    h = np.abs(np.diff(ts))
    with np.errstate(all="ignore"):
        a, b = value[:-1], value[1:]
        # Of Hermite's cubic on the unit interval: slope c1 + 2 c2 s + 3 c3 s^2.
        c1, d1 = h * rate[:-1], h * rate[1:]
        c2, c3 = 3 * (b - a) - 2 * c1 - d1, 2 * (a - b) + c1 + d1
        root = np.sqrt(c2**2 - 3 * c1 * c3)
        places = np.stack([-c1 / (c2 + root), -c1 / (c2 - root)])
        inner = a + places * (c1 + places * (c2 + places * c3))
        side = np.sign(a)
        valid = (
            (places > 0) & (places < 1) & np.isfinite(inner) & (side == np.sign(b)) & (side != 0)
        )
        # Towards zero, not away from it.
        least = np.where(valid, inner * side, np.inf)
    at = np.argmin(least, axis=0)
    lowest = np.take_along_axis(least, at[None], 0)[0]
    # Steps were searched for one that goes far below: the cubic, of rows, is wrong there.
    near = np.flatnonzero(np.abs(lowest) <= _TOUCHING * scale)
    if not near.size:
        return None
    k = int(near[0])
    t = float(ts[k] + (ts[k + 1] - ts[k]) * places[at[k], k])
    return Finding(
        f"the function of the event {name!r} touches zero without crossing it at about "
        f"t = {t:.6g} s (grazing): it comes as near as {lowest[k]:.2g}. Whether the event happens "
        "depends on the smallest error.",
        float(lowest[k]),
        t,
    )
