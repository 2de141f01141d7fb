"""Parameters of differential-algebraic equations from measured data."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import Circle, Pendulum, Resonator
from jaxdae.identification import Channel, Experiment, identify, Measurement, UnknownStart
from jaxdae.identification.declared import DeclaredEquations
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


@pytest.fixture(scope="module")
def data():
    return record(np.random.default_rng(3))


@pytest.fixture(scope="module")
def result(data):
    return identify(circuit, GUESS, data, channels=CHANNELS, dt=0.05)


@pytest.mark.slow
def test_a_circuit_is_identified_from_noisy_data(result):
    """Estimates are within three of the standard errors reported, which are those of noise."""
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
def test_intervals_agree(data, result):
    """They close their gaps to 1e-5 of the motion's size."""
    divided = identify(circuit, GUESS, data, channels=CHANNELS, dt=0.05, intervals=3)
    np.testing.assert_allclose(divided.values, result.values, rtol=1e-4)
    np.testing.assert_allclose(divided.standard_errors, result.standard_errors, rtol=1e-2)


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
        return jnp.stack([y_dot[0] + self.decay * y[0], y[1] - y[0] ** 2])


def test_a_start_of_a_residual_moves_along_its_algebraic_equations():
    """Of two variables one is free, along the tangent `(1, 2 e)` in units of one and of 0.5."""
    state = jaxdae.Variables(jnp.array([0.8, 0.64]), jnp.array([-0.8, -1.28]))
    start = UnknownStart(state, y=np.array([np.inf, 0.5]))
    moves, prior, names = DeclaredEquations(Power(), None).directions(0.0, state, start)
    (column,) = moves[:2].T
    np.testing.assert_allclose(column[1] / column[0], 1.6, rtol=1e-12)
    # What the guess's noise makes of it.
    np.testing.assert_allclose(abs(prior), [[abs(column[1]) / 0.5]], rtol=1e-12)
    assert names == ["y[1] and what moves with it"]


class Twice(jaxdae.DAE):
    """Index 3: the constraint has to be differentiated twice."""

    def rate(self, t, y, z, u):
        return jnp.stack([y[1], z])

    def constraints(self, t, y, z, u):
        return y[0]


@pytest.mark.parametrize(
    ("build", "start", "error", "words"),
    [
        (lambda p: Twice(), jaxdae.Variables(jnp.zeros(2), 0.0), ValueError, "index is higher"),
        (lambda p: Resonator(p), jaxdae.State(jnp.zeros(1), jnp.zeros(1)), TypeError,
         r"is a State, must be jaxdae.Variables\(y, z\)"),
        (lambda p: Circle(), jaxdae.Variables(jnp.array([0.1, 1.0]), 1.0), ValueError,
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
