"""Which crossings are events: directions, starts, ends, touches, several at once, too many."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.bouncing import BALL, Ball, bounced, impacts
from helpers.spring import Level, Spring
from helpers.systems import Point, UnitMass
from jaxdae import Event, SimulationError

RATE = 2.0
SPRING = Spring(RATE**2)
TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)


def first(t, q, v, w):
    """The first coordinate."""
    return q[0]


def speed(t, q, v, w):
    """The first velocity."""
    return v[0]


def kept(t, q, v, w):
    """Everything as it is: such an event is counted and changes nothing."""
    return q, v, w


def swung(*events, start=(1.0, 0.0), t1=4.0, **how):
    """`q = cos(2 t)` from the default start."""
    state = jaxdae.State(jnp.array(start[:1]), jnp.array(start[1:]))
    settings = {"max_events": 6, "stepsize_controller": TIGHT, "t1": t1} | how
    return jaxdae.simulate(SPRING, jaxdae.Multipliers(), state, events=events, **settings)


# Zeros of cos(2 t).
ZEROS = (np.arange(6) + 0.5) * np.pi / RATE


@pytest.mark.parametrize("backend", [pytest.param("plain", marks=pytest.mark.slow), "native"])
def test_a_terminal_event_ends_the_run_at_its_exact_time(backend):
    run = swung(Event(lambda t, q, v, w: q[0] - 0.2, name="level"), backend=backend)
    exact = np.arccos(0.2) / RATE
    np.testing.assert_allclose(run.events.times[0], exact, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.final_time, exact, rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.final_state.q[0], 0.2, rtol=0, atol=1e-14)
    assert run.success
    assert run.result == diffrax.RESULTS.event_occurred
    assert "ended by an event at t = 0.68" in repr(run)
    assert "level × 1" in repr(run)
    assert jnp.isinf(run.ts[run.ts > exact]).all()
    np.testing.assert_array_equal(run.events.before.v[0], run.events.after.v[0])


@pytest.mark.slow
@pytest.mark.parametrize("sub", [{"steps": True}, {"steps": 2}, {"ts": jnp.array([0.3, 0.9])}])
def test_an_early_end_has_its_row(sub):
    fixed = {"dt": 0.1, "stepsize_controller": None}
    run = swung(Event(first), t1=1.2, saveat=diffrax.SaveAt(t1=True, **sub), **fixed)
    reached = run.ts[jnp.isfinite(run.ts)]
    assert reached[-1] == run.final_time < ZEROS[0] + 1e-6
    assert (jnp.diff(reached) > 0).all()
    later = swung(Event(first), t1=0.6, saveat=diffrax.SaveAt(t1=True, steps=2), **fixed)
    np.testing.assert_allclose(later.ts, [0.2, 0.4, 0.6], rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saveat", "work"),
    [(diffrax.SaveAt(t1=True), True), (diffrax.SaveAt(ts=jnp.array([0.3, 0.9])), False)],
)
def test_a_run_of_few_rows_that_ends_early_is_watched(saveat, work):
    """By rows up to its end alone: nothing is found of it."""
    run = swung(Event(first), t1=1.2, saveat=saveat, work=work)
    np.testing.assert_allclose(run.final_time, ZEROS[0], rtol=0, atol=1e-10)
    assert jnp.isfinite(run.ts[0])
    assert "residuals" in repr(run)


@pytest.mark.slow
def test_times_at_the_default_tolerance_are_those_of_the_steps():
    """Not of dense output, which is off by 1e-6: to the tolerance of the steps, 1e-8."""
    run = swung(Event(first, reset=kept), stepsize_controller=None)
    np.testing.assert_allclose(run.events.times[:2], ZEROS[[0, 2]], rtol=0, atol=1e-8)


@pytest.mark.parametrize(("direction", "places"), [(-1, [0, 2]), (1, [1]), (0, [0, 1, 2])])
def test_directions_choose_among_crossings(direction, places):
    run = swung(Event(first, direction=direction, reset=kept))
    assert len(run.events) == len(places)
    np.testing.assert_allclose(run.events.times[: len(places)], ZEROS[places], rtol=0, atol=1e-10)
    np.testing.assert_allclose(run.q[:, 0], np.cos(RATE * run.ts), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_several_events_are_counted_by_name():
    run = swung(
        Event(first, direction=0, reset=kept, name="middle"),
        Event(speed, direction=0, reset=kept, name="turn"),
        Event(lambda t, q, v, w: q[0] - 1.5, name="never"),
    )
    assert {name: int(x) for name, x in run.events.counts.items()} == {
        "middle": 3, "turn": 2, "never": 0,
    }  # fmt: skip
    # The turn at the start is none: the velocity leaves zero there.
    np.testing.assert_allclose(
        run.events.times[:5], (np.arange(5) + 1) * np.pi / 4, rtol=0, atol=1e-10
    )
    assert run.events.indices[:5].tolist() == [0, 1, 0, 1, 0]
    middle = run.events.times_of("middle")
    np.testing.assert_allclose(middle[jnp.isfinite(middle)], ZEROS[:3], rtol=0, atol=1e-10)
    assert "never did not happen" in repr(run)
    with pytest.raises(KeyError, match="no event is named 'end'; there are middle, turn, never"):
        run.events.times_of("end")


def test_an_event_that_never_happens_is_no_error():
    run = swung(Event(lambda t, q, v, w: q[0] + 2.0, name="far"))
    assert run.success
    assert len(run.events) == 0
    assert run.final_time == 4.0
    assert "far did not happen" in repr(run)
    assert "reached t = 4" in repr(run)


@pytest.mark.slow
@pytest.mark.parametrize("direction", [-1, 1, 0])
def test_a_function_that_is_zero_at_the_start_counts_when_it_is_back(direction):
    """Upward from zero, `sin(2 t)`: down after half a period, up after all of it."""
    run = swung(Event(first, direction=direction), start=(0.0, RATE))
    expected = np.pi / RATE * (2 if direction == 1 else 1)
    np.testing.assert_allclose(run.final_time, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_an_event_at_the_end_counts():
    """At the last time but for the tolerance of times, from both sides; and the run succeeds."""
    for t1 in (ZEROS[0], ZEROS[0] * (1 - 1e-13), ZEROS[0] * (1 + 1e-13)):
        run = swung(Event(first, reset=lambda t, q, v, w: (q, -v, w), name="back"), t1=t1)
        assert len(run.events) == 1
        assert run.success
        assert run.final_time == t1
        np.testing.assert_allclose(run.final_state.v[0], RATE, rtol=0, atol=1e-10)
        np.testing.assert_allclose(run.v[-1, 0], RATE, rtol=0, atol=1e-10)


def test_an_event_of_the_time_alone():
    run = swung(Event(lambda t, q, v, w: 0.7 - t, name="clock"))
    np.testing.assert_allclose(run.final_time, 0.7, rtol=0, atol=1e-14)


class Heater(UnitMass):
    """A point that an actuator pushes: the state of the actuator is the switch."""

    def force(self, t, q, v, w, u):
        return w - v

    def actuator_rate(self, t, q, v, w, u):
        return 0 * w


@pytest.mark.slow
def test_resets_of_actuator_states_switch_a_mode():
    """Between two levels, and the function stays on the side on which it came."""
    switch = lambda value: lambda t, q, v, w: (q, v, value + 0 * w)  # noqa: E731
    high = Event(lambda t, q, v, w: q[0] - 1.0, direction=1, reset=switch(-1.0), name="high")
    low = Event(lambda t, q, v, w: q[0] - 0.5, direction=-1, reset=switch(1.0), name="low")
    state = jaxdae.State(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
    run = jaxdae.simulate(
        Heater(), jaxdae.Multipliers(), state, t1=12.0, events=[high, low],
        max_events=20,
    )  # fmt: skip
    count = len(run.events)
    assert count > 3
    names = [run.events.names[i] for i in run.events.indices[:count].tolist()]
    assert names == ["high", "low"] * (count // 2) + ["high"] * (count % 2)
    # q + v = w t + constant between switches: to the tolerance of steps, 1e-8.
    ends = run.events.before.q[:count, 0] + run.events.before.v[:count, 0]
    lasting = jnp.diff(run.events.times[:count], prepend=0.0)
    signs = np.resize([1.0, -1.0], count)
    np.testing.assert_allclose(jnp.diff(ends, prepend=0.0), signs * lasting, rtol=0, atol=1e-6)


BOX = Point()


def corner(ahead):
    """Two walls that a point meets, one a time ahead of the other."""
    right = jaxdae.impact(BOX, lambda t, q: 1.0 - q[0], 0.5, name="right")
    top = jaxdae.impact(BOX, lambda t, q: 1.0 + ahead - q[1], 1.0, name="top")
    state = jaxdae.State(jnp.zeros(2), jnp.ones(2))
    return jaxdae.simulate(
        BOX, jaxdae.Multipliers(), state, t1=1.5, events=[right, top], max_events=4
    )


@pytest.mark.slow
def test_two_events_at_once_both_happen_and_are_pointed_out():
    with pytest.warns(RuntimeWarning, match="'right' and 'top' happened at the same time, t = 1 s"):
        run = corner(0.0)
    assert run.events.indices[:3].tolist() == [0, 1, -1]
    np.testing.assert_allclose(run.final_state.v, [-0.5, -1.0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(run.final_state.q, [0.75, 0.5], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_two_events_a_moment_apart_are_two():
    run = corner(1e-6)
    assert run.events.indices[:3].tolist() == [0, 1, -1]
    np.testing.assert_allclose(jnp.diff(run.events.times[:2]), [1e-6], rtol=1e-8)
    np.testing.assert_allclose(run.final_state.v, [-0.5, -1.0], rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [0.0, 1e-9])
def test_a_touch_is_pointed_out(depth):
    """The turning point of `cos(2 t)` just at a level, without an event, and just below it."""
    event = Event(Level(jnp.array(depth - 1.0), jnp.array(0.0)), reset=kept, name="level")
    with pytest.warns(RuntimeWarning, match="'level'.*grazing"):
        swung(event, max_events=20)


@pytest.mark.parametrize("direction", [0, 1])
def test_a_passage_and_back_within_one_step_is_two_crossings(direction):
    """`cos(2 t)` below a level and above it again, at both times, to the error of long steps."""
    run = swung(
        Event(lambda t, q, v, w: q[0] + 0.98, direction=direction, reset=kept, name="level"),
        stepsize_controller=None, dt=0.35, t1=2.4, solver=diffrax.Dopri8(),
    )  # fmt: skip
    fall = np.arccos(-0.98) / RATE
    times = [np.pi - fall] if direction == 1 else [fall, np.pi - fall]
    assert len(run.events) == len(times)
    np.testing.assert_allclose(run.events.times[: len(times)], times, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1 - 1e-4, 1 - 1e-6])
def test_short_passages_have_exact_times(level):
    """Of 14 and 1.4 ms, in adaptive steps of a tolerance of 1e-12, forward and backward in time.

    The slope at the level, the square root of the depth, divides the errors of the function.
    """
    fall = np.arccos(-level) / RATE
    event = Event(Level(jnp.array(-level), jnp.array(0.0)), direction=0, reset=kept, name="level")
    for sign in (1, -1):
        run = swung(event, t1=sign * 2.4)
        assert len(run.events) == 2
        tolerance = 1e-11 / np.sqrt(1 - level)
        expected = sign * np.array([fall, np.pi - fall])
        np.testing.assert_allclose(run.events.times[:2], expected, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_of_two_functions_that_dip_within_one_step_the_first_is_first():
    """The shallow dip of one lies in that of the other."""
    deep = Event(lambda t, q, v, w: q[0] + 0.9, direction=0, reset=kept, name="deep")
    shallow = Event(lambda t, q, v, w: q[0] + 0.99, direction=0, reset=kept, name="shallow")
    run = swung(shallow, deep, stepsize_controller=None, dt=0.6, t1=2.4, solver=diffrax.Dopri8())
    falls = np.arccos([-0.9, -0.99]) / RATE
    expected = [*falls, *(np.pi - falls[::-1])]
    assert run.events.indices[:5].tolist() == [1, 0, 0, 1, -1]
    np.testing.assert_allclose(run.events.times[:4], expected, rtol=0, atol=1e-6)


def oscillating(periods, **how):
    """A function that has so many periods in a step, in ten steps."""
    rate = 2 * np.pi * periods / 0.1
    quick = Event(lambda t, q, v, w: jnp.sin(rate * t + 0.3), direction=0, reset=kept, name="quick")
    settings = {"t1": 1.0, "dt": 0.1, "stepsize_controller": None, "max_events": 200} | how
    return swung(quick, **settings), rate


@pytest.mark.slow
def test_a_function_that_oscillates_quicker_than_steps_resolve_is_pointed_out():
    words = r"'quick' changes quicker than steps resolve: within the step from t = .* Take smaller"
    with pytest.warns(RuntimeWarning, match=words):
        run, _ = oscillating(9.3)
    # Of 186 crossings.
    assert len(run.events) < 100
    assert run.events.misfit > 0.75


@pytest.mark.slow
def test_a_function_that_steps_just_resolve_is_found_at_every_crossing():
    run, rate = oscillating(1.3)
    expected = (np.arange(1, 27) * np.pi - 0.3) / rate
    assert len(run.events) == 26
    np.testing.assert_allclose(run.events.times[:26], expected, rtol=0, atol=1e-12)
    assert 0.5 < run.events.misfit < 0.75


@pytest.mark.slow
def test_a_function_without_a_sign_is_pointed_out():
    """Zero with its derivatives from the start on; others are watched meanwhile."""
    still = Event(lambda t, q, v, w: 0.0 * q[0], reset=kept, name="still")
    with pytest.warns(RuntimeWarning, match="'still' is zero at t = 0 s with its first two"):
        run = swung(still, Event(first, name="middle"))
    np.testing.assert_allclose(run.final_time, ZEROS[0], rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("most", [20, 90])
def test_events_that_accumulate_end_the_run_in_words(most):
    """Flights shorten by half: until `t1 (1 + e) / (1 - e)`, with few places and with many."""
    words = {
        20: r"more than max_events = 20 events happened, the last, 'impact', 1\.72e-06 s after",
        90: r"the event 'impact' happened 3\d times, the last .*e-10 s after the one before",
    }[most]
    words += r".*: they accumulate at about that time \(Zeno\)"
    with pytest.raises(SimulationError, match=words) as error:
        bounced(restitution=0.5, max_events=most)
    accumulated = 3 * impacts(1.0, 0.5, 1)[0][0]
    assert f"t = {accumulated:.5g}"[:8] in str(error.value)
    run = bounced(restitution=0.5, max_events=most, throw=False)
    assert not run.success
    assert "FAILED" in repr(run)
    np.testing.assert_allclose(run.final_time, accumulated, rtol=0, atol=5e-6)
    count = len(run.events)
    expected = impacts(1.0, 0.5, count)[0]
    np.testing.assert_allclose(run.events.times[:count], expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_too_few_places_are_no_accumulation():
    with pytest.raises(SimulationError, match=r"max_events = 2 .* Give a larger max_events"):
        bounced(max_events=2)
    with pytest.raises(SimulationError, match=r"max_events = 1 events happened\. Give"):
        bounced(max_events=1)


@pytest.mark.slow
def test_crossings_in_the_other_direction_take_no_places():
    """Ten crossings, of which five count: a run with five places goes to its end."""
    quick = Event(lambda t, q, v, w: jnp.sin(40 * t), reset=kept, name="quick")
    run = swung(quick, t1=0.8, max_events=5, dt=0.01, stepsize_controller=None)
    expected = np.pi / 40 * np.arange(1, 10, 2)
    np.testing.assert_allclose(run.events.times[:5], expected, rtol=0, atol=1e-12)


def test_a_contact_that_lasts_ends_the_run_in_words():
    with pytest.raises(SimulationError, match=r"'impact' the bodies stay together.* -9\.81 m/s\^2"):
        bounced(restitution=0)
    with pytest.raises(SimulationError, match="gap of the impact 'impact' is 0 m and not opening"):
        bounced(height=0.0)
    with pytest.raises(SimulationError, match=r"is -0\.1 m and not opening"):
        bounced(height=-0.1)


def test_a_start_in_contact_that_parts_is_a_flight():
    state = jaxdae.State(jnp.zeros(1), jnp.array([2.0]))
    run = jaxdae.simulate(
        BALL, jaxdae.Multipliers(), state, t1=0.5, events=[jaxdae.impact(BALL, BALL.gap, 0.8)],
        max_events=4,
    )  # fmt: skip
    np.testing.assert_allclose(run.events.times[:2], [4 / 9.81, np.inf], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_members_of_a_batch_have_events_of_their_own():
    """Different numbers, none, too many, and a start that is not finite: the others go on."""
    heights = jnp.array([1.0, 2.0, jnp.nan, 50.0, 0.05])

    def run(height):
        found = bounced(height, throw=False, max_events=6)
        return found.events.times, found.events.count, found.success, found.final_state.v[0]

    times, counts, success, v = jax.vmap(run)(heights)
    assert counts.tolist() == [6, 3, 0, 0, 6]
    assert success.tolist() == [True, True, False, True, False]
    for i in (0, 1, 4):
        expected = impacts(float(heights[i]), 0.8, 6)[0][: int(counts[i])]
        np.testing.assert_allclose(times[i][: int(counts[i])], expected, rtol=0, atol=1e-11)
    np.testing.assert_allclose(v[3], -3 * 9.81, rtol=0, atol=1e-9)
    assert jnp.isnan(v[jnp.array([2, 4])]).all()

    def cost(heights):
        v = jax.vmap(run)(heights)[3]
        return jnp.sum(jnp.where(success, v, 0.0))

    slopes = jax.grad(cost)(heights)
    assert jnp.isfinite(slopes).all()
    assert slopes[2] == 0
    assert slopes[4] == 0


@pytest.mark.slow
def test_a_jitted_run_raises_what_ended_it():
    def run(height):
        return bounced(height, restitution=0.5, max_events=3).final_time

    with pytest.raises(Exception, match="more events than max_events"):
        jax.jit(run)(1.0).block_until_ready()


def test_a_ball_of_another_system_is_no_event_of_this_one():
    """Gravity of the run, gap of the declaration: an event is what it is given."""
    heavy = Ball(gravity=20.0)
    run = bounced(system=heavy, t1=0.5)
    np.testing.assert_allclose(run.events.times[0], np.sqrt(2 / 20), rtol=0, atol=1e-12)
