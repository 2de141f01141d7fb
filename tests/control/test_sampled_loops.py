"""Loops that are closed at samples, by running them: their roots, and motions that are led."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.sampled_plants import Pair, pair, place
from helpers.systems import Bead
from jaxdae import dlqr, MinimumNormSolve, Multipliers, Sampled, simulate, State
from jaxdae.analysis import lqg
from jaxdae.control import (
    DigitalPID,
    Feedforward,
    Interpolated,
    MinimumJerk,
    MotionReference,
    Series,
)
from jaxdae.solvers import RK4

BACKENDS = pytest.mark.parametrize(
    "backend", [pytest.param("plain", marks=pytest.mark.slow), "native"]
)
PERIOD = 0.2


def step(controller, memories, states, backend):
    """States and memories after one sample and the motion to the next, for rows of both."""
    size = memories.shape[1]

    def one(memory, x):
        state = State(jnp.stack([x[0], 2 * x[0]]), jnp.stack([x[1], 2 * x[1]]))
        found = simulate(
            Pair(), Multipliers(solve=MinimumNormSolve()), state, t1=PERIOD, dt=PERIOD / 20,
            solver=diffrax.Dopri8(), controller=controller(memory), backend=backend,
            saveat=diffrax.SaveAt(ts=jnp.array([0.0, PERIOD])),
        )  # fmt: skip
        # Columns of the memory come last; at the end they have those of the next sample.
        after = found.w[0, found.w.shape[1] - size :]
        return jnp.concatenate([jnp.stack([found.q[1, 0], found.v[1, 0]]), after])

    return jax.vmap(one)(memories, states)


@BACKENDS
def test_roots_of_the_sampled_regulator_are_those_of_its_loop(backend):
    regulator = dlqr(pair(), period=PERIOD)
    assert regulator.roots is not None

    def controller(_):
        return Sampled(Series(regulator.feedback), PERIOD)

    matrix = step(controller, jnp.zeros((2, 0)), jnp.eye(2), backend).T
    found = np.sort_complex(np.linalg.eigvals(np.asarray(matrix)))
    np.testing.assert_allclose(found, np.sort_complex(regulator.roots), rtol=0, atol=1e-8)


@pytest.mark.slow
@BACKENDS
def test_roots_of_lqg_are_those_of_regulator_and_filter(backend):
    """By four runs from unit states and unit estimates."""
    law = lqg(pair(), place, period=PERIOD, V=np.array([[0.3]]))
    assert law.roots is not None

    def controller(memory):
        first = law.memory._replace(state=memory)
        return Sampled(law, PERIOD, measure=law.measured, memory=first)

    units = jnp.eye(4)
    matrix = step(controller, units[:, 2:], units[:, :2], backend).T
    found = np.sort_complex(np.linalg.eigvals(np.asarray(matrix)))
    np.testing.assert_allclose(found, np.sort_complex(law.roots), rtol=0, atol=1e-8)


def on_circle(angle):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle)])


def push(q, u):
    return u[0] * jnp.stack([-q[1], q[0]])


def test_the_least_jerk_is_from_rest_to_rest():
    motion = MinimumJerk(jnp.array([1.0, -2.0]), jnp.array([0.0, 2.0]), 0.5, 2.5)
    rates: list[Any] = [motion]
    for _ in range(2):
        rates.append(jax.jacfwd(rates[-1]))
    for t in (0.0, 0.5, 2.5, 3.0):
        end = [0.0, 2.0] if t > 1 else [1.0, -2.0]
        np.testing.assert_allclose(motion(t), end, rtol=0, atol=1e-15)
        for rate in rates[1:]:
            np.testing.assert_allclose(rate(t), 0, atol=1e-13)
    # The middle, and the largest speed there: 15/8 of the mean.
    np.testing.assert_allclose(motion(1.5), [0.5, 0.0], atol=1e-15)
    np.testing.assert_allclose(rates[1](1.5), 15 / 8 / 2 * np.array([-1.0, 4.0]), rtol=1e-14)
    with pytest.raises(ValueError, match=r"t0 = 2\.0 s must be before t1 = 1\.0 s"):
        MinimumJerk(jnp.zeros(1), jnp.ones(1), 2.0, 1.0)


JERK = MinimumJerk(-0.5 * jnp.pi, jnp.asarray(0.3), 0.0, 1.0)
SPLINE = Interpolated(
    jnp.array([0.0, 0.3, 0.7, 1.0, 1.2]), jnp.array([-1.6, -1.2, 0.1, 0.2, 0.3]), "cubic"
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("angle", "backend"),
    [(JERK, "plain"), (JERK, "native"), (SPLINE, "native")],
    ids=["plain", "native", "spline"],
)
def test_inverse_dynamics_lead_a_constrained_motion_from_sample_to_sample(angle, backend):
    """What is left to PID is what the inputs change within a period: of its order."""
    system = Bead(push, 9.81)

    def motion(t):
        return on_circle(angle(t))

    ahead, start = Feedforward(system, motion, controls=1), MotionReference(motion)(0.0)

    def error(t, q):
        wanted = motion(t)
        return jnp.stack([q[0] * wanted[1] - q[1] * wanted[0]])

    def largest(period, **more: Any):
        pid = DigitalPID(error, period, 60.0, 40.0, 10.0, filter_time=0.01, **more)
        found = simulate(
            system, Multipliers(jaxdae.Baumgarte(20.0, 100.0)),
            start, t1=1.2, dt=0.01, backend=backend,
            controller=Sampled(pid, period),
        )  # fmt: skip
        assert found.backend == backend
        return np.abs(jax.vmap(error)(found.ts, found.q)).max()

    errors = [largest(0.02, feedforward=ahead), largest(0.01, feedforward=ahead)]
    assert largest(0.01) > 10 * errors[1]
    # Of first order; filter and integral change with the period, too.
    assert 1.6 < errors[0] / errors[1] < 2.4


@pytest.mark.slow
@BACKENDS
def test_gradients_go_through_the_design_of_lqg_to_the_end_of_a_run(backend):
    """By weights and noise, through both Riccati equations, a varying gain and its covariance."""
    linear, start = pair(), State(jnp.array([0.1, 0.2]), jnp.zeros(2))

    def end(x):
        law = lqg(
            linear, place, period=PERIOD, Q=jnp.diag(jnp.array([1.0, 0.0])) * x,
            V=jnp.eye(1) * x, covariance=0.1 * jnp.eye(2) / x, errors=(),
        )  # fmt: skip
        controller = Sampled(law, PERIOD, measure=law.measured)
        found = simulate(
            Pair(), Multipliers(solve=MinimumNormSolve()), start, t1=1.0, dt=PERIOD / 4,
            solver=RK4(), controller=controller, backend=backend,
            adjoint=diffrax.DirectAdjoint() if backend == "plain" else None,
        )  # fmt: skip
        return found.q[-1, 0]

    end = jax.jit(end)
    difference = (end(1.0 + 1e-5) - end(1.0 - 1e-5)) / 2e-5
    # h^2 of the third derivative; round-off of 1e-15 over 2e-5.
    np.testing.assert_allclose(jax.grad(end)(1.0), difference, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(jax.jacfwd(end)(1.0), difference, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_errors_of_many_runs_have_the_covariance_that_the_filter_remembers():
    """Starts and measurements of Gaussian noise, 4000 of them, in one batch of a kernel."""
    linear, P0, V = pair(), np.diag([0.04, 0.09]), np.array([[0.02]])
    law = lqg(linear, place, period=PERIOD, W=np.zeros((2, 2)), V=V, covariance=P0)
    starts, sensors = jax.random.split(jax.random.key(7))
    noise = np.sqrt(V[0, 0]) * jax.random.normal(sensors, (4000, 6, 1))
    x = jax.random.normal(starts, (4000, 2)) @ np.sqrt(P0)

    def error(x, noise):
        measure = lambda t, q, v, w, n: place(t, q, v, w) + n  # noqa: E731
        state = State(jnp.stack([x[0], 2 * x[0]]), jnp.stack([x[1], 2 * x[1]]))
        found = simulate(
            Pair(), Multipliers(solve=MinimumNormSolve()), state, t1=5 * PERIOD, dt=PERIOD / 8,
            controller=Sampled(law, PERIOD, measure=measure, noise=noise), backend="native",
            solver=RK4(), saveat=diffrax.SaveAt(ts=jnp.array([4 * PERIOD, 5 * PERIOD])),
        )  # fmt: skip
        # What was predicted at the sample before, and its covariance.
        memory = found.w[0, found.w.shape[1] - 6 :]
        return jnp.stack([found.q[1, 0], found.v[1, 0]]) - memory[:2], memory[2:].reshape(2, 2)

    errors, P = jax.vmap(error)(x, noise)
    # All members remember the same one; of 4000 samples variances are within 5 % at two sigma.
    np.testing.assert_allclose(P, np.broadcast_to(P[0], P.shape), rtol=1e-12)
    found, size = np.cov(np.asarray(errors).T), np.sqrt(np.diag(P[0]))
    np.testing.assert_allclose(found / np.outer(size, size), P[0] / np.outer(size, size), atol=0.07)
    # Without measurements they would be ten times as large.
    free = np.linalg.matrix_power(np.asarray(law.filter.A), 5)
    assert (np.diag(P[0]) < 0.1 * np.diag(free @ P0 @ free.T)).all()
