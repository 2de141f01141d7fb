"""Digital PID control: the published listing in NumPy, what anti-windup promises, gradients."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import Spring
from jaxdae import Multipliers, Sampled, simulate, State
from jaxdae.control import (
    DigitalFilter,
    DigitalPID,
    Parallel,
    PD,
    Quantizer,
    RateLimit,
    Saturation,
    Series,
)
from jaxdae.solvers import RK4
from jaxdae.tuning import Positive, resolve

PERIOD = 0.1
SETTINGS: dict[str, Any] = {
    "K_P": 3.0, "K_I": 2.0, "K_D": 0.4, "filter_time": 0.05, "lower": -1.0, "upper": 1.2,
    "rate": 8.0, "tracking_time": 0.5,
}  # fmt: skip


def measured(_, y):
    """An error that is measured."""
    return y


def left(_, q):
    """What is left to a place of 1."""
    return 1.0 - q


def listing(errors):
    """Outputs for errors, one after the other; the order of Astrom and Wittenmark's program."""
    s = SETTINGS
    # Coefficients of the program: d = ad d - bd (change), i += bi e + ao (u - v).
    ad = s["filter_time"] / (s["filter_time"] + PERIOD)
    bd = s["K_D"] / (s["filter_time"] + PERIOD)
    bi, ao = s["K_I"] * PERIOD, PERIOD / s["tracking_time"]
    i = d = u = 0.0
    before, outputs = errors[0], []
    for e in errors:
        d = ad * d + bd * (e - before)
        v = s["K_P"] * e + i + d
        u += np.clip(np.clip(v, s["lower"], s["upper"]) - u, -0.8, 0.8)
        i += bi * e + ao * (u - v)
        before = e
        outputs.append(u)
    return outputs


def outputs(pid, signal):
    memory, given = pid.memory, []
    for y in signal:
        u, memory = pid(0.0, y, memory)
        given.append(u)
    return np.array(given), memory


def test_it_is_the_published_program(rng):
    errors = 0.5 * rng.normal(size=25)
    pid = DigitalPID(measured, PERIOD, **SETTINGS)
    found, _ = outputs(pid, errors[:, None])
    np.testing.assert_allclose(found[:, 0], listing(errors), rtol=1e-12, atol=1e-14)
    assert len({-1.0, 1.2} & {*found[:, 0]}) == 2


def test_without_limits_matrices_couple_the_errors(rng):
    K_P, K_I, K_D = rng.normal(size=(3, 2, 2))
    errors = rng.normal(size=(6, 2))
    pid = DigitalPID(
        measured, PERIOD, jnp.asarray(K_P), jnp.asarray(K_I), jnp.asarray(K_D),
        feedforward=jnp.array([0.1, -0.3]), size=2,
    )  # fmt: skip
    found, _ = outputs(pid, errors)
    changes = np.diff(errors, axis=0, prepend=errors[:1])
    sums = np.cumsum(errors, axis=0) - errors
    wanted = errors @ K_P.T + PERIOD * sums @ K_I.T + changes @ K_D.T / PERIOD + [0.1, -0.3]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("tracking_time", [None, 0.5])
def test_back_calculation_keeps_the_integral_from_winding_up(tracking_time):
    """In saturation the wanted output stays `K_I e T_t` beyond the limit, however long."""
    pid = DigitalPID(measured, PERIOD, 3.0, 2.0, upper=1.0, tracking_time=tracking_time)
    error = jnp.array([0.7])
    _, memory = outputs(pid, [error] * 200)
    beyond = 3.0 * error + memory.integral - 1.0
    time = PERIOD if tracking_time is None else tracking_time
    np.testing.assert_allclose(beyond, 2.0 * error * time, rtol=1e-9)
    # It leaves the limit at the first sample at which the error has another sign.
    u, _ = pid(0.0, -error, memory)
    assert u[0] < 0


def chain(scale: Any = 1.0):
    """All parts of a digital controller, with gains that grow with `scale`."""
    pid = DigitalPID(
        left, PERIOD, 3.0 * scale, 2.0 * scale, 0.4 * scale,
        filter_time=0.05, lower=-2.0, upper=2.5, rate=12.0, tracking_time=0.5,
    )  # fmt: skip
    low, notch = DigitalFilter.low_pass(20.0, PERIOD), DigitalFilter.notch(15.0, PERIOD)
    limits = RateLimit(9.0, PERIOD), Saturation(-2.2, 2.0)
    return Parallel(Series(pid, low, notch, *limits, Quantizer(1e-12)), PD(left, 0.3 * scale, 0.2))


@pytest.mark.slow
def test_gradients_by_gains_agree_in_both_modes_and_backends_with_differences():
    """A quantizer of fine steps: its derivative is that of the signal, up to their size."""
    start = State(jnp.array([0.3]), jnp.zeros(1))

    def end(scale, backend: Any = "native", adjoint=None):
        found = simulate(
            Spring(4.0), Multipliers(), start, t1=2.0, dt=0.05, solver=RK4(),
            controller=Sampled(chain(scale), PERIOD), backend=backend,
            **({} if adjoint is None else {"adjoint": adjoint}),
        )  # fmt: skip
        assert found.backend == backend
        return found.q[-1, 0]

    difference = (end(1.0001) - end(0.9999)) / 2e-4
    np.testing.assert_allclose(end(1.0, "plain"), end(1.0), rtol=1e-11)
    for backend in ("native", "plain"):
        for differentiate in (jax.grad, jax.jacfwd):
            adjoint = diffrax.DirectAdjoint() if backend == "plain" else None
            found = differentiate(lambda x, b=backend, a=adjoint: end(x, b, a))(1.0)
            # The second difference of 1e-4, and steps of 1e-12 over 2e-4.
            np.testing.assert_allclose(found, difference, rtol=1e-6)


def test_parametrizations_stand_for_gains_times_and_limits_while_they_are_tuned():
    named: dict[str, Any] = {x: Positive(y) for x, y in SETTINGS.items() if x != "lower"}
    pid = resolve(DigitalPID(measured, PERIOD, lower=-1.0, **named))
    plain = DigitalPID(measured, PERIOD, **SETTINGS)
    signal = jnp.array([[0.3], [-0.2], [1.0]])
    np.testing.assert_allclose(outputs(pid, signal)[0], outputs(plain, signal)[0], rtol=1e-12)


def test_what_is_no_controller_is_refused():
    def error(_, q):
        return -q

    for name in ("K_P", "K_I", "K_D"):
        settings: dict[str, Any] = {"K_P": 1.0, name: np.nan}
        with pytest.raises(ValueError, match=f"{name} is not finite"):
            DigitalPID(error, PERIOD, **settings)
    with pytest.raises(TypeError, match="K_P is True, which is no gain"):
        DigitalPID(error, PERIOD, True)
    with pytest.raises(ValueError, match=r"bounds cross: lower = 1\.0 must be below upper = -1\.0"):
        DigitalPID(error, PERIOD, 1.0, lower=1.0, upper=-1.0)
    for name, unit in (("period", "s"), ("rate", "per second"), ("tracking_time", "s")):
        settings = {"period": PERIOD, "K_P": 1.0, name: 0.0}
        with pytest.raises(ValueError, match=f"{name} must be positive and finite; got 0.0 {unit}"):
            DigitalPID(error, **settings)
    with pytest.raises(ValueError, match=r"filter_time must not be negative; got -0\.1 s"):
        DigitalPID(error, PERIOD, 1.0, filter_time=-0.1)
    with pytest.raises(ValueError, match=r"the error is declared .* must take \(t, q\)"):
        DigitalPID(lambda q: q, PERIOD, 1.0)
    pid = DigitalPID(error, PERIOD, 1.0)
    with pytest.raises(ValueError, match=r"returned shape \(2,\); DigitalPID\(…, size=1\) needs"):
        pid(0.0, jnp.zeros(2), pid.memory)
