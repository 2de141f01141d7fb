"""Adaptive steps that end at times known beforehand, against the exact motion.

The oscillator `q'' + k q = u(t)` has a force that changes its sign at known times. Between these
`q = c + A cos(w s) + B sin(w s)` with `w^2 = k`, `c = u / k`.
"""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae import BackendError, Multipliers, simulate, State

PID = diffrax.PIDController(rtol=1e-9, atol=1e-9)
# Steps and jumps that are no multiples of each other; some of them outside of the run.
JUMPS = jnp.array([0.61, 0.23, 1.4, -0.5, 7.0])
STEPS = jnp.array([0.5, 0.0, 1.0, 3.0])
SAVED = jnp.array([0.0, 0.1, 0.23, 0.5, 0.62, 1.4, 1.7, 2.0])
# The global error of a smooth run at this tolerance; one stage with the force of before a jump
# leaves an error of the order of a step, 1e-2.
ERROR = {"rtol": 0, "atol": 1e-7}
# Derivatives of the numerical motion are off by some ten times as much.
SLOPES = {"rtol": 0, "atol": 1e-6}


class Driven(UnitMass):
    """A unit mass on a spring."""

    stiffness: float | jax.Array = 4.0

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * q @ q

    def force(self, t, q, v, w, u):
        return jnp.reshape(u, 1)


class Switched(eqx.Module):
    """A force that changes its sign at each of some times."""

    times: jax.Array
    size: float | jax.Array = 1.0

    def __call__(self, t, q, v, w):
        one = jnp.ones_like(self.times)
        return self.size * jnp.prod(jnp.where(t >= self.times, -one, one))


def clipped(**ends):
    return diffrax.ClipStepSizeController(PID, **ends)


def moved(stiffness=4.0, size=1.0, times=JUMPS, control=None, q0=0.3, **how):
    """The run, with its steps on all jumps."""
    how = {"t1": 2.0, "solver": diffrax.Dopri5(), "saveat": diffrax.SaveAt(ts=SAVED)} | how
    return simulate(
        Driven(stiffness), Multipliers(), State(jnp.full(1, q0), jnp.zeros(1)),
        controller=Switched(times, size), max_steps=2000,
        stepsize_controller=clipped(jump_ts=times) if control is None else control, **how,
    )  # fmt: skip


def exact(t, stiffness=4.0, size=1.0, times=JUMPS, start=0.0, q0=0.3):
    """Position of the exact motion at one time."""
    w, q, v = jnp.sqrt(stiffness), q0, 0.0
    sign = (-1.0) ** jnp.sum(jnp.where(start >= times, 1.0, 0.0))
    inner = jnp.sort(jnp.clip(times, start, t))
    ends = jnp.concatenate([jnp.array([start]), inner, jnp.reshape(t, 1)])
    for i, s in enumerate(jnp.diff(ends)):
        c = sign * size / stiffness
        a, b = q - c, v / w
        q, v = (
            c + a * jnp.cos(w * s) + b * jnp.sin(w * s),
            w * (b * jnp.cos(w * s) - a * jnp.sin(w * s)),
        )
        if i < len(times):
            sign = jnp.where(inner[i] > start, -sign, sign)
    return q


def exact_rows(*arguments, **named):
    return jnp.stack([exact(t, *arguments, **named) for t in SAVED])


def test_a_force_that_jumps_costs_no_accuracy():
    found = moved(backend="native")
    np.testing.assert_allclose(found.q[:, 0], exact_rows(), **ERROR)


def test_no_step_is_rejected_at_a_jump_that_is_known():
    smooth = moved(size=0.0).stats["num_rejected_steps"]
    known, unknown = moved().stats, moved(control=PID).stats
    assert known["num_rejected_steps"] <= smooth + 1 < unknown["num_rejected_steps"]


@pytest.mark.parametrize("backend", ["native", pytest.param("plain", marks=pytest.mark.slow)])
def test_steps_end_at_the_times_that_are_asked_for(backend):
    control = clipped(step_ts=STEPS, jump_ts=JUMPS)
    found = moved(control=control, saveat=diffrax.SaveAt(steps=True, t0=True), backend=backend)
    ts = np.asarray(found.ts[np.isfinite(found.ts)])
    assert {0.0, 0.5, 1.0, 2.0} <= set(ts.tolist())
    # The step after a jump begins just after it; nothing is evaluated at the jump itself.
    for jump in (0.23, 0.61, 1.4):
        assert np.nextafter(jump, 9) in ts
    assert not set(ts.tolist()) & set(np.asarray(JUMPS).tolist())
    rows = np.array([float(exact(t)) for t in ts])
    np.testing.assert_allclose(found.q[: len(ts), 0], rows, **ERROR)


@pytest.mark.slow
def test_both_backends_make_the_same_steps():
    # At this tolerance the estimate of the error is far above round-off, which it hands on to the
    # ends of the steps: 1e-16 / 1e-7 of their lengths.
    control = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=1e-5, atol=1e-7), step_ts=STEPS, jump_ts=JUMPS
    )
    runs = [
        moved(control=control, saveat=diffrax.SaveAt(steps=True), backend=x)
        for x in ("plain", "native")
    ]
    assert runs[0].stats["num_steps"] == runs[1].stats["num_steps"]
    for x in ("ts", "q"):
        np.testing.assert_allclose(getattr(runs[0], x), getattr(runs[1], x), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_backward_in_time():
    end = moved(saveat=diffrax.SaveAt(t1=True))
    state = State(end.q[-1], end.v[-1])
    back = simulate(
        Driven(), Multipliers(), state, t0=2.0, t1=0.0, controller=Switched(JUMPS),
        stepsize_controller=clipped(step_ts=STEPS, jump_ts=JUMPS), solver=diffrax.Dopri5(),
    )  # fmt: skip
    np.testing.assert_allclose(back.q[-1], 0.3, **ERROR)


def test_a_run_may_begin_just_before_a_jump():
    start = float(np.nextafter(0.61, 0.0))
    found = moved(t0=start, backend="native", saveat=diffrax.SaveAt(ts=SAVED[4:]))
    wanted = jnp.stack([jnp.asarray(exact(t, start=0.61)) for t in SAVED[4:]])
    np.testing.assert_allclose(found.q[:, 0], wanted, **ERROR)


@pytest.mark.slow
def test_derivatives_in_both_modes():
    def end(stiffness, size, q0):
        return moved(stiffness, size, q0=q0, backend="native").q[-1, 0]

    def true(stiffness, size, q0):
        return exact(2.0, stiffness, size, q0=q0)

    at = (4.0, 1.3, 0.3)
    forward, reverse = (x(end, argnums=(0, 1, 2))(*at) for x in (jax.jacfwd, jax.grad))
    np.testing.assert_allclose(forward, reverse, rtol=1e-11)
    np.testing.assert_allclose(reverse, jax.grad(true, argnums=(0, 1, 2))(*at), **ERROR)


@pytest.mark.slow
def test_derivatives_by_the_time_of_a_jump():
    """By the plain program: dq/ds is what the change of the force at `s` makes of q."""

    def end(s, backend):
        times = jnp.array([0.4, 1.0]).at[1].set(s)
        return moved(times=times, backend=backend).q[-1, 0]

    def true(s):
        return exact(2.0, times=jnp.array([0.4, 1.0]).at[1].set(s))

    np.testing.assert_allclose(jax.grad(end)(1.1, "auto"), jax.grad(true)(1.1), **SLOPES)
    with pytest.raises(BackendError, match=r"derivatives by times"):
        jax.grad(end)(1.1, "native")


@pytest.mark.slow
def test_members_with_jumps_of_their_own_beside_one_that_fails():
    times = jnp.array([[0.23, 0.61, 1.4], [0.5, 0.5, 5.0], [0.1, 1.9, 1.99], [0.2, 0.3, 0.4]])
    starts = jnp.array([0.3, -1.0, jnp.nan, 0.0])

    def end(q0, times):
        return moved(times=times, q0=q0, backend="native", throw=False, start_tolerance=None).q[
            -1, 0
        ]

    values, slopes = jax.vmap(jax.value_and_grad(end))(starts, times)
    for i in (0, 1, 3):
        wanted = jax.value_and_grad(lambda q0, i=i: exact(2.0, times=times[i], q0=q0))(starts[i])
        np.testing.assert_allclose((values[i], slopes[i]), wanted, **ERROR)
    assert not np.isfinite(values[2])


def test_single_precision():
    found = simulate(
        Driven(), Multipliers(), State(jnp.full(1, 0.3, jnp.float32), jnp.zeros(1, jnp.float32)),
        t1=2.0, controller=Switched(JUMPS), solver=diffrax.Dopri5(), backend="native",
        stepsize_controller=diffrax.ClipStepSizeController(
            diffrax.PIDController(rtol=1e-5, atol=1e-6), jump_ts=JUMPS
        ),
    )  # fmt: skip
    assert found.q.dtype == jnp.float32
    # The tolerance of the steps, some thirty of them.
    np.testing.assert_allclose(found.q[-1, 0], exact(2.0), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["step_ts", "jump_ts"])
def test_times_that_are_not_finite_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} of ClipStepSizeController must be finite times"):
        moved(control=clipped(**{name: jnp.array([0.1, jnp.nan])}))


@pytest.mark.slow
def test_rejected_steps_that_are_gone_to_again_are_left_to_the_plain_backend():
    control = diffrax.ClipStepSizeController(PID, step_ts=STEPS, store_rejected_steps=10)
    assert moved(control=control).backend == "plain"
    with pytest.raises(BackendError, match="steps are chosen by ClipStepSizeController"):
        moved(control=control, backend="native")


@pytest.mark.slow
def test_compiled_runs_go_by_the_plain_program_and_exports_are_refused(tmp_path):
    how = {
        "t1": 2.0, "controller": Switched(JUMPS), "solver": diffrax.Dopri5(), "max_steps": 2000,
        "stepsize_controller": clipped(jump_ts=JUMPS),
    }  # fmt: skip
    start = State(jnp.full(1, 0.3), jnp.zeros(1))
    compiled = jaxdae.compile_run(Driven(), Multipliers(), start, **how)
    np.testing.assert_allclose(compiled(start.q, start.v).q[-1, 0], exact(2.0), **ERROR)
    with pytest.raises(BackendError, match="times known beforehand, for which compiled runs"):
        jaxdae.export(Driven(), Multipliers(), start, directory=tmp_path, name="driven", **how)
