"""Runs that an event ends: where a function falls to zero, against exact times on both backends."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import Spring
from jaxdae import BackendError, Multipliers, State, Trajectory
from jaxdae.runs import integrated, prepare
from jaxdae.solvers.event import AbstractEvent

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


def ended(start, event, *, system=None, backend="native", **how):
    state = start if isinstance(start, State) else State(jnp.array([start]), jnp.zeros(1))
    settings = DEFAULTS | how | {"backend": backend}
    problem, method = prepare(system or Spring(RATE**2), Multipliers(), state, **settings)
    return integrated(problem._replace(event=event), method)


def exact(start, level):
    """Time and velocity where `start cos(RATE t)` falls to a level."""
    return jnp.arccos(level / start) / RATE, -RATE * jnp.sqrt(start**2 - level**2)


@pytest.mark.parametrize(
    ("backend", "dt"), [("plain", None), ("native", None), ("native", 0.01), ("native", 0.7)]
)
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


def test_saved_steps_end_at_the_event():
    saveat = diffrax.SaveAt(t0=True, steps=True)
    run = ended(1.0, Level(jnp.array(0.2)), dt=0.1, saveat=saveat, t1=2.0)
    np.testing.assert_allclose(run.ts[:7], np.arange(7) / 10, rtol=0, atol=1e-14)
    assert run.ts[7] == run.final_time
    assert jnp.isinf(run.ts[8:]).all()
    assert run.stats["num_steps"] == 7


@pytest.mark.parametrize("start", [0.2, 0.1])
def test_what_is_not_above_zero_at_the_start_has_to_rise_first(start):
    """From the level itself or from below, upward, and back to the level half a period later."""
    state = State(jnp.array([start]), jnp.array([3.0]))
    run = ended(state, Level(jnp.array(0.2)), dt=0.02)
    phase, size = np.arctan2(1.5, start), np.hypot(start, 1.5)
    time = (phase + np.arccos(0.2 / size)) / RATE
    np.testing.assert_allclose(run.final_time, time, **BETWEEN)


class Coordinates(AbstractEvent):
    """No scalar, or no number."""

    way: Any

    def function(self, system, t, state):
        del system, t
        return self.way(state.q)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        (lambda q: q[None], r"Coordinates returned float64 of shape \(1, 1\)"),
        (lambda q: q[0] > 0, "bool"),
    ],
)
def test_a_function_that_is_not_one_number_is_refused(way, words):
    with pytest.raises(ValueError, match=rf"{words}.* must return one real number"):
        ended(1.0, Coordinates(way))


class Both(AbstractEvent):
    """The first coordinate falls to a level, or rises to it: within a step of 0.7 s, twice."""

    level: jax.Array

    def function(self, system, t, state):
        del system, t
        return jnp.stack([state.q[0] + self.level, 2.0 - state.q[0]])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_of_several_functions_ends_a_run_within_a_step(sign):
    """Below for 0.3 s; steps of 0.7 s are off by 1e-4."""
    run = ended(1.0, Both(jnp.array(0.95)), dt=sign * 0.7, t1=sign * 2.8)
    np.testing.assert_allclose(run.final_time, sign * exact(1.0, -0.95)[0], rtol=0, atol=1e-4)


def test_a_run_whose_event_is_no_number_fails():
    run = ended(1.0, Level(jnp.array(jnp.nan)))
    assert not run.success
    assert run.result == diffrax.RESULTS.nonfinite


def test_a_file_says_that_a_run_with_an_event_succeeded(tmp_path):
    run = ended(1.0, Level(jnp.array(0.2)))
    run.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    assert read.success
    assert read.result == diffrax.RESULTS.event_occurred
    assert "ended by an event" in repr(read)


@pytest.mark.parametrize(
    ("backend", "mode", "dt"),
    [
        ("plain", jax.jacfwd, None),
        pytest.param("auto", jax.jacrev, 0.01, marks=pytest.mark.slow),
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
