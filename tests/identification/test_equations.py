"""Parameters of differential-algebraic equations from measured data."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import Circle, Pendulum, Resonator
from jaxdae.identification import Channel, Experiment, identify, Measurement, UnknownStart
from jaxdae.tuning import Positive

TIMES = np.linspace(0.02, 2.0, 100)
TRUTH = {"resistance": 2.0, "inductance": 0.5, "capacity": 0.1}
GUESS = {"resistance": Positive(1.5), "inductance": Positive(0.7), "capacity": Positive(0.15)}
# Of the values for z only y is known: the current follows from the flux, zero.
START = jaxdae.Variables({"charge": 0.0, "flux": 0.0}, {"coil": 0.0, "current": 0.0})
CHANNELS = {
    "current": Channel(lambda run: run.z["current"], unit="A"),
    "charge": Channel(lambda run: run.y["charge"], unit="C"),
}


def source(t, y, z):
    del t, y, z
    return 1.0


def current(ts):
    """Of the resonator behind a step of one volt, from rest."""
    return np.exp(-2 * ts) * np.sin(4 * ts) / 2


def charge(ts):
    """Its integral from rest."""
    return 0.1 - np.exp(-2 * ts) * (0.1 * np.cos(4 * ts) + 0.05 * np.sin(4 * ts))


def record(rng, noise=1e-3, **options):
    measured = {
        "current": Measurement(current(TIMES) + noise * rng.normal(size=TIMES.size), noise),
        "charge": Measurement(charge(TIMES) + noise * rng.normal(size=TIMES.size), noise),
    }
    settings = {"start": START, "controller": source} | options
    return Experiment(TIMES, measured, **settings)


def circuit(params):
    return Resonator(**params)


def test_a_circuit_is_identified_from_noisy_data():
    """Estimates are within three of the standard errors reported, which are those of noise."""
    result = identify(
        circuit, GUESS, record(np.random.default_rng(3)), channels=CHANNELS, dt=0.05,
    )  # fmt: skip
    assert result.stop_reason == "converged"
    for name, value in TRUTH.items():
        error = result.standard_error(name)
        assert abs(result[name] - value) < 3 * error
        assert error < 0.01 * value
    # Chi-square of 197 degrees of freedom is within three of its standard deviations.
    assert abs(result.chi_square - 197) < 3 * np.sqrt(2 * 197)
    assert result.moved_starts == {"1": 0.0}
    assert isinstance(result.starts[0], jaxdae.Variables)
    np.testing.assert_allclose(result.starts[0].z["coil"], 1.0, rtol=1e-12)


@pytest.mark.slow
def test_backends_and_intervals_agree():
    """Steps that are exact to 1e-9; intervals close their gaps to 1e-5 of the motion's size."""
    one = lambda **options: identify(  # noqa: E731
        circuit, GUESS, record(np.random.default_rng(4)), channels=CHANNELS, **options
    )
    found = one(dt=0.02, backend="native")
    np.testing.assert_allclose(one(dt=0.02, backend="plain").values, found.values, rtol=1e-8)
    np.testing.assert_allclose(one().values, found.values, rtol=1e-5)
    divided = one(dt=0.02, intervals=3)
    np.testing.assert_allclose(divided.values, found.values, rtol=1e-4)
    np.testing.assert_allclose(divided.standard_errors, found.standard_errors, rtol=1e-2)


@pytest.mark.slow
def test_an_unknown_start_at_index_two_moves_along_the_constraints():
    """A pendulum by its velocity constraint: four numbers of which three are free."""
    dae, ts = Pendulum(), np.linspace(0.05, 1.0, 20)
    begun = jaxdae.consistent_start(dae, {"q": jnp.array([0.6, -0.8]), "v": jnp.zeros(2)}, 1.0)
    run = jaxdae.solve(dae, *begun, t1=1.0, dt=0.05)
    noise = 1e-3 * np.random.default_rng(5).normal(size=(20, 2))
    samples = run.y["q"][1:] + noise
    guess = jaxdae.Variables({"q": jnp.array([0.62, -0.82]), "v": jnp.array([0.08, 0.04])}, 1.0)
    found = identify(
        lambda p: Pendulum(gravity=p), jnp.array(9.0),
        Experiment(
            ts, {"x": Measurement(samples[:, 0], 1e-3), "y": Measurement(samples[:, 1], 1e-3)},
            UnknownStart(guess),
        ),
        channels={"x": Channel(lambda r: r.y["q"][:, 0]), "y": Channel(lambda r: r.y["q"][:, 1])},
        dt=0.05,
    )  # fmt: skip
    assert len(found.start_errors) == 3
    assert abs(float(found.params) - 9.81) < 3 * found.standard_errors[0]
    y = found.starts[0].y
    assert abs(y["q"] @ y["v"]) < 1e-12  # the constraint, to round-off
    np.testing.assert_allclose(y["q"], [0.6, -0.8], atol=5e-3)  # three errors of a few samples


class Power(jaxdae.DAE):
    """A voltage that decays, and the power that it gives: `y = (e, e^2)`."""

    decay: float = 1.0

    def residual(self, t, y, y_dot, u):
        del t, u
        return jnp.stack([y_dot[0] + self.decay * y[0], y[1] - y[0] ** 2])


@pytest.mark.slow
def test_an_unknown_start_of_a_residual_moves_along_its_algebraic_equations():
    """Of two variables one is free; the exact power is `exp(-2 k t)` of its start."""
    ts = np.linspace(0.05, 1.0, 20)
    guess = jaxdae.Variables(jnp.array([0.8, 0.9]), jnp.zeros(2))
    samples = np.exp(-3 * ts) + 1e-3 * np.random.default_rng(6).normal(size=20)
    found = identify(
        Power, Positive(1.0),
        Experiment(
            ts, {"power": Measurement(samples, 1e-3)},
            UnknownStart(guess, y=np.array([np.inf, 0.5])),
        ),
        channels={"power": Channel(lambda r: r.y[:, 1], unit="W")}, dt=0.05,
    )  # fmt: skip
    assert len(found.start_errors) == 1
    assert abs(float(found.params) - 1.5) < 3 * found.standard_errors[0]
    y = found.starts[0].y
    assert abs(y[1] - y[0] ** 2) < 1e-12  # round-off
    np.testing.assert_allclose(y, 1.0, atol=5e-3)  # three errors of a few samples


class Twice(jaxdae.DAE):
    """Index 3: the constraint has to be differentiated twice."""

    def rate(self, t, y, z, u):
        del t, u
        return jnp.stack([y[1], z])

    def constraints(self, t, y, z, u):
        del t, z, u
        return y[0]


@pytest.mark.parametrize(
    ("build", "start", "error", "words"),
    [
        (lambda p: Twice(), jaxdae.Variables(jnp.zeros(2), 0.0), ValueError, "index is higher"),  # noqa: ARG005
        (lambda p: Resonator(p), jaxdae.State(jnp.zeros(1), jnp.zeros(1)), TypeError,
         r"is a State, must be jaxdae.Variables\(y, z\)"),
        (lambda p: Circle(), jaxdae.Variables(jnp.array([0.1, 1.0]), 1.0), ValueError,  # noqa: ARG005
         r"off the constraints: consistent variables y are 0\.00"),
        (lambda p: Resonator(p), jaxdae.Variables(START.y, START.z | {"more": 0.0}), ValueError,
         "is not square"),
        (lambda p: Resonator(p), UnknownStart(START, q=0.1), ValueError, "q is 0.1, but a DAE has"),
        (lambda p: Resonator(p), UnknownStart(START, y={"flux": 0.1}), ValueError,
         "y has another structure than the variables"),
        (lambda p: (Resonator(p), source, 1), START, TypeError, "must return a DAE, or"),
        (lambda p: (Resonator(p), source), START, ValueError, "keep one"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(build, start, error, words):
    experiment = Experiment(TIMES, {"x": Measurement(TIMES, 1.0)}, start, controller=source)
    with pytest.raises(error, match=words):
        identify(
            build, jnp.array(1.0), experiment, dt=0.05,
            channels={"x": Channel(lambda run: run.ts)},
        )  # fmt: skip
