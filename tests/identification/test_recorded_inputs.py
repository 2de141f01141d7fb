"""Fits of systems whose inputs were recorded: lags, divided records, times that count on."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from helpers.measured_oscillator import FORMULATION, Oscillator, place
from jaxdae.control import Recorded
from jaxdae.identification import Channel, Experiment, identify, Measurement, UnknownStart

TIMES = np.linspace(0.0, 4.0, 81)
FORCE = 3 * np.interp(TIMES, np.arange(0, 5), np.random.default_rng(1).normal(size=5))
LAG = 0.035
FREE = UnknownStart(jaxdae.State([1.0], [0.0]))
GUESS = {"stiffness": jnp.array(3.5), "lag": jnp.array(0.0)}


class Pushed(Oscillator):
    def force(self, t, q, v, w, u):
        return u


def build(params, force):
    return Pushed(stiffness=params["stiffness"]), FORMULATION, force.delayed(params["lag"])


def experiment(t0=0.0, **options):
    """From SciPy, a force that acts a little later than it was recorded; starts at a time `t0`."""

    def rate(t, y):
        force = np.interp(t - t0 - LAG, TIMES, FORCE)
        return y[1], force - 4.0 * y[0] - 0.2 * y[1]

    found = solve_ivp(rate, (t0, t0 + 4.0), (1.0, 0.0), t_eval=t0 + TIMES[1:], rtol=1e-9, atol=1e-9)
    values = found.y[0] + 1e-3 * np.random.default_rng(2).normal(size=80)
    force = Recorded(t0 + TIMES, FORCE[:, None])
    start = jaxdae.State([1.0], [0.0])
    measured = {"place": Measurement(values, 1e-3)}
    return Experiment(t0 + TIMES[1:], measured, start, t0=t0, conditions=force, **options)


def fitted(experiments, **options):
    channels = {"place": Channel(place, "m")}
    return identify(build, GUESS, experiments, channels=channels, dt=0.05, **options)


def test_a_lag_is_estimated_with_the_parameters():
    result = fitted(experiment())
    wanted = {"lag": LAG, "stiffness": 4.0}
    assert result.standard_error("lag") < 2e-3
    for name, value in wanted.items():
        assert abs(result[name] - value) < 4 * result.standard_error(name)


@pytest.mark.slow
def test_records_and_intervals_that_start_at_other_times_are_one_batch():
    """The clock of a record does not matter, and the estimate is that of one record alone."""
    one, later = (dataclasses.replace(experiment(t0), start=FREE) for t0 in (0.0, 7.0))
    one, many = fitted(one), fitted(later, intervals=3)
    assert len(many.problem[0].fit.batches) == 1
    # Steps of each interval have errors of their own.
    np.testing.assert_allclose(many.values, one.values, atol=0.1 * one.standard_errors.min())


def test_rows_of_a_run_have_the_input_at_their_own_times():
    record = experiment(t0=7.0)
    samples = np.interp(record.ts - 7.0 - LAG, TIMES, FORCE)
    noise = 0.01 * np.random.default_rng(3).normal(size=80)
    one = dataclasses.replace(
        record,
        measurements={**record.measurements, "force": Measurement(samples + noise, 0.01)},
        controller=record.conditions.delayed(LAG),
        conditions=None,
    )
    channels = {"place": Channel(place, "m"), "force": Channel(lambda run: run.u[:, 0], "N")}
    result = identify(
        lambda params: (Pushed(stiffness=params["stiffness"]), FORMULATION),
        {"stiffness": GUESS["stiffness"]},
        one,
        channels=channels,
        dt=0.05,
    )
    np.testing.assert_allclose(result.data[0]["force"].residuals, noise, atol=1e-12)
