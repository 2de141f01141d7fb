"""A run with events: parts between two of them, one after the other.

Each part is searched first for the time at which a function of an event crosses zero, on the dense
output of its steps, without derivatives. Then it is integrated again to this time, which is a
constant now, and the remaining distance to the zero, the error of dense output, is gone by Newton's
method with short steps along the motion. Derivatives follow from that alone: the next part begins
at a constant time, with the state moved there along the motion behind the event.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp

from jaxdae.events.crossings import FirstCrossing, Rates, Signs, signs, time_tolerance
from jaxdae.events.declaration import Event
from jaxdae.events.records import (
    ACCUMULATED,
    Events,
    GOES_ON,
    LASTING,
    NOT_FINITE,
    OFF_CONSTRAINTS,
    TOO_MANY,
)
from jaxdae.simulation.flow import event_rates, moved, slope
from jaxdae.simulation.problem import Integration, Method, Problem
from jaxdae.simulation.saving import column, row_times
from jaxdae.solvers.counted import IterationTotals
from jaxdae.solvers.grid import Grid
from jaxdae.solvers.monitored import Misfit

# Newton iterations to the zero, from the error of dense output: each doubles the digits.
_ITERATIONS = 3
# Of rates of a gap before and behind an impact, in units of the round-off: less is none.
_NO_RATE = 64
_OCCURRED: Any = diffrax.RESULTS.event_occurred
_SUCCESSFUL: Any = diffrax.RESULTS.successful


class _RunPart(NamedTuple):
    """Where a run is between two parts.

    Args:
        t: time [s], without a derivative.
        y: what is integrated, there.
        time: the same time, as it depends on what is differentiated by.
        done: whether the run has ended.
        result: diffrax's result code.
        times: of the rows [s], infinite where they were not reached.
        rows: what is saved.
        crossed: which functions are zero as they have just crossed it, shape (k,).
        pending: events that happen here, too, shape (k,).
        steps: made, kept, and made in searches; what iterations took, as `IterationTotals` has it.
        events: that happened.
    """

    t: Any
    y: Any
    time: Any
    done: Any
    result: Any
    times: Any
    rows: Any
    crossed: Any
    pending: Any
    steps: Any
    events: Events


class _Zero(NamedTuple):
    """The zero of a function next to the end of a part.

    Args:
        which: number of the event.
        happened: whether there is one.
        t: time [s], with its derivative.
        y: what is integrated, there.
    """

    which: Any
    happened: Any
    t: Any
    y: Any


def integrate(problem: Any, method: Method, y0, solve: Callable) -> tuple[Integration, Events]:
    """Integrate a run with events.

    Args:
        problem: what is simulated.
        method: how; rows are those of `asked_rows`.
        y0: start: the formulation's own state, and works or `None`.
        solve: `solve(problem, method, y)` integrates a part.

    Returns:
        The integration, and the events.
    """
    run = _Run(problem, method, solve)
    start, first = jax.lax.stop_gradient(jnp.asarray(problem.times.start)), y0
    if not method.times_are_known:
        first = moved(problem.motion, problem.times.start, y0, start - problem.times.start)
    # A segment for each event, one for what follows, and those of crossings that do not count.
    events, most = problem.events, method.max_events
    directed = any(x.direction != 0 for x in events)
    length = most + 1 + (most + len(events)) * directed
    state = problem.state_of(problem.times.start, y0)
    records = Events.empty(tuple(x.name for x in events), most, state, start)
    ts = run.row_times
    none = jnp.zeros(len(events), bool)
    part = _RunPart(
        start, first, start, jnp.array(False), _SUCCESSFUL, jnp.full(ts.shape, jnp.inf, ts.dtype),
        jax.tree.map(lambda x: jnp.full((ts.size, *x.shape), jnp.inf, x.dtype), y0),
        none, none, jnp.zeros(3 + len(IterationTotals._fields), int), records,
    )  # fmt: skip

    def advanced(part: _RunPart) -> _RunPart:
        # Parts of members that have ended are of no length, and nothing depends on them.
        on = ~part.done
        ahead = part._replace(time=_where(part.time, on), y=_where(part.y, on))
        ahead = ahead._replace(rows=_where(part.rows, on), events=_where(part.events, on))
        after = run.where(on).part(ahead)
        return jax.tree.map(lambda a, b: jnp.where(on, a, b), after, part)

    # Of a batch all members go on together: a condition for each would be none, and loops that
    # diffrax checkpoints would not have the same number of turns in all.
    @jax.checkpoint
    def go_on(part: _RunPart) -> _RunPart:
        ended = eqxi.unvmap_all(part.done)
        return jax.lax.cond(ended, lambda x: x, advanced, part)

    part, _ = jax.lax.scan(lambda part, _: (go_on(part), None), part, length=length)
    return run.ended(part), run.events_of(part)


class _Run:
    """What parts of a run have in common.

    Args:
        problem: what is simulated.
        method: how.
        solve: integrates a part.
    """

    def __init__(self, problem: Any, method: Method, solve: Callable):
        self.problem, self.motion, self.solve = problem, problem.motion, solve
        # For what has no derivatives: where to search, and which events happen.
        self.fixed = jax.tree.map(_without_derivatives, problem)
        self.fixed_motion = self.fixed.motion
        times = problem.times
        self.end = jax.lax.stop_gradient(jnp.asarray(times.end))
        self.sign = jnp.where(times.start <= times.end, 1.0, -1.0).astype(self.end.dtype)
        self.span = jnp.abs(self.end - jax.lax.stop_gradient(times.start))
        self.asked, self.has_end, self.last_is_end = asked_rows(problem, method)
        self.row_times = jax.lax.stop_gradient(jnp.asarray(self.asked, self.end.dtype))
        steps, grid = method.max_steps, times.grid
        if grid is not None:  # steps end at its times, wherever a part begins
            control = Grid(jnp.asarray(grid), method.direction)
            method = method._replace(stepsize_controller=control)
            steps = steps + 1
        self.method = method._replace(saveat=None, only_end=False, picked=None, max_steps=steps)
        self.search = self.method._replace(adjoint=diffrax.ForwardMode())
        events = problem.events
        self.directions = jnp.array([x.direction for x in events])
        self.ends_run = jnp.array([x.reset is None for x in events])
        self.one_sided = jnp.array([x.one_sided for x in events])
        # Found where a part is traced.
        self.example: dict[str, Any] = {}

    def where(self, on) -> "_Run":
        """The same run, that depends on nothing unless `on` is true."""
        run = copy.copy(self)
        run.problem, run.method = _where((self.problem, self.method), on)
        run.motion = run.problem.motion
        return run

    # One part.

    def part(self, part: _RunPart) -> _RunPart:
        """One part of the run, and the event at its end."""
        ready = jnp.any(part.pending)
        here = jax.lax.stop_gradient((part.t, part.y))
        begun = self._rates(*here)
        behind = signs(begun, part.t, self.span, part.crossed)
        behind = behind._replace(sign=jnp.where(part.pending, -behind.sign, behind.sign))
        touching = self.one_sided & behind.known & (behind.sign < 0)
        undefined = ~jnp.isfinite(begun.value)
        wrong = jnp.any(touching | undefined)
        target = jnp.where(ready | wrong | part.done, part.t, self.end)
        crossing = FirstCrossing.behind(self.fixed.events, behind, part.t)
        search = self._integrated(self.fixed, self.search, crossing, *here, target, None)
        seen = search.result == _OCCURRED
        until = jax.lax.stop_gradient(jnp.where(seen, search.end_time, target))
        integration, end = self._again(part, until)
        # A part that was not searched to its end has none.
        broken = ~seen & (search.result != _SUCCESSFUL) & (integration.result == _SUCCESSFUL)
        result = diffrax.RESULTS.where(broken, search.result, integration.result)
        integration = integration._replace(result=result)
        okay = (integration.result == _SUCCESSFUL) & ~wrong
        found = self._zero(part, behind, until, end, seen, okay)
        times, rows = self._rows(part, integration, end, until, found)
        stats = integration.stats
        self.example["counts"] = all(x in stats for x in IterationTotals.names())
        steps = [stats[x] for x in ("num_steps", "num_accepted_steps")]
        steps += [search.stats["num_steps"], *(stats.get(x, 0) for x in IterationTotals.names())]
        steps = jnp.stack([jnp.asarray(x, int) for x in steps])
        unwatched = ~behind.known & (part.events.unwatched == jnp.inf)
        events = eqx.tree_at(
            lambda x: x.unwatched, part.events, jnp.where(unwatched, here[0], part.events.unwatched)
        )
        events = _with_misfit(events, search.misfit)
        code = jnp.where(jnp.any(undefined), NOT_FINITE, jnp.where(wrong, LASTING, GOES_ON))
        culprit = jnp.argmax(jnp.where(jnp.any(undefined), undefined, touching))
        events = self._failed(events, code, culprit, begun.value[culprit])
        part = part._replace(times=times, rows=rows, steps=part.steps + steps, events=events)
        return self._behind(part, behind, integration, end, found)

    def _integrated(self, problem: Problem, method: Method, event, t, y, until, ts) -> Integration:
        times = problem.times._replace(start=t, end=until, grid=None, saved=ts)
        if ts is None:
            method = method._replace(saveat=diffrax.SaveAt(t1=True))
        problem = problem._replace(times=times, event=event, events=())
        return self.solve(problem, method, y)

    def _again(self, part: _RunPart, until) -> tuple[Integration, Any]:
        """A part integrated to a time, and what is integrated there."""
        inside = jnp.clip(self.sign * self.row_times, self.sign * part.t, self.sign * until)
        ts, work = self.sign * inside, part.y[1] is not None
        if work:  # of which integrations give no end but in a row
            ts = jnp.concatenate([ts, until[None]])
        found = self._integrated(
            self.problem, self.method, None, part.t, part.y, until, ts if ts.size else None
        )
        self.example |= {"backend": found.backend, "why_not": found.why_not}
        rows = found.rows
        end = found.end, jax.tree.map(lambda x: x[-1], rows[1])
        count = self.row_times.size
        found = found._replace(ts=found.ts[:count], rows=jax.tree.map(lambda x: x[:count], rows))
        return found, end

    def _rates(self, t, y) -> Rates:
        """Functions of all events and their rates along the motion, without derivatives."""
        t, y = jax.lax.stop_gradient((t, y))
        return event_rates(self.fixed_motion, t, y, self.sign)

    def _zero(self, part: _RunPart, behind: Signs, until, end, seen, okay) -> _Zero:
        """The event at the end of a part, and where its function is zero to round-off."""
        at_end, tolerance = self._rates(until, end), time_tolerance(until)
        # At the end of the run a function that is zero but for the tolerance of times counts.
        near = (at_end.distance <= tolerance) & (behind.sign * at_end.rate < 0) & behind.known
        near &= (jnp.abs(until - part.t) > tolerance) | ~behind.zero
        last = ~seen & (until == self.end) & jnp.any(near)
        candidates = jnp.where(last, near, behind.known)
        candidates = jnp.where(jnp.any(part.pending), part.pending, candidates)
        distance = jnp.where(candidates, at_end.distance, jnp.inf)
        which = jnp.argmin(distance)
        happened = okay & (seen | last | jnp.any(part.pending))
        limit = 0.25 * jnp.abs(until - part.t) + tolerance

        def closer(at, _):
            t, y = at
            found = event_rates(self.motion, t, y, self.sign)
            rate, value = found.rate[which], found.value[which]
            usable = happened & (rate != 0) & (jnp.abs(value) <= limit * jnp.abs(rate))
            step = jnp.where(usable, -self.sign * value / jnp.where(usable, rate, 1.0), 0.0)
            return (t + step, moved(self.motion, t, y, step)), None

        (t, y), _ = jax.lax.scan(closer, (until, end), length=_ITERATIONS)
        y = self.motion.on_constraints(t, y, self.method.solver)
        return _Zero(which, happened, t, y)

    def _rows(self, part: _RunPart, integration: Integration, end, until, found: _Zero):
        """Rows of the run with those of a part."""
        ts, sign = self.row_times, self.sign
        event = jax.lax.stop_gradient(found.t)
        last = jnp.where(found.happened, sign * jnp.minimum(sign * event, sign * until), until)
        first = sign * ts >= sign * part.t
        inside = first & (sign * ts <= sign * last) & jnp.isfinite(integration.ts)
        # What dense output of the search left out; so near to the end a tangent is exact.
        beyond = found.happened & (sign * ts > sign * until) & (sign * ts <= sign * event)

        def merged(kept, new, end, rate):
            away = (ts - until).reshape(-1, *(1,) * end.ndim)
            extended = end[None] + jnp.where(column(beyond, kept), away, 0.0) * rate[None]
            new = jnp.where(column(inside, new), new, extended)
            return jnp.where(column(inside | beyond, new), new, kept)

        rate = slope(self.motion, until, end)
        rows = jax.tree.map(merged, part.rows, integration.rows, end, rate)
        return jnp.where(inside | beyond, ts, part.times), rows

    def _behind(
        self, part: _RunPart, behind: Signs, integration: Integration, end, found: _Zero
    ) -> _RunPart:
        """The run behind the event at the end of a part, or at its own end."""
        problem, events = self.motion, self.problem.events
        which, happened, t, y = found
        one, crossing = jnp.arange(len(events)) == which, -behind.sign.astype(int)
        counts = (self.directions == 0) | (self.directions == crossing)
        counted = happened & counts[which] & (part.events.count < part.events.times.size)
        too_many = happened & counts[which] & ~counted
        terminal = counted & self.ends_run[which]
        before = problem.state_of(t, y)
        given = _after(events, which, counted, t, before)
        after = problem.behind(t, given)
        inner = problem.own_state(t, after, y[0])
        changed = counted & ~terminal
        y_after = jax.tree.map(lambda a, b: jnp.where(changed, a, b), inner, y[0]), y[1]
        at, now = (self._rates(t, x) for x in (y, y_after))
        tolerance = time_tolerance(t)
        # What falls to zero here as well happens next.
        pending = happened & counts & ~one & behind.known & (behind.sign * at.rate < 0)
        pending &= (at.distance <= tolerance) & (now.distance <= tolerance)
        pending &= (behind.sign * now.rate < 0) & ~part.crossed
        begins = jnp.abs(jax.lax.stop_gradient(t) - part.t) <= tolerance
        crossed = (one & happened) | (part.crossed & begins)
        crossed &= (now.distance <= tolerance) | (now.value == at.value)
        records = self._recorded(part, counted, t, which, (before, after), at)
        ended = integration.result == _SUCCESSFUL
        code, amount = self._reset_failure(which, changed, t, (before, given, after), (at, now))
        undefined = ended & ~jnp.all(jnp.isfinite(now.value))
        nameless = jnp.where(undefined, jnp.argmin(jnp.isfinite(now.value)), which)
        code = jnp.where(undefined & (code == GOES_ON), NOT_FINITE, code)
        since = self._since(part.events, which, t)
        again = (code == GOES_ON) & counted & (since <= tolerance)
        code, amount = jnp.where(again, ACCUMULATED, code), jnp.where(again, since, amount)
        code = jnp.where(too_many, TOO_MANY, code)
        culprit = jnp.where(code == NOT_FINITE, nameless, which)
        records = self._failed(records, code, culprit, amount)
        stopped = ~happened | terminal | (records.ending != GOES_ON)
        # The next part begins at a time without a derivative, and no later than the end.
        fixed = jax.lax.stop_gradient(t)
        begin = self.sign * jnp.minimum(self.sign * fixed, self.sign * self.end)
        y_next = moved(problem, t, y_after, begin - t)
        pick = lambda on, event, end: jnp.where(happened, jnp.where(stopped, event, on), end)  # noqa: E731
        y_next = jax.tree.map(pick, y_next, y_after, end)
        time = jnp.where(happened, t, integration.end_time)
        result = diffrax.RESULTS.where(
            happened | (records.ending != GOES_ON), _OCCURRED, integration.result
        )
        return _RunPart(
            jnp.where(happened, begin, jax.lax.stop_gradient(time)), y_next, time, stopped, result,
            part.times, part.rows, crossed, pending, part.steps, records,
        )  # fmt: skip

    def _reset_failure(self, which, changed, t, states, found: tuple[Rates, Rates]):
        """What is wrong behind a reset, as a number, and by how much."""
        (before, given, after), (at, now) = states, found
        eps = float(jnp.finfo(now.value.dtype).eps)
        rest = now.rate[which] <= _NO_RATE * eps * jnp.abs(at.rate[which])
        rests = changed & self.one_sided[which] & rest & (now.curvature[which] <= 0)
        rests &= now.value[which] == at.value[which]  # else it is another function from here on
        code = jnp.where(rests, LASTING, GOES_ON)
        amount = now.curvature[which]
        tolerance = self.method.reset_tolerance
        off_by = None if tolerance is None else self.motion.off_constraints(t, before, given)
        if off_by is not None:
            old, new, scale = off_by
            off = changed & (new > tolerance * scale) & (new > 2 * old)
            code, amount = jnp.where(off, OFF_CONSTRAINTS, code), jnp.where(off, new, amount)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in jax.tree.leaves(after)]))
        return jnp.where(changed & ~finite, NOT_FINITE, code), amount

    def _since(self, events: Events, which, t):
        """Time [s] since an event happened before."""
        since = jnp.where(events.indices == which, jnp.abs(t - events.times), jnp.inf)
        return jnp.min(since)

    # What is kept.

    def _failed(self, events: Events, code, culprit, amount) -> Events:
        """Events with the reason for an early end; the first is kept."""
        new = (code != GOES_ON) & (events.ending == GOES_ON)
        found = (code, culprit, jax.lax.stop_gradient(amount))
        fields = lambda x: (x.ending, x.culprit, x.amount)  # noqa: E731
        old = fields(events)
        kept = tuple(jnp.where(new, a, b).astype(b.dtype) for a, b in zip(found, old, strict=True))
        return eqx.tree_at(fields, events, kept)

    def _recorded(self, part: _RunPart, counted, t, which, states, at: Rates) -> Events:
        """Events with one more."""
        events = part.events
        place = jnp.where(counted, events.count, events.times.size)  # behind the last: dropped
        put = lambda x, new: x.at[place].set(new, mode="drop")  # noqa: E731
        previous = jnp.where(
            events.count > 0, events.times[jnp.maximum(events.count - 1, 0)], jnp.inf
        )
        fixed = jax.lax.stop_gradient(t)
        together = jnp.abs(fixed - jax.lax.stop_gradient(previous)) <= time_tolerance(fixed)
        together &= events.indices[jnp.maximum(events.count - 1, 0)] != which
        before, after = states
        return Events(
            events.names, put(events.times, t), put(events.indices, which),
            jax.tree.map(put, events.before, before), jax.tree.map(put, events.after, after),
            put(events.rates, at.rate[which]), put(events.curvatures, at.curvature[which]),
            put(events.distances, at.distance[which]), put(events.together, together),
            events.unwatched, events.misfit, events.misfit_index, events.misfit_time,
            events.ending, events.culprit, events.amount,
        )  # fmt: skip

    def ended(self, part: _RunPart) -> Integration:
        """The run as one integration."""
        times = self.problem.times
        rows, ts, end, time = part.rows, part.times, part.y, part.time
        if not self.method.times_are_known:
            rows, ts = self._rows_of_times(rows, ts)
            late = jnp.where(part.result == _SUCCESSFUL, times.end - self.end, 0.0)
            end, time = moved(self.motion, time, end, late), time + late
        ts, rows = self._with_end(ts, rows, time, end)
        made, kept, searched, *counts = part.steps
        stats = {
            "num_steps": made, "num_accepted_steps": kept, "num_rejected_steps": made - kept,
            "num_search_steps": searched, "max_steps": self.method.max_steps,
        }  # fmt: skip
        example = self.example
        if example["counts"]:
            stats |= IterationTotals(*counts).stats()
        return Integration(
            example["backend"], ts, rows, time, end[0], stats, part.result,
            why_not=example["why_not"],
        )  # fmt: skip

    def _with_end(self, ts, rows, time, end):
        """Rows, and one for the end of the run behind them where it is asked for."""
        if not self.has_end:
            return ts, rows
        place = jnp.sum(jnp.isfinite(ts))
        if self.last_is_end:  # then only an early end has no row, and there is place for one
            early = ts[jnp.maximum(place - 1, 0)] != time
            put = lambda x, new: x.at[jnp.where(early, place, x.shape[0])].set(new, mode="drop")  # noqa: E731
        else:
            put = lambda x, new: (  # noqa: E731
                jnp.concatenate([x, jnp.full_like(new, jnp.inf)[None]]).at[place].set(new)
            )
        return put(ts, time), jax.tree.map(put, rows, end)

    def _rows_of_times(self, rows, ts):
        """Rows with derivatives by their times."""
        reached, asked = jnp.isfinite(ts), jnp.asarray(self.asked, ts.dtype)
        late = jnp.where(reached, asked - self.row_times, 0.0)
        safe = jnp.where(reached, self.row_times, self.problem.times.start)
        first = jax.tree.map(lambda x: jnp.where(column(reached, x), x, 0.0), rows)
        move = jax.vmap(lambda t, y, late: moved(self.motion, t, y, late))
        later = move(safe, first, late)
        keep = lambda a, b: jnp.where(column(reached, a), a, b)  # noqa: E731
        return jax.tree.map(keep, later, rows), jnp.where(reached, asked, ts)

    def events_of(self, part: _RunPart) -> Events:
        """Events of the run; where parts were used up, that is said."""
        code = jnp.where(part.done, GOES_ON, TOO_MANY)
        return self._failed(part.events, code, -1, jnp.zeros((), self.end.dtype))


def asked_rows(problem: Problem, method: Method) -> tuple[Any, bool, bool]:
    """Times of rows of a run with events; whether its end has one, and is the last of them."""
    times, saveat = problem.times, method.saveat
    if saveat is None:
        return times.saved, False, False
    sub: Any = saveat.subs
    at_end = bool(sub.steps) and (len(times.grid) - 1) % sub.steps == 0
    return row_times(sub, times), bool(sub.t1), at_end


def _where(tree, on):
    """A tree as it is, that depends on nothing unless `on` is true, whatever derivatives are."""
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    arrays = jax.tree.map(lambda x: jnp.where(on, x, jax.lax.stop_gradient(x)), arrays)
    return eqx.combine(arrays, rest)


def _without_derivatives(x):
    return jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x


def _after(events: tuple[Event, ...], which, counted, t, before: Any) -> Any:
    """The state behind an event; unchanged where none counts."""
    number = jnp.where(counted, which, len(events))
    # Functions, as methods of modules with traced arrays have no hash.
    changes: list[Callable] = [lambda x=x: x.after(t, before) for x in events]
    return jax.lax.switch(number, [*changes, lambda: before])


def _with_misfit(events: Events, found: Misfit) -> Events:
    """Events with the largest misfit so far."""
    worse = found.size > events.misfit
    fields = lambda x: (x.misfit, x.misfit_index, x.misfit_time)  # noqa: E731
    pick = lambda new, old: jnp.where(worse, jax.lax.stop_gradient(new), old).astype(old.dtype)  # noqa: E731
    return eqx.tree_at(fields, events, jax.tree.map(pick, tuple(found), fields(events)))
