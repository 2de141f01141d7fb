"""Inputs of a record: values between samples, lags and their derivatives, in both backends."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.measured_oscillator import FORMULATION
from jaxdae.control import Held, Interpolated, Recorded
from jaxdae.simulation.backends import Backend

TIMES = np.array([0.0, 0.11, 0.2, 0.32, 0.4, 0.55, 0.6, 0.73, 0.9, 1.0])
VALUES = np.random.default_rng(0).normal(size=(10, 2))
AT = np.linspace(-0.2, 1.3, 301)


def test_linear_values_are_those_of_numpy():
    read = jax.vmap(Recorded(TIMES, VALUES, lag=0.05))(AT)
    for k in range(2):
        np.testing.assert_allclose(
            read[:, k], np.interp(AT - 0.05, TIMES, VALUES[:, k]), atol=1e-12
        )


def test_held_values_are_those_of_the_last_sample():
    """At a sample itself, but for round-off of the time, its own."""
    read = jax.vmap(Recorded(TIMES, VALUES, "held"))
    places = np.clip(np.searchsorted(TIMES, AT + 1e-13, side="right") - 1, 0, None)
    np.testing.assert_array_equal(read(AT), VALUES[places])
    np.testing.assert_array_equal(read(TIMES * (1 - 1e-15)), VALUES)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 9])
def test_records_of_any_length_are_read_to_their_end(count):
    for kind in ("linear", "held"):
        one = Recorded(TIMES[:count], VALUES[:count], kind)
        assert one.values.shape[0] == max(2, 2 ** int(np.ceil(np.log2(count))))
        read = jax.vmap(one)(TIMES[:count])
        np.testing.assert_allclose(read, VALUES[:count], atol=1e-15)
        np.testing.assert_allclose(one(50.0), VALUES[count - 1], atol=1e-15)


class Pushed(jaxdae.System):
    """A mass on a spring with two forces."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 2.0 * q @ q

    def force(self, t, q, v, w, u):
        return u[:1] - 0.5 * u[1:]


def end(controller, backend: Backend = "auto", dt=0.005, **options):
    start = jaxdae.State([0.5], [0.0])
    run = jaxdae.simulate(
        Pushed(), FORMULATION, start, t1=1.0, dt=dt, controller=controller, backend=backend,
        **options,
    )  # fmt: skip
    return jnp.concatenate([run.q[-1], run.v[-1]])


def test_both_backends_read_the_same_and_steps_at_the_samples_agree():
    """Between steps of 1/200 s the input has kinks: errors of the square of the step, at most."""
    one = Recorded(TIMES, VALUES)
    np.testing.assert_allclose(end(one), end(one, "plain"), rtol=1e-12)
    np.testing.assert_allclose(end(one), end(Interpolated(TIMES, VALUES)), atol=1e-4)
    # Jumps between steps are seen up to half a step off: errors of the step.
    held = Recorded(TIMES, VALUES, "held")
    np.testing.assert_allclose(end(held), end(Held(TIMES, VALUES)), atol=0.03)


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_the_derivative_by_a_lag_is_that_of_differences(backend):
    """In both modes, and under `vmap` with a member beside whose lag is no number."""

    def at(lag):
        adjoint = diffrax.DirectAdjoint()
        return end(
            Recorded(TIMES, VALUES).delayed(lag), backend, adjoint=adjoint, throw=False, dt=0.02
        )

    h = 1e-6
    wanted = (at(0.031 + h) - at(0.031 - h)) / (2 * h)
    forward = jax.jvp(at, (0.031,), (1.0,))[1]
    # Differences lose about half the digits.
    np.testing.assert_allclose(forward, wanted, rtol=1e-6)
    if backend == "auto":
        reverse = jax.grad(lambda lag: at(lag)[0])(0.031)
        np.testing.assert_allclose(reverse, wanted[0], rtol=1e-6)
        value, both = jax.vmap(lambda lag: jax.jvp(at, (lag,), (1.0,)))(jnp.array([0.031, jnp.nan]))
        np.testing.assert_allclose(both[0], forward, rtol=1e-10)
        assert np.isnan(value[1]).all()


def test_a_lag_of_a_held_input_is_a_number():
    held = Recorded(TIMES, VALUES, "held")
    np.testing.assert_array_equal(held.delayed(0.1)(0.31), held(0.21))
    with pytest.raises(ValueError, match='Take kind="linear" to estimate it'):
        jax.jacfwd(lambda lag: held.delayed(lag)(0.3))(0.1)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Recorded(TIMES[::-1], VALUES), "times of Recorded must be finite and increasing"),
        (lambda: Recorded(TIMES, VALUES[1:]), "values of shape .9, 2. at 10 times"),
        (
            lambda: Recorded(TIMES, VALUES, "cubic"),
            "No interpolation is named 'cubic'. Available: linear, held",
        ),
        (lambda: Recorded(TIMES, VALUES, lag=np.inf), "lag is inf, must be one finite number"),
        (
            lambda: Recorded(TIMES, np.where(TIMES[:, None] == 0.2, np.nan, VALUES)),
            "value at t = 0.2 s is .nan nan.; an input has to be known at all times",
        ),
    ],
)
def test_what_is_no_input_is_refused(made, message):
    with pytest.raises(ValueError, match=message):
        made()
