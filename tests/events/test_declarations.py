"""What events are refused, in words, and events in files."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.bouncing import BALL, bounced
from helpers.exported import Pendulum
from helpers.spring import Spring
from jaxdae import Event, SimulationError, Trajectory

START = jaxdae.State(jnp.ones(1), jnp.zeros(1))


# Of any arguments, also of those that they refuse.
EVENT: Any = Event
IMPACT: Any = jaxdae.impact


def run(*events, system: Any = BALL, state=START, **how) -> Any:
    settings = {"t1": 1.0, "max_events": 3} | how
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, events=events, **settings)


def height(t, q, v, w):
    return q[0]


def back(t, q, v, w):
    return q, -v, w


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: EVENT(3.0), "the function of an event is 3.0; give a callable"),
        (lambda: Event(jaxdae.PD), "the function of an event is <class"),
        (lambda: EVENT(height, reset=0), "the reset of an event is 0; give a callable"),
        (lambda: Event(height, name=""), "the name of an event is ''; give a text"),
        (lambda: IMPACT(3, BALL.gap, 0.5), "system is 3; give an instance of your"),
        (lambda: IMPACT(BALL, 0.1, 0.5), "gap is 0.1; give a callable"),
        (lambda: run(height), "events holds <function height .*; give jaxdae.Event"),
    ],
)
def test_other_kinds_are_refused(make, words):
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize("direction", [2, True, -1.5])
def test_another_direction_is_refused(direction):
    with pytest.raises(ValueError, match=r"the direction of an event is .*; give -1 where"):
        Event(height, direction=direction)


@pytest.mark.parametrize("restitution", [-0.1, 1.5, np.nan, np.ones(2)])
def test_a_restitution_outside_of_zero_to_one_is_refused(restitution):
    with pytest.raises(ValueError, match=r"restitution is .*; give a number from 0"):
        jaxdae.impact(BALL, BALL.gap, restitution)


@pytest.mark.parametrize(
    ("events", "how", "words"),
    [
        ([Event(height), Event(height)], {}, "two events are named 'height'; give each"),
        ([Event(height)], {"max_events": 0}, "max_events must be a positive integer; got 0"),
        ([Event(height)], {"max_events": 2.0}, "max_events must be a positive integer; got 2.0"),
        ([Event(lambda t, q, v, w: q)], {}, r"'event' returned shape \(1,\); it must return one"),
        ([Event(lambda t, q, v, w: None)], {}, "'event' returned NoneType; it must return one"),
        ([Event(lambda t, q, v, w: q[0] > 0)], {}, r"'event' returned booleans \(bool\)"),
        ([Event(lambda t, q: q[0])], {}, r"it must take \(t, q, v, w\)"),
        ([Event(lambda t, q, v, w: q[1])], {}, "'event' reads"),
        (
            [Event(height, reset=lambda t, q, v, w: (q, v))],
            {},
            r"returned a tuple of shapes \(1,\), \(1,\); it must return \(q, v, w\) of shapes",
        ),
        ([Event(height, reset=lambda t, q, v, w: v)], {}, r"returned a \w+; it must return"),
        (
            [Event(height, reset=lambda t, q, v, w: (q, v > 0, w))],
            {},
            "the reset of the event 'height' returned booleans",
        ),
        ([Event(height)], {"progress": True}, "shows no progress; leave progress out"),
        ([Event(height)], {"saveat": diffrax.SaveAt(dense=True)}, "events saves plain states"),
        (
            [Event(height)],
            {"saveat": diffrax.SaveAt(t1=True, fn=lambda t, y, args: y.q)},
            "events saves plain states",
        ),
        ([Event(height)], {"saveat": diffrax.SaveAt(steps=True)}, "needs fixed steps, dt, and no"),
    ],
)
def test_what_does_not_fit_is_refused(events, how, words):
    with pytest.raises(ValueError, match=words):
        run(*events, **how)


@pytest.mark.parametrize("part", ["function", "reset", "gap"])
def test_functions_that_close_over_traced_values_are_refused(part):
    def end(x):
        event = {
            "function": lambda: Event(lambda t, q, v, w: q[0] - x),
            "reset": lambda: Event(height, reset=lambda t, q, v, w: (q, x * v, w)),
            "gap": lambda: jaxdae.impact(BALL, lambda t, q: q[0] - x, 0.5),
        }[part]()
        return run(event).final_time

    with pytest.raises(ValueError, match=r"the event '\w+' closes over a value that is being"):
        jax.grad(end)(0.5)


class Kick(eqx.Module):
    """A reset that stretches coordinates and adds to velocities."""

    stretch: jax.Array = eqx.field(converter=jnp.asarray)
    push: jax.Array = eqx.field(converter=jnp.asarray)

    def __call__(self, t, q, v, w):
        return self.stretch * q, v + self.push, w


@pytest.mark.slow
def test_a_reset_off_the_constraints_ends_the_run_in_words():
    system = Pendulum()
    start = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
    kick = Event(height, reset=Kick(1.0, 1.0), name="kick")
    words = r"at t = .* s: the reset of the event 'kick' returned a state off the constraints, 'd\("
    with pytest.raises(SimulationError, match=words):
        run(kick, system=system, state=start, t1=2.0)
    longer = Event(height, reset=Kick(1.1, 0.0), name="kick")
    with pytest.raises(SimulationError, match=r"constraints, '.*' = 0\.21\. Return velocities"):
        run(longer, system=system, state=start, t1=2.0)
    # A stabilization may take it back.
    law = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))
    found = jaxdae.simulate(
        system, law, start, t1=2.0, events=kick, max_events=3, start_tolerance=None
    )
    assert found.success


class Root(eqx.Module):
    """The square root of what the height is over a level."""

    level: jax.Array = eqx.field(converter=jnp.asarray)

    def __call__(self, t, q, v, w):
        return jnp.sqrt(q[0] - self.level)


@pytest.mark.slow
def test_a_function_or_a_reset_that_is_not_finite_ends_the_run_in_words():
    root = Event(Root(2.0), name="root")
    with pytest.raises(SimulationError, match=r"event 'root' is not finite there\. Look for"):
        run(root)
    late = Event(Root(0.5), name="root")
    with pytest.raises(SimulationError, match="event 'root' is not finite there"):
        run(late, t1=0.4)
    pole = Event(height, reset=lambda t, q, v, w: (q, v / (0 * v), w), name="pole")
    with pytest.raises(SimulationError, match="event 'pole' is not finite there"):
        run(pole)


class Counted(eqx.Module):
    """A level that is counted, of which no kernel is made."""

    tenths: jax.Array

    def __call__(self, t, q, v, w):
        return q[0] - self.tenths / 10


def test_a_function_that_is_not_finite_for_a_while_is_pointed_out():
    hole = Event(lambda t, q, v, w: 2.0 + jnp.sqrt((t - 0.5) ** 2 - 0.01), name="hole")
    with pytest.warns(RuntimeWarning, match=r"'hole' is not finite at t = 0\.4\d* s"):
        run(hole, t1=1.0)


@pytest.mark.slow
def test_an_event_that_no_kernel_has_is_left_to_the_plain_backend():
    """Said by the run; the native backend alone refuses."""
    event = Event(Counted(jnp.array(5)), name="half")
    found = run(event)
    np.testing.assert_allclose(found.final_time, np.sqrt(1 / 9.81), rtol=0, atol=1e-12)
    assert found.backend == "plain"
    assert "holds no floating-point numbers" in found.why_not_native
    with pytest.raises(jaxdae.BackendError, match="holds no floating-point numbers"):
        run(event, backend="native")


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
def test_files_keep_events(tmp_path, batch):
    if batch:
        found = jax.vmap(lambda h: bounced(h, throw=False, max_events=6))(jnp.array([1.0, 2.0]))
    else:
        found = bounced(max_events=7)
    found.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    assert read.events.names == found.events.names == ("impact",)
    for name in ("times", "indices", "rates", "together", "unwatched"):
        np.testing.assert_array_equal(getattr(read.events, name), getattr(found.events, name))
    np.testing.assert_array_equal(read.events.before.v, found.events.before.v)
    np.testing.assert_array_equal(read.events.after.q, found.events.after.q)
    np.testing.assert_array_equal(read.success, found.success)
    np.testing.assert_array_equal(read.events.count, found.events.count)
    assert "impact × " in repr(read)
    if batch:
        member = read[1]
        np.testing.assert_array_equal(member.events.times, found.events.times[1])
        assert member.events.names == ("impact",)


@pytest.mark.slow
def test_a_file_says_why_events_ended_a_run(tmp_path):
    bounced(max_events=2, throw=False).save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    assert not read.success
    assert "more than max_events = 2" in repr(read)
    run(Event(lambda t, q, v, w: q[0] - 0.5, name="half")).save(tmp_path / "ended.npz")
    read = Trajectory.load(tmp_path / "ended.npz")
    assert read.success
    assert read.result == diffrax.RESULTS.event_occurred
    assert "ended by an event" in repr(read)


def test_runs_without_events_have_none(tmp_path):
    found = jaxdae.simulate(Spring(), jaxdae.Multipliers(), START, t1=0.1)
    assert found.events is None
    found.save(tmp_path / "run.npz")
    assert Trajectory.load(tmp_path / "run.npz").events is None


def test_counts_of_a_batch_are_arrays():
    found = jax.vmap(lambda h: bounced(h, throw=False, max_events=6))(jnp.array([1.0, 2.0]))
    assert found.events.counts["impact"].tolist() == [6, 3]
    with pytest.raises(TypeError, match="only events of a single run"):
        len(found.events)
