"""Controllers that are asked at samples: the exact motion of an oscillator between them.

The mass on a spring, `q'' + k q = u`, moves from sample to sample by a rotation about `u / k`; the
controller is a digital PI law with a damping by the velocity, written a second time in NumPy's
terms. Samples are at multiples of the period, and at the start.
"""

import itertools
import warnings
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.spring import Spring
from helpers.systems import Bead
from jaxdae import BackendError, Baumgarte, Hamiltonian, Multipliers, simulate, State
from jaxdae.control import AbstractSampledController
from jaxdae.solvers import Projected, Rodas5P

PID = diffrax.PIDController(rtol=1e-10, atol=1e-10)
START = State(jnp.array([0.3]), jnp.zeros(1))
END = 2.0
# Steps of order 8 between the samples, or adaptive ones of 1e-10.
ERROR = {"rtol": 0, "atol": 1e-8}


class Digital(AbstractSampledController):
    """`u = K_P e - K_D v + K_I sum(e) period`, held; the memory is `u` and the sum."""

    K_P: float | jax.Array = 3.0
    K_I: float | jax.Array = 1.5
    period: float | jax.Array = 0.13

    def memory(self, t, state):
        return jnp.zeros(2, state.q.dtype)

    def sample(self, t, q, v, w, c):
        e = 1.0 - q[0]
        total = c[1] + self.period * e
        return jnp.stack([self.K_P * e - 0.5 * v[0] + self.K_I * total, total])

    def output(self, t, q, v, w, c):
        return c[0]


def samples(period, end, start=0.0):
    """Times at which the controller is asked, and the end."""
    inner = np.arange(np.floor(start / period) + 1, np.ceil(end / period)) * period
    return [start, *inner[inner < end - 1e-12], end]


def exact(end=END, stiffness=4.0, K_P=3.0, K_I=1.5, period=0.13, q=0.3, start=0.0):
    """Position and velocity at the end, and the control input before it."""
    w, v, total, u = stiffness**0.5, 0.0, 0.0, 0.0
    times = samples(period, end, start)
    for t, following in itertools.pairwise(times):
        total = total + period * (1.0 - q)
        u = K_P * (1.0 - q) - 0.5 * v + K_I * total
        c, s = jnp.cos(w * (following - t)), jnp.sin(w * (following - t))
        a, b = q - u / stiffness, v / w
        q, v = u / stiffness + a * c + b * s, w * (b * c - a * s)
    return jnp.stack([q, v, u])


def moved(backend: Any = "native", *, controller=None, stiffness=4.0, state=START, **settings):
    default = {} if "dt" in settings else {"stepsize_controller": PID}
    how: dict[str, Any] = {"t1": END} | default | settings
    controller = Digital() if controller is None else controller
    return simulate(
        Spring(stiffness), Multipliers(), state, controller=controller, backend=backend, **how
    )


@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("native", {"dt": 0.05}),
        ("native", {"stepsize_controller": PID}),
        ("native", {"dt": 0.02, "solver": Rodas5P()}),
        ("native", {"dt": 0.05, "solver": Projected(diffrax.Dopri8())}),
        pytest.param("plain", {"dt": 0.05}, marks=pytest.mark.slow),
        pytest.param("plain", {"stepsize_controller": PID}, marks=pytest.mark.slow),
    ],
    ids=["fixed", "adaptive", "rodas", "projected", "plain fixed", "plain adaptive"],
)
def test_it_is_the_exact_motion_between_samples(backend, how):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = moved(backend, **how)
    assert found.backend == backend
    ends = jnp.concatenate([found.q[-1], found.v[-1], found.w[-1, :1]])
    np.testing.assert_allclose(ends, exact(), **ERROR)


def test_a_start_and_an_end_between_samples():
    found = moved(t0=0.2, t1=1.95, dt=0.05)
    ends = jnp.concatenate([found.q[-1], found.v[-1], found.w[-1, :1]])
    # 1.95 = 15 periods: a row at a sample has the input of after it.
    before = exact(1.95, start=0.2)
    np.testing.assert_allclose(ends[:2], before[:2], **ERROR)
    after = exact(1.95 + 1e-9, start=0.2)
    np.testing.assert_allclose(ends[2], after[2], **ERROR)


@pytest.mark.parametrize("backend", ["native", pytest.param("plain", marks=pytest.mark.slow)])
def test_the_memory_is_held_between_samples_and_new_at_them(backend):
    period = Digital().period
    ts = jnp.array([0.0, 0.05, 0.129, 3 * period, 0.4, 0.5, 1.0])
    found = moved(backend, saveat=diffrax.SaveAt(ts=ts))
    wanted = [exact(float(t) + (1e-9 if t in (0.0, 3 * period) else 0.0))[2] for t in ts]
    np.testing.assert_allclose(found.w[:, 0], jnp.stack(wanted), **ERROR)
    np.testing.assert_array_equal(found.u[:, 0] if found.u.ndim > 1 else found.u, found.w[:, 0])


def test_steps_end_at_samples_and_are_no_longer_than_asked_for():
    found = moved(dt=0.05)
    # Three steps from sample to sample, and one from 1.95 to 2.
    steps = np.diff(found.ts)
    np.testing.assert_allclose(steps, [*[0.13 / 3] * 45, 0.05], rtol=1e-12)
    for t in samples(0.13, END):
        assert np.abs(found.ts - t).min() < 1e-14


@pytest.mark.slow
def test_derivatives_in_both_modes():
    def end(stiffness, K_P, K_I, q):
        found = moved(
            controller=Digital(K_P, K_I), stiffness=stiffness,
            state=State(jnp.reshape(q, 1), jnp.zeros(1)), max_steps=500,
        )  # fmt: skip
        return found.q[-1, 0] + 0.1 * found.w[-1, 0]

    def true(stiffness, K_P, K_I, q):
        q, _, u = exact(END, stiffness, K_P, K_I, q=q)
        return q + 0.1 * u

    at = (4.0, 3.0, 1.5, 0.3)
    by = (0, 1, 2, 3)
    wanted = jax.grad(true, by)(*at)
    for differentiate in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(differentiate(end, by)(*at), wanted, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_derivatives_by_the_period_are_those_of_the_times_of_samples():
    """The period is in the sum of the errors, and in when the steps end; kernels know the first."""

    def end(period, backend):
        controller, adjoint = Digital(period=period), diffrax.DirectAdjoint()
        found = moved(backend, controller=controller, adjoint=adjoint, max_steps=100)
        return found.q[-1, 0]

    # As many samples on both sides of 2 s.
    steps = np.array([0.13 + 1e-5, 0.13 - 1e-5])
    difference = (exact(period=steps[0])[0] - exact(period=steps[1])[0]) / 2e-5
    found = jax.grad(lambda x: end(x, "auto"))(0.13)
    np.testing.assert_allclose(found, difference, rtol=0, atol=1e-6)
    with pytest.raises(BackendError, match="period of a controller that is sampled"):
        jax.jacfwd(lambda x: end(x, "native"))(0.13)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "plain"])
def test_members_with_periods_of_their_own_beside_one_that_fails(backend):
    periods = jnp.array([0.05, 0.13, 0.2, 3.0])
    starts = jnp.array([0.3, jnp.nan, -0.4, 0.1])

    def end(period, q):
        found = moved(
            backend, controller=Digital(period=period), throw=False, start_tolerance=None,
            state=State(jnp.reshape(q, 1), jnp.zeros(1)), max_steps=500,
        )  # fmt: skip
        return found.q[-1, 0]

    values = jax.vmap(end)(periods, starts)
    for i in (0, 2, 3):
        wanted = exact(period=float(periods[i]), q=float(starts[i]))[0]
        # 2 is a multiple of 0.05 and of 0.2, and nothing moves within a round-off of it.
        np.testing.assert_allclose(values[i], wanted, **ERROR)
    assert not np.isfinite(values[1])


class Sine(eqx.Module):
    """A policy whose derivative at no number is none."""

    gain: jax.Array

    def __call__(self, t, q, v, w, memory):
        return jnp.sin(self.gain * q) - v, memory


@pytest.mark.parametrize("backend", ["native", "plain"])
def test_a_start_without_numbers_spoils_no_gradient_that_members_share(backend):
    """Of a gain of the policy, which is asked at the start, too."""

    def end(gain, q):
        found = moved(
            backend, controller=jaxdae.Sampled(Sine(gain), 0.13), throw=False, t1=0.2, dt=0.1,
            start_tolerance=None, state=State(jnp.reshape(q, 1), jnp.zeros(1)),
        )  # fmt: skip
        return jnp.where(found.success, found.q[-1, 0], 0.0)

    def gradient(starts):
        return jax.grad(lambda x: jax.vmap(lambda q: end(x, q))(starts).sum())(0.7)

    found, wanted = gradient(jnp.array([0.3, jnp.nan])), gradient(jnp.array([0.3]))
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


class Torque(AbstractSampledController):
    """A torque on the pendulum that brakes, held from sample to sample."""

    period: float = 0.07

    def memory(self, t, state):
        return jnp.zeros_like(state.q)

    def sample(self, t, q, v, w, c):
        return -2.0 * v

    def output(self, t, q, v, w, c):
        return c


@pytest.mark.slow
def test_formulations_agree_on_constraints():
    bead, ends = Bead(lambda _, u: u, 9.81), []
    state = State(jnp.array([1.0, 0.0]), jnp.array([0.0, 0.5]))
    for formulation, solver in (
        (Multipliers(Baumgarte(20.0, 100.0)), diffrax.Dopri8()),
        (Hamiltonian(), Projected(diffrax.Dopri8())),
        (jaxdae.QuasiVelocities(), diffrax.Dopri8()),
    ):
        found = simulate(
            bead, formulation, state, t1=1.0, controller=Torque(), backend="native",
            stepsize_controller=PID, solver=solver,
        )  # fmt: skip
        ends.append(jnp.concatenate([found.q[-1], found.v[-1], found.w[-1]]))
    for one in ends[1:]:
        np.testing.assert_allclose(one, ends[0], rtol=0, atol=1e-7)


class Growing(Digital):
    """Keeps all that it has measured."""

    def sample(self, t, q, v, w, c):
        return jnp.append(c, q[0])


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"controller": Digital(period=np.nan)}, "period of Digital must be a positive number of"),
        ({"controller": Growing()}, r"memory has shape \(2,\), and Growing.sample makes \(3,\)"),
        ({"t0": 1.0, "t1": 0.0}, "keeps a memory, which a run backward in time cannot give back"),
        (
            {"stepsize_controller": diffrax.StepTo(jnp.linspace(0.0, END, 9))},
            "steps of StepTo end at their own times, not at the samples of Digital; give dt",
        ),
    ],
)
def test_what_cannot_be_sampled_is_refused(how, message):
    with pytest.raises(ValueError, match=message):
        moved(**how)


def test_fixed_steps_of_unknown_number_are_refused():
    with pytest.raises(ValueError, match="fixed steps that end at the samples of Digital"):
        jax.vmap(lambda x: moved(controller=Digital(period=x), dt=0.05).q)(jnp.array([0.1, 0.2]))


def test_a_program_that_finds_out_to_run_backward_in_time_fails():
    end = jax.jit(lambda t1: moved(t1=t1, throw=False).q[-1, 0])
    assert np.isfinite(end(0.2))
    assert np.isnan(end(-0.2))
    with pytest.raises(RuntimeError, match="which no run backward in time has"):
        jax.jit(lambda t1: moved(t1=t1).q[-1, 0])(-0.2).block_until_ready()


@pytest.mark.slow
def test_many_samples_far_from_zero():
    """Multiples of a period that no binary number is, where their round-off is largest."""
    t0, dtype = 100.0, jnp.float32
    state = State(jnp.array([0.3], dtype), jnp.zeros(1, dtype))
    found = moved(
        t0=t0, t1=t0 + 2.0, controller=Digital(period=0.1), state=state,
        stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5),
    )  # fmt: skip
    # In single precision times near 100 s are off by 8e-6 s; the law answers within a period.
    np.testing.assert_allclose(found.q[-1, 0], exact(period=0.1)[0], rtol=0, atol=1e-4)
    samples = np.unique(np.asarray(found.w[:, 1])).size
    assert samples == 21


def test_it_is_not_exported(tmp_path):
    how = {"t1": END, "dt": 0.05, "controller": Digital()}
    with pytest.raises(BackendError, match="compiled run has no controller that is sampled"):
        jaxdae.export(Spring(), Multipliers(), START, directory=tmp_path, name="spring", **how)
    with pytest.raises(BackendError, match="compiled run has no controller that is sampled"):
        jaxdae.compile_run(Spring(), Multipliers(), START, **how)
