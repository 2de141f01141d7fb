"""Runs that an event ends: where a function falls to zero, against exact times on both backends."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ellipk

from helpers.exported import Pendulum
from helpers.spring import Spring
from jaxdae import BackendError, Multipliers, Projected, State, Trajectory
from jaxdae.runs import integrated, prepare
from jaxdae.solvers import RK4
from jaxdae.solvers.event import AbstractEvent

# Programs of XLA compile as long as these tests run in all: for the complete run, but for one.
SLOWLY = pytest.param("plain", marks=pytest.mark.slow)
BACKENDS = pytest.mark.parametrize("backend", [SLOWLY, "native"])
RATE = 2.0
DEFAULTS = {
    "t0": 0.0, "t1": 3.0, "dt": None, "solver": None, "stepsize_controller": None, "saveat": None,
    "controller": None, "adjoint": None, "progress": False, "throw": False, "work": False,
    "start_tolerance": 1e-4, "max_steps": 4096,
}  # fmt: skip
# Dense output of Dopri8 at its default tolerance; its slope, and derivatives, are less exact.
BETWEEN, SLOPES = {"rtol": 0, "atol": 1e-6}, {"rtol": 0, "atol": 1e-4}


class Level(AbstractEvent):
    """The first coordinate falls to a level."""

    level: jax.Array

    def function(self, system, t, state):
        del system, t
        return state.q[0] - self.level


class Clock(AbstractEvent):
    """A time is over."""

    end: jax.Array

    def function(self, system, t, state):
        del system, state
        return self.end - t


def ended(start, event, *, system=None, backend="plain", **how):
    state = start if isinstance(start, State) else State(jnp.array([start]), jnp.zeros(1))
    settings = DEFAULTS | how | {"backend": backend}
    problem, method = prepare(system or Spring(RATE**2), Multipliers(), state, **settings)
    return integrated(problem._replace(event=event), method)


def exact(start, level):
    """Time and velocity where `start cos(RATE t)` falls to a level."""
    return jnp.arccos(level / start) / RATE, -RATE * jnp.sqrt(start**2 - level**2)


@pytest.mark.parametrize("backend", ["plain", "native"])
@pytest.mark.parametrize("dt", [None, 0.01, 0.7])
def test_a_run_ends_where_its_function_falls_to_zero(backend, dt):
    """With adaptive and with fixed steps, of which one is longer than all of the motion before."""
    run = ended(1.0, Level(jnp.array(0.2)), backend=backend, dt=dt, t1=2.8)
    time, velocity = exact(1.0, 0.2)
    tolerance = {"rtol": 0, "atol": 1e-4} if dt == 0.7 else BETWEEN
    np.testing.assert_allclose(run.final_time, time, **tolerance)
    np.testing.assert_allclose(run.last_state.v[0], velocity, **tolerance)
    # The function itself is zero to round-off.
    np.testing.assert_allclose(run.final_state.q[0], 0.2, rtol=0, atol=1e-13)
    assert run.backend == backend
    assert run.success
    assert run.result == diffrax.RESULTS.event_occurred
    assert "ended by an event at t = 0.68" in repr(run)
    reached = run.ts[jnp.isfinite(run.ts)]
    assert (reached <= run.final_time).all()
    assert jnp.isfinite(run.q[jnp.isfinite(run.ts)]).all()


@BACKENDS
@pytest.mark.parametrize("solver", [None, Projected(diffrax.Dopri5())])
def test_a_pendulum_takes_a_quarter_of_its_period_and_ends_on_its_constraint(backend, solver):
    """The period of large swings is `4 K(sin^2(angle / 2))`, where `l = g`."""
    angle = 1.2
    state = State(9.81 * jnp.array([np.sin(angle), -np.cos(angle)]), jnp.zeros(2))
    run = ended(
        state, Level(jnp.array(0.0)), system=Pendulum(length=9.81), backend=backend, solver=solver
    )
    np.testing.assert_allclose(run.final_time, ellipk(np.sin(angle / 2) ** 2), **BETWEEN)
    q = run.final_state.q
    np.testing.assert_allclose(q @ q / 9.81**2, 1.0, rtol=0, atol=1e-7 if solver is None else 1e-14)


@BACKENDS
def test_saved_steps_end_at_the_event(backend):
    saveat = diffrax.SaveAt(t0=True, steps=True)
    run = ended(1.0, Level(jnp.array(0.2)), backend=backend, dt=0.1, saveat=saveat, t1=2.0)
    np.testing.assert_allclose(run.ts[:7], np.arange(7) / 10, rtol=0, atol=1e-14)
    assert run.ts[7] == run.final_time
    assert jnp.isinf(run.ts[8:]).all()
    assert run.stats["num_steps"] == 7


@BACKENDS
def test_times_that_are_saved_end_at_the_event(backend):
    saveat = diffrax.SaveAt(ts=jnp.array([0.0, 0.5, 0.68, 0.69, 1.0]))
    run = ended(1.0, Level(jnp.array(0.2)), backend=backend, saveat=saveat)
    assert run.ts.tolist() == [0.0, 0.5, 0.68, np.inf, np.inf]
    np.testing.assert_allclose(run.q[:3, 0], np.cos(RATE * run.ts[:3]), **BETWEEN)


@BACKENDS
def test_an_event_backward_in_time(backend):
    run = ended(1.0, Level(jnp.array(0.2)), backend=backend, t1=-3.0)
    np.testing.assert_allclose(run.final_time, -exact(1.0, 0.2)[0], **BETWEEN)


@BACKENDS
@pytest.mark.parametrize("start", [0.2, 0.1])
def test_what_is_not_above_zero_at_the_start_has_to_rise_first(start, backend):
    """From the level itself or from below, upward, and back to the level half a period later."""
    state = State(jnp.array([start]), jnp.array([3.0]))
    run = ended(state, Level(jnp.array(0.2)), backend=backend, dt=0.02)
    phase, size = np.arctan2(1.5, start), np.hypot(start, 1.5)
    time = (phase + np.arccos(0.2 / size)) / RATE
    np.testing.assert_allclose(run.final_time, time, **BETWEEN)


@BACKENDS
def test_a_run_without_its_event_goes_to_its_end(backend):
    run = ended(1.0, Level(jnp.array(-1.5)), backend=backend)
    assert run.result == diffrax.RESULTS.successful
    assert run.final_time == 3.0
    assert "reached t = 3" in repr(run)


@BACKENDS
def test_an_event_of_the_time_is_met_to_round_off(backend):
    run = ended(1.0, Clock(jnp.array(0.7)), backend=backend)
    np.testing.assert_allclose(run.final_time, 0.7, rtol=0, atol=2e-16)


class Coordinates(AbstractEvent):
    """No scalar, or no number."""

    way: Any

    def function(self, system, t, state):
        del system, t
        return self.way(state.q)


@BACKENDS
@pytest.mark.parametrize(
    ("way", "words"),
    [
        (lambda q: q[None], r"Coordinates returned float64 of shape \(1, 1\)"),
        (lambda q: q[0] > 0, "bool"),
    ],
)
def test_a_function_that_is_not_one_number_is_refused(backend, way, words):
    with pytest.raises(ValueError, match=rf"{words}.* must return one real number"):
        ended(1.0, Coordinates(way), backend=backend)


class Both(AbstractEvent):
    """The first coordinate falls to a level, or rises to it: within a step of 0.7 s, twice."""

    level: jax.Array

    def function(self, system, t, state):
        del system, t
        return jnp.stack([state.q[0] + self.level, 2.0 - state.q[0]])


@BACKENDS
@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_of_several_functions_ends_a_run_within_a_step(backend, sign):
    """Below for 0.3 s; steps of 0.7 s are off by 1e-4."""
    run = ended(1.0, Both(jnp.array(0.95)), backend=backend, dt=sign * 0.7, t1=sign * 2.8)
    np.testing.assert_allclose(run.final_time, sign * exact(1.0, -0.95)[0], rtol=0, atol=1e-4)


@BACKENDS
def test_a_run_whose_event_is_no_number_fails(backend):
    run = ended(1.0, Level(jnp.array(jnp.nan)), backend=backend)
    assert not run.success
    assert run.result == diffrax.RESULTS.nonfinite


@BACKENDS
def test_a_fixed_step_without_an_error_estimate_ends_at_an_event(backend):
    """Hermite's cubic between steps of 0.01 s is off by about their fourth power."""
    run = ended(1.0, Level(jnp.array(0.2)), backend=backend, dt=0.01, solver=RK4())
    np.testing.assert_allclose(run.final_time, exact(1.0, 0.2)[0], rtol=0, atol=1e-8)


@BACKENDS
@pytest.mark.parametrize("kind", [jnp.float32, float])
def test_single_precision(backend, kind):
    """A level of double precision takes that of the state."""
    state = State(jnp.ones(1, jnp.float32), jnp.zeros(1, jnp.float32))
    run = ended(state, Level(jnp.array(0.2, kind)), backend=backend)
    assert run.final_time.dtype == np.float32
    # The tolerance of its steps is 1e-5.
    np.testing.assert_allclose(run.final_time, exact(1.0, 0.2)[0], rtol=0, atol=1e-4)


def test_a_file_says_that_a_run_with_an_event_succeeded(tmp_path):
    run = ended(1.0, Level(jnp.array(0.2)))
    run.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    assert read.success
    assert read.result == diffrax.RESULTS.event_occurred
    assert "ended by an event" in repr(read)


@BACKENDS
def test_members_of_a_batch_end_each_at_its_own_time(backend):
    """More members than a vector has lanes, some without an event, and one that is not finite."""
    starts = jnp.linspace(0.1, 1.0, 19).at[7].set(jnp.nan)

    def end(start):
        run = ended(start, Level(jnp.array(0.2)), backend=backend)
        return run.final_time, run.success, run.result == diffrax.RESULTS.event_occurred

    times, success, occurred = jax.vmap(end)(starts)
    falls = starts > 0.2 + 1e-9
    np.testing.assert_array_equal(occurred, falls)
    np.testing.assert_array_equal(success, ~jnp.isnan(starts))
    np.testing.assert_allclose(times[falls], exact(starts[falls], 0.2)[0], **BETWEEN)
    assert (times[~falls & success] == 3.0).all()


@pytest.mark.parametrize(
    ("backend", "mode", "dt"),
    [
        ("plain", jax.jacfwd, None),
        pytest.param("plain", jax.jacrev, 0.01, marks=pytest.mark.slow),
        pytest.param("auto", jax.jacrev, None, marks=pytest.mark.slow),
        pytest.param("auto", jax.jacfwd, 0.01, marks=pytest.mark.slow),
    ],
)
def test_derivatives_know_that_the_time_of_an_event_moves(backend, mode, dt):
    def end(start, level):
        adjoint = diffrax.DirectAdjoint()
        run = ended(start, Level(level), backend=backend, dt=dt, adjoint=adjoint)
        return jnp.stack([run.final_time, run.last_state.v[0]])

    at = jnp.array(1.0), jnp.array(0.2)
    expected = jax.jacfwd(lambda *x: jnp.stack(exact(*x)), argnums=(0, 1))(*at)
    np.testing.assert_allclose(mode(end, argnums=(0, 1))(*at), expected, **SLOPES)


def test_a_kernel_alone_has_no_derivative_of_a_run_with_an_event():
    def end(start):
        return ended(start, Level(jnp.array(0.2)), backend="native").final_time

    with pytest.raises(BackendError, match="an event ends, times depend on what is"):
        jax.grad(end)(1.0)


def test_some_fixed_steps_and_the_end_are_left_to_the_plain_backend():
    saveat = diffrax.SaveAt(steps=3, t1=True)
    with pytest.raises(BackendError, match="some of the steps and the end, or an event"):
        ended(1.0, Level(jnp.array(0.2)), backend="native", dt=0.1, saveat=saveat, t1=2.0)
    run = ended(1.0, Level(jnp.array(0.2)), backend="auto", dt=0.1, saveat=saveat, t1=2.0)
    np.testing.assert_allclose(run.ts[:3], [0.3, 0.6, float(exact(1.0, 0.2)[0])], **BETWEEN)
