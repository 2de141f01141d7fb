"""Derivatives through times of events and resets, against exact ones and finite differences."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.bouncing import Ball, bounced, GRAVITY
from helpers.exported import Pendulum
from helpers.spring import Level, Spring
from jaxdae import Event

END = diffrax.SaveAt(t1=True)


def fifth(parameters, **how):
    """Time of the fifth impact, height and velocity at 2.8 s, height at 1 s."""
    height, restitution, gravity = parameters
    saveat = diffrax.SaveAt(ts=jnp.array([1.0, 2.8]))
    system = Ball(gravity)
    how = {"max_events": 6, "throw": False, "saveat": saveat} | how
    run = bounced(height, restitution, system=system, t1=2.8, **how)
    return jnp.stack([run.events.times[4], run.q[1, 0], run.v[1, 0], run.q[0, 0]])


def exact_fifth(parameters):
    """By parabolas: flights last twice the speed by gravity."""
    height, restitution, gravity = parameters
    first = jnp.sqrt(2 * height / gravity)
    powers = jnp.cumsum(restitution ** jnp.arange(1.0, 5.0))
    times = first + 2 * first * powers
    speed = gravity * first * restitution**5
    since, early = 2.8 - times[3], 1.0 - first
    last = speed * since - gravity * since**2 / 2
    height_at_one = restitution * gravity * first * early - gravity * early**2 / 2
    return jnp.stack([times[3], last, speed - gravity * since, height_at_one])


AT = jnp.array([1.0, 0.8, GRAVITY])


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        ("native", jax.jacfwd),
        pytest.param("native", jax.jacrev, marks=pytest.mark.slow),
        pytest.param("plain", jax.jacrev, marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_a_bouncing_ball_are_those_of_its_parabolas(backend, mode):
    """To round-off: the method is exact for parabolas, and derivatives are exact for the method.

    Forward and reverse mode both agree with the exact ones, and so with each other, to 1e-10.
    """
    np.testing.assert_allclose(fifth(AT, backend=backend), exact_fifth(AT), rtol=0, atol=1e-11)
    found = mode(lambda x: fifth(x, backend=backend))(AT)
    np.testing.assert_allclose(found, jax.jacfwd(exact_fifth)(AT), rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_second_derivatives_are_exact():
    """Of times and states behind five impacts, the saltation of the saltation."""
    time = lambda x: fifth(x, backend="native", adjoint=diffrax.DirectAdjoint())  # noqa: E731
    found = jax.jacfwd(jax.jacfwd(time))(AT)
    np.testing.assert_allclose(found, jax.jacfwd(jax.jacfwd(exact_fifth))(AT), atol=1e-9)


class Windy(Ball):
    """A ball in a wind that changes with time."""

    def force(self, t, q, v, w, u):
        return 3.0 * jnp.sin(5 * t) * jnp.ones_like(v)


@pytest.mark.slow
def test_second_derivatives_of_motions_that_depend_on_time():
    """Against central differences of first ones, of 1e-5; steps of a tolerance of 1e-11."""

    def run(height):
        system = Windy()
        state = jaxdae.State(jnp.stack([height]), jnp.zeros(1))
        found = jaxdae.simulate(
            system, jaxdae.Multipliers(), state, t1=2.0, max_events=5, throw=False,
            events=jaxdae.impact(system, system.gap, 0.8), saveat=END,
            stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
        )  # fmt: skip
        return jnp.stack([found.events.times[2], found.final_state.q[0]])

    first, height = jax.jacfwd(run), jnp.array(1.0)
    difference = (first(height + 1e-5) - first(height - 1e-5)) / 2e-5
    np.testing.assert_allclose(jax.jacfwd(first)(height), difference, rtol=1e-6)


@pytest.mark.slow
def test_members_that_end_early_or_never_begin_leave_the_derivatives_of_others():
    """By heights, each of one member, and by a restitution of all: places, events and one NaN.

    The second member flies to the end, the third has no start, the last needs more places.
    """

    def end(height, restitution):
        run = bounced(height, restitution, t1=1.5, max_events=2, saveat=END, throw=False)
        return jnp.where(run.success, run.final_state.v[0], 0.0)

    def total(heights, restitution):
        return jnp.sum(jax.vmap(end, (0, None))(heights, restitution))

    def exact(height, restitution):
        """The velocity behind two impacts, by the times of parabolas."""
        first = jnp.sqrt(2 * height / GRAVITY)
        second = first * (1 + 2 * restitution)
        return GRAVITY * (restitution**2 * first - (1.5 - second))

    heights = jnp.array([1.0, 50.0, jnp.nan, 0.2])
    by_heights, by_restitution = jax.grad(total, argnums=(0, 1))(heights, 0.8)
    expected = jax.grad(exact, argnums=(0, 1))(1.0, 0.8)
    np.testing.assert_allclose(by_heights, [expected[0], 0.0, 0.0, 0.0], rtol=1e-10)
    np.testing.assert_allclose(by_restitution, expected[1], rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "adjoint", "mode"),
    [("native", None, jax.jacrev), ("plain", diffrax.ForwardMode(), jax.jacfwd)],
)
def test_derivatives_of_a_terminal_event_by_parameters_of_its_function(backend, adjoint, mode):
    """`cos(2 t) = level + rate t`, by the implicit function theorem, to the steps' tolerance."""

    def end(x):
        state = jaxdae.State(jnp.ones(1), jnp.zeros(1))
        run = jaxdae.simulate(
            Spring(4.0), jaxdae.Multipliers(), state, t1=3.0, events=Event(Level(x[0], x[1])),
            saveat=END, backend=backend, adjoint=adjoint, throw=False, max_events=1,
            stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
        )  # fmt: skip
        return jnp.stack([run.final_time, run.final_state.v[0]])

    x = jnp.array([0.2, 0.1])
    t = end(x)[0]
    slope = -2 * jnp.sin(2 * t) - x[1]
    by_time = jnp.array([1.0, -4 * jnp.cos(2 * t)])
    expected = by_time[:, None] * jnp.array([1.0, t])[None] / slope
    np.testing.assert_allclose(mode(end)(x), expected, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_two_crossings_within_one_step(mode):
    """`a cos(2 t) = -level` falls and rises in a step of 0.5 s, in members one of which is NaN.

    Times at which the part behind an event begins are constants: so are its steps.
    """

    def both(x):
        state = jaxdae.State(x[:1], jnp.zeros(1))
        event = Event(Level(-x[1], 0.0 * x[1]), direction=0, reset=lambda t, q, v, w: (q, v, w))
        run = jaxdae.simulate(
            Spring(4.0), jaxdae.Multipliers(), state, t1=2.0, dt=0.5, events=event, saveat=END,
            solver=diffrax.Dopri8(), throw=False, max_events=2,
        )  # fmt: skip
        return run.events.times

    x = jnp.array([1.0, 0.97])
    exact = lambda x: jnp.stack([jnp.arccos(-x[1] / x[0]), jnp.arccos(x[1] / x[0]) + np.pi]) / 2  # noqa: E731
    members = jnp.stack([x, x * jnp.nan, x * 1.1])
    expected = jax.jacfwd(exact)(x)
    # Four steps of Dopri8 of half a radian and more; beside the square root of a small depth.
    np.testing.assert_allclose(both(x), exact(x), rtol=0, atol=1e-6)
    found = jax.vmap(mode(both))(members)
    np.testing.assert_allclose(found[0], expected, rtol=1e-5)
    np.testing.assert_allclose(found[2], expected / 1.1, rtol=1e-5)


@pytest.mark.slow
def test_derivatives_by_times_are_those_of_the_motion():
    """By start, end and a saved time: of the ball, whose first impact moves with the start."""

    def run(times):
        state = jaxdae.State(jnp.ones(1), jnp.zeros(1))
        system = Ball()
        found = jaxdae.simulate(
            system, jaxdae.Multipliers(), state, t0=times[0], t1=times[2], throw=False,
            events=jaxdae.impact(system, system.gap, 0.8), saveat=diffrax.SaveAt(ts=times[1:2]),
            max_events=3, adjoint=diffrax.DirectAdjoint(),
        )  # fmt: skip
        return jnp.stack([found.events.times[0], found.q[0, 0], found.last_state.q[0]])

    times = jnp.array([0.1, 0.9, 1.2])
    speed = 0.8 * np.sqrt(2 * GRAVITY)
    first = 0.1 + np.sqrt(2 / GRAVITY)
    rates = [speed - GRAVITY * (t - first) for t in (0.9, 1.2)]
    expected = [[1.0, 0.0, 0.0], [-rates[0], rates[0], 0.0], [-rates[1], 0.0, rates[1]]]
    np.testing.assert_allclose(jax.jacfwd(run)(times), expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_derivatives_through_impacts_under_a_constraint():
    """A pendulum against a wall, both modes and finite differences; rows, end and times."""

    def run(x):
        angle, restitution, length = x
        system = Pendulum(length)
        wall = jaxdae.impact(system, lambda t, q: q[0], restitution, name="wall")
        q = length * jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
        found = jaxdae.simulate(
            system, jaxdae.Multipliers(), jaxdae.State(q, jnp.zeros(2)), t1=3.0, events=wall,
            saveat=diffrax.SaveAt(ts=jnp.array([1.5, 3.0])), max_events=4, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=1e-11, atol=1e-11),
        )  # fmt: skip
        return jnp.concatenate([found.events.times[:2], found.q.ravel(), found.v.ravel()])

    x = jnp.array([0.7, 0.8, 1.1])
    forward, reverse = jax.jacfwd(run)(x), jax.jacrev(run)(x)
    np.testing.assert_allclose(forward, reverse, rtol=0, atol=1e-10)
    for i in range(3):
        step = jnp.zeros(3).at[i].set(1e-5)
        difference = (run(x + step) - run(x - step)) / 2e-5
        # Of values with errors of 1e-10 or less.
        np.testing.assert_allclose(forward[:, i], difference, rtol=0, atol=1e-5)
