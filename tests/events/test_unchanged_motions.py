"""A reset that changes nothing changes nothing, whatever the steps, formulation and controller."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.bouncing import BALL
from helpers.exported import Pendulum
from helpers.spring import Spring
from jaxdae import Event
from jaxdae.control import AbstractSampledController
from jaxdae.parallel import simulate_batch
from jaxdae.solvers import AdamsBashforth, GeneralizedAlpha, RadauIIA, Rodas5P

PENDULUM = Pendulum()
START = jaxdae.State(jnp.array([0.6, -0.8]), jnp.array([0.4, 0.3]))
BAUMGARTE = jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
ROWS = diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 9))


def first(t, q, v, w):
    return q[0]


def kept(t, q, v, w):
    return q, v, w


MIDDLE = Event(first, direction=0, reset=kept, name="middle")


def both(system, formulation, state, **how):
    """A run with an event that changes nothing, and the same without it."""
    settings = {"t1": 2.0, "saveat": ROWS} | how
    return (
        jaxdae.simulate(system, formulation, state, events=events, max_events=6, **settings)
        for events in ([MIDDLE], [])
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formulation", "how", "tolerance"),
    [
        # Errors of steps of the two runs, which end at other times.
        # LAPACK's factorization stands twice in the plain program.
        (jaxdae.Multipliers(BAUMGARTE), {"solver": Rodas5P(), "backend": "plain"}, 1e-5),
        (jaxdae.Multipliers(BAUMGARTE), {"dt": 0.002, "solver": AdamsBashforth(4)}, 1e-5),
        (jaxdae.Multipliers(), {"dt": 0.005, "solver": GeneralizedAlpha()}, 1e-3),
        (jaxdae.Multipliers(), {"solver": RadauIIA()}, 1e-5),
        (jaxdae.RealizingForces(jaxdae.formulations.LinearLaw(1e3)), {}, 1e-5),
        (jaxdae.VelocityElimination((0,)), {"t1": 0.6, "saveat": None}, 1e-6),
    ],
)
def test_methods_and_formulations(formulation, how, tolerance):
    found, without = both(PENDULUM, formulation, START, **how)
    assert len(found.events) >= 1
    np.testing.assert_allclose(found.q, without.q, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.v, without.v, rtol=0, atol=10 * tolerance)
    np.testing.assert_allclose(
        found.events.after.q[0], found.events.before.q[0], rtol=0, atol=tolerance
    )


class Held(AbstractSampledController):
    """A digital controller: the memory is the input and the sum of errors."""

    period: float = 0.13

    def memory(self, t, state):
        return jnp.zeros(2, state.q.dtype)

    def sample(self, t, q, v, w, c):
        total = c[1] - self.period * q[0]
        return jnp.stack([-3.0 * q[0] - 0.5 * v[0] + 1.5 * total, total])

    def output(self, t, q, v, w, c):
        return c[0]


@pytest.mark.parametrize(
    ("controller", "how"),
    [
        (Held(), {"dt": 0.05}),
        pytest.param(
            jaxdae.PID(lambda t, q: -q, K_P=3.0, K_I=1.0, K_D=0.5),
            {},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_controllers_with_a_memory(controller, how):
    """Its state stands behind that of the actuators in `w`, and goes on; samples stay in time."""
    state = jaxdae.State(jnp.array([0.3]), jnp.zeros(1))
    found, without = both(Spring(4.0), jaxdae.Multipliers(), state, controller=controller, **how)
    assert len(found.events) >= 1
    assert found.events.before.w.shape[-1] == found.w.shape[-1] > 0
    # The tolerance of the steps, 1e-8, and dense output between them.
    np.testing.assert_allclose(found.q, without.q, rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.w, without.w, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_batches_of_the_library_have_events():
    starts = jaxdae.State(jnp.array([[1.0], [2.0]]), jnp.zeros((2, 1)))
    found = simulate_batch(
        BALL, jaxdae.Multipliers(), starts, t1=2.0, max_events=6,
        events=[jaxdae.impact(BALL, BALL.gap, 0.8)],
        quantities=lambda run: {"times": run.events.times, "success": run.success},
    )  # fmt: skip
    assert found["success"].all()
    first = np.sqrt(2 * np.array([1.0, 2.0]) / 9.81)
    np.testing.assert_allclose(found["times"][:, 0], first, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["times"][:, 1], 2.6 * first, rtol=0, atol=1e-12)


def test_a_call_like_one_before_gives_the_same():
    """Events are part of what a call is known by."""
    state = jaxdae.State(jnp.ones(1), jnp.zeros(1))

    def run(restitution):
        event = jaxdae.impact(BALL, BALL.gap, restitution)
        return jaxdae.simulate(BALL, jaxdae.Multipliers(), state, t1=1.2, events=event)

    a, b, again = run(0.8), run(0.5), run(0.8)
    assert float(a.events.times[1]) != float(b.events.times[1])
    np.testing.assert_array_equal(a.events.times, again.events.times)
    assert jax.tree.structure(a.events) == jax.tree.structure(again.events)
