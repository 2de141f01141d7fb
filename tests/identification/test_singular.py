"""Singular positions in fitted runs: found, and what of the parameters they forbid to differ."""

import dataclasses
from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.equal_links import branch
from helpers.rubbing_crank import rubbing_motion, RubbingCrank
from jaxdae.formulations import AbstractFormulation
from jaxdae.identification import Channel, Experiment, Identification, identify, Measurement
from jaxdae.identification.findings import Opening, singular_positions, SingularPositions
from jaxdae.identification.fit import Predictions, raw_names_of, Settings, Unknowns
from jaxdae.identification.identify import measurement_model
from jaxdae.identification.preparation import prepared
from jaxdae.models import SliderCrank
from jaxdae.systems import State

ROBUST = jaxdae.Multipliers(solve=jaxdae.SingularityRobust())
ADAPTIVE = Settings(None, None, None, 4096, "auto")
TIMES = np.linspace(0.04, 1.2, 30)


def crank_angle(run):
    return run.q[:, 0]


def slider_place(run):
    return run.q[:, 2]


CHANNELS = {"crank": Channel(crank_angle, unit="rad"), "slider": Channel(slider_place, unit="m")}


def begun(system):
    return State(*system.start())


def record(rng=None, sigma=0.01):
    theta = rubbing_motion(TIMES)[0]
    noise = np.zeros((2, 30)) if rng is None else sigma * rng.normal(size=(2, 30))
    values = {"crank": theta + noise[0], "slider": 2 * np.cos(theta) + noise[1]}
    samples = {name: Measurement(x, sigma) for name, x in values.items()}
    return Experiment(TIMES, samples, begun)


def tied(params):
    """Crank and rod of one length."""
    return RubbingCrank(**params), ROBUST


def free(params, formulation: AbstractFormulation = ROBUST):
    return SliderCrank(**params), formulation


def singular(build, params, runs=1, states=None, settings=ADAPTIVE):
    """What is said of runs along the exact motion; no run is made."""
    experiments = [record()] * runs
    model = measurement_model(build, CHANNELS, settings)
    task = prepared(model, Unknowns(params, {}), experiments, CHANNELS, 1)
    q, v = (x.T for x in branch(SliderCrank(), *map(jnp.asarray, rubbing_motion(TIMES))))
    one = State(q, v, jnp.zeros((30, 0)))
    all_states = (
        jax.tree.map(lambda x: jnp.stack([x] * runs), one) if states is None else states(one)
    )
    first = jax.tree.map(lambda x: jnp.stack([x] * runs), begun(SliderCrank()))
    made = [Predictions(None, first, all_states, None)]
    return singular_positions(task, task.x, made, raw_names_of(params), experiments)


@pytest.mark.slow
def test_links_of_one_length_keep_the_position():
    """Times of the two in-line positions by SciPy; nothing opens them, and nothing is warned of."""
    params = {
        "length": jaxdae.tuning.Positive(1.0),
        "slider_mass": jnp.array(1.0),
        "damping": jnp.array(0.5),
    }
    (one,) = singular(tied, params)
    angles = np.interp(one.times, TIMES, rubbing_motion(TIMES)[0])
    # Linear interpolation of the angle over steps of 0.04 s; a row is 0.2 rad.
    np.testing.assert_allclose(angles, [0.5 * np.pi, 1.5 * np.pi], atol=0.02)
    assert one.least < 1e-3
    assert one.openings == ()
    assert one.refused is None


def test_a_length_of_its_own_opens_the_position():
    """`r sin theta + l sin psi` at 90 and -90 degrees: 1 % of a length are 0.01 m apart."""
    params = {"crank_length": jaxdae.tuning.Positive(1.0), "slider_mass": jnp.array(1.3)}
    (one,) = singular(free, params)
    (opening,) = one.openings
    assert opening.name == "log crank_length"
    # The position is found to 1e-4 of the distance between rows.
    np.testing.assert_allclose([opening.change, opening.distance], 0.01, rtol=1e-6)
    assert one.constraints == ("loop y",)


def test_a_run_that_failed_hides_nothing_of_the_one_beside_it():
    params = {"slider_mass": jnp.array(1.3)}
    half = lambda x: State(*(jnp.stack([jnp.full_like(a, jnp.nan), a]) for a in (x.q, x.v, x.w)))  # noqa: E731
    (one,) = singular(free, params, 2, half)
    assert one.experiment == "2"


def test_other_formulations_are_warned_of():
    params = {"slider_mass": jnp.array(1.3)}
    (one,) = singular(partial(free, formulation=jaxdae.NullSpace()), params)
    assert one.refused is not None
    assert "NullSpace may lose the branch or the energy" in one.refused


@pytest.mark.parametrize(
    ("controller", "fixed"), [(None, 0.01), (diffrax.PIDController(rtol=1e-8, atol=1e-8), None)]
)
def test_fixed_steps_are_told_from_a_first_step(controller, fixed):
    settings = Settings(0.01, None, controller, 4096, "auto")
    (one,) = singular(free, {"slider_mass": jnp.array(1.3)}, settings=settings)
    assert one.fixed == fixed


@pytest.fixture(scope="module")
def fit():
    """Length, slider's mass and friction through two singular positions, noise of 1 cm, 0.6 deg."""
    guess = {"length": 1.04, "slider_mass": 1.3, "damping": 0.3}
    guess = {name: jaxdae.tuning.Positive(x) for name, x in guess.items()}
    return identify(tied, guess, record(np.random.default_rng(1)), channels=CHANNELS)


@pytest.mark.slow
def test_a_slider_crank_is_identified_through_its_singular_positions(fit):
    """Warnings are errors here: there is none; covariance by differences of the exact motion."""
    expected = {"length": 1.0, "slider_mass": 1.0, "damping": 0.5}
    order = [fit.names.index(x) for x in expected]
    reference = np.array([*expected.values()])
    assert (np.abs(fit.values[order] - reference) < 2.5 * fit.standard_errors[order]).all()
    assert fit.stop_reason == "converged"
    assert len(fit.singular_positions[0].times) == 2

    def shown(values):
        theta = rubbing_motion(TIMES, **dict(zip(expected, values, strict=True)))[0]
        return np.concatenate([theta, 2 * values[0] * np.cos(theta)]) / 0.01

    estimate, steps = fit.values[order], 1e-4 * np.eye(3)
    jac = np.stack([(shown(estimate + h) - shown(estimate - h)) / 2e-4 for h in steps], axis=1)
    # Differences of second order: 1e-8 of the third derivatives, relative to the first some 1e-5.
    found = fit.covariance[np.ix_(order, order)]
    np.testing.assert_allclose(found, np.linalg.inv(jac.T @ jac), rtol=1e-4)


ONE = SingularPositions("1", (0.25,), 1e-5, None, None, (), ("loop y",))


def said(fit: Identification, **changes) -> list[str]:
    return [x.message for x in dataclasses.replace(fit, **changes).findings]


@pytest.mark.slow
def test_cautions_say_what_has_no_derivative(fit):
    opened = ONE._replace(openings=(Opening("log crank_length", 0.01, 0.007),))
    (text,) = said(fit, singular_positions=(opened,))
    assert "a change of log crank_length by 0.01 moves them 0.007 apart" in text
    assert "has no derivative" in text
    (text,) = said(fit, singular_positions=(opened._replace(guessed=True),))
    assert "experiment 1, with the first guess of the parameters, passes singular" in text
    (text,) = said(fit, singular_positions=(ONE._replace(fixed=0.01),))
    assert "as near as 1e-05, with steps of 0.01 s" in text
    (text,) = said(fit, singular_positions=(ONE._replace(refused="the run passed 1 near"),))
    assert text == "the run of experiment 1 passed 1 near"
    (text,) = said(fit, singular_positions=(opened._replace(refused="the run passed 1 near."),))
    assert text.startswith("the run of experiment 1 passed 1 near. It passes singular")
    assert said(fit, singular_positions=(ONE,)) == []
    (text,) = said(fit, standard_errors=fit.values * np.array([0.1, 300.0, 0.1]))
    assert f"the standard errors of {fit.names[1]} (3e+02) are so many times" in text
