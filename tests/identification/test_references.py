"""Problems in print, and others with known parameters: pendulum, motor, friction."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from jaxdae.identification import Channel, Experiment, identify, Measurement
from jaxdae.models import CartesianPendulum, CurrentDrive
from jaxdae.solvers import RK4

STABLE = jaxdae.Multipliers(jaxdae.Baumgarte.critical(20.0))


def place(run):
    return run.q[:, 0]


def height(run):
    return run.q[:, 1]


def rod(run):
    return run.multipliers[:, 0]


PLACES = {"x": Channel(place, unit="m"), "y": Channel(height, unit="m")}


@pytest.mark.slow
@pytest.mark.newest
def test_gravity_from_the_printed_end_of_a_pendulum():
    """PAREST's pendulum: length 0.5, mass 0.3, from (0.4, -0.3) at rest, both places at t = 2.

    The numbers are those that the documentation of PROPT prints for it; they are 4e-6 m off the
    circle, so that no gravity gives both. SciPy's integration of the angle says the rest.
    """
    state = jaxdae.State([0.4, -0.3], [0.0, 0.0])
    samples = {"x": Measurement([-0.231625], 5e-6), "y": Measurement([-0.443109], 5e-6)}
    result = identify(
        lambda p: (CartesianPendulum(mass=0.3, length=0.5, gravity=p["gravity"]), STABLE),
        {"gravity": jaxdae.tuning.Positive(9.0)}, Experiment([2.0], samples, state),
        channels=PLACES, dt=0.01,
    )  # fmt: skip

    def rate(_, y):
        return [y[1], -result["gravity"] / 0.5 * np.sin(y[0])]

    angle = solve_ivp(rate, (0, 2), [np.arctan2(0.4, 0.3), 0.0], rtol=1e-11, atol=1e-12).y[0, -1]
    np.testing.assert_allclose(0.5 * np.sin(angle), -0.231625, atol=6e-6)
    np.testing.assert_allclose(-0.5 * np.cos(angle), -0.443109, atol=6e-6)
    # Where the horizontal place alone is met, by SciPy: 9.826539.
    assert abs(result["gravity"] - 9.826539) < 3 * result.standard_error("gravity") < 3e-5 * 9.8


@pytest.mark.slow
@pytest.mark.newest
def test_mass_and_length_of_a_pendulum_from_its_place_and_its_rod():
    """EASY-FIT's PENDU_I3: parameters m and l, samples with an error of 1 % up to t = 10.

    Places say nothing of the mass; the multiplier of the index-3 form does.
    """
    start = lambda system: jaxdae.State(*system.released_from(0.5 * jnp.pi))  # noqa: E731
    ts = np.linspace(0.1, 10.0, 100)
    run = jaxdae.simulate(
        CartesianPendulum(), STABLE, start(CartesianPendulum()), t1=10.0,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
    )  # fmt: skip
    rng = np.random.default_rng(4)
    noisy = lambda x, s: Measurement(np.asarray(x) + s * rng.normal(size=100), s)  # noqa: E731
    channels = {**PLACES, "rod": Channel(rod, unit="N/m")}
    samples = {
        "x": noisy(place(run), 0.01), "y": noisy(height(run), 0.01), "rod": noisy(rod(run), 0.15)
    }  # fmt: skip
    guess = {"mass": jaxdae.tuning.Positive(1.3), "length": jaxdae.tuning.Positive(0.97)}
    build = lambda p: (CartesianPendulum(**p), STABLE)  # noqa: E731
    result = identify(build, guess, Experiment(ts, samples, start), channels=channels, dt=0.02)
    errors = np.abs(result.values - 1.0) / result.standard_errors
    assert (errors < 3).all()
    assert result.probability > 1e-3
    without = Experiment(ts, {x: samples[x] for x in PLACES}, start)
    with pytest.warns(RuntimeWarning, match="no channel sees mass"):
        alone = identify(build, guess, without, channels=PLACES, dt=0.02)
    assert np.isinf(alone.standard_error("mass"))
    assert np.isfinite(alone.standard_error("length"))


def speed(run):
    return run.v[:, 0]


def current(run):
    return run.w[:, 0]


@pytest.mark.slow
@pytest.mark.newest
def test_constants_of_a_motor_and_its_friction():
    """Resistance, motor constant and friction of a geared motor from its speed and current."""
    formulation = jaxdae.Multipliers(jaxdae.Baumgarte.critical(50.0))
    reference = {"resistance": 2.6, "motor_constant": 7.68e-3, "damping": 0.015}
    drive = CurrentDrive()
    q, v = drive.start()
    state = jaxdae.State(q, v, drive.actuators())
    ts = np.linspace(0.005, 0.3, 60)
    run = jaxdae.simulate(
        drive, formulation, state, t1=0.3, dt=1e-4, saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
        solver=RK4(),
    )  # fmt: skip
    rng = np.random.default_rng(6)
    noise = {"speed": 0.5, "current": 0.01}
    channels = {"speed": Channel(speed, unit="rad/s"), "current": Channel(current, unit="A")}
    samples = {
        name: Measurement(np.asarray(x.reading(run)) + noise[name] * rng.normal(size=60))
        for name, x in channels.items()
    }
    guess = {name: jaxdae.tuning.Positive(1.2 * x) for name, x in reference.items()}
    result = identify(
        lambda p: (CurrentDrive(**p), formulation), guess, Experiment(ts, samples, state),
        channels=channels, dt=1e-4, solver=RK4(),
    )  # fmt: skip
    expected = np.array([reference[name] for name in result.names])
    assert (np.abs(result.values - expected) < 3 * result.standard_errors).all()
    # Noise levels are known to about 1 / sqrt(120) of themselves.
    found = np.array([result.noise[name] for name in noise])
    np.testing.assert_allclose(found, list(noise.values()), rtol=0.3)
