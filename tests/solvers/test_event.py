"""Integrations that end where a function falls to zero, against exact times on both backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.systems import HarmonicOscillator
from jaxdae import BackendError, Multipliers, State
from jaxdae.events.crossings import FirstCrossing
from jaxdae.events.declaration import Event
from jaxdae.runs import integrated, prepare

LEVEL, RATE = 0.2, 2.0
DEFAULTS = {
    "t0": 0.0, "t1": 3.0, "dt": None, "solver": None, "stepsize_controller": None, "saveat": None,
    "controller": None, "adjoint": None, "progress": False, "throw": False, "work": False,
    "start_tolerance": 1e-4, "max_steps": 4096,
}  # fmt: skip


def ended(start, backend):
    """`start cos(RATE t)` until it falls to the level."""
    state, one = State(jnp.array([start]), jnp.zeros(1)), jnp.ones(1)
    level = Event(lambda t, q, v, w: q[0] - LEVEL)
    event = FirstCrossing((level,), one, 0 * one, one, jnp.zeros(()))
    system = HarmonicOscillator(RATE**2)
    problem, method = prepare(system, Multipliers(), state, **DEFAULTS | {"backend": backend})
    return integrated(problem._replace(event=event), method)


@pytest.mark.parametrize("backend", ["plain", "native"])
def test_it_ends_within_a_step_where_the_function_is_zero_to_round_off(backend):
    run = ended(1.0, backend)
    # Dense output of Dopri8 at its default tolerance.
    np.testing.assert_allclose(run.final_time, np.arccos(LEVEL) / RATE, rtol=0, atol=1e-6)
    velocity = -RATE * np.sqrt(1 - LEVEL**2)
    np.testing.assert_allclose(run.last_state.v[0], velocity, rtol=0, atol=1e-6)
    np.testing.assert_allclose(run.final_state.q[0], LEVEL, rtol=0, atol=1e-13)
    assert run.backend == backend


def test_a_kernel_alone_has_no_derivative_of_an_integration_that_ends_so():
    with pytest.raises(BackendError, match="an event ends, times depend on what is"):
        jax.grad(lambda x: ended(x, "native").final_time)(1.0)
