"""All kinds of optimizers on the main job's first study: they find the same gains."""

import jax
import numpy as np
import optax
import pytest

from jaxdae.models.studies import studies
from jaxdae.solvers import RK4
from jaxdae.tuning import Logarithm, perturbed_states, SimulationObjective, tune

pytestmark = pytest.mark.optimized


@pytest.fixture(scope="module")
def study():
    return studies("two-link", "multipliers")[0]


@pytest.fixture(scope="module")
def objective(study):
    states = perturbed_states(study.start, jax.random.key(0), 4, study.deviation, study.deviation)
    options = {"build": study.build, "t1": study.t1, "dt": study.dt, "solver": RK4()}
    return SimulationObjective(study.goal.cost, states, **options)


@pytest.fixture(scope="module")
def least_squares(study, objective):
    return tune(objective, study.params, steps=40)


@pytest.mark.slow
def test_least_squares_are_chosen_and_converge_in_few_evaluations(least_squares):
    assert least_squares.method.startswith("Levenberg-Marquardt, because the objective has")
    assert least_squares.stop_reason == "converged"
    assert least_squares.evaluations < 40
    assert least_squares.loss < 1e-3 * least_squares.initial_loss
    assert least_squares.certificate is not None


@pytest.mark.slow
def test_the_default_for_other_objectives_ends_without_an_oscillation(
    study, objective, least_squares
):
    falling = tune(Logarithm(objective), study.params, steps=200)
    assert falling.method.startswith("Adam with a falling rate")
    constant = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1, eps=1e-16))
    other = tune(Logarithm(objective), study.params, optimizer=constant, steps=200)

    def spread(result):
        """Of the last tenth: by which factor the loss goes up and down."""
        return np.exp(np.ptp(result.history.loss[-20:]))

    assert spread(other) > 5
    assert spread(falling) < 1.5
    np.testing.assert_allclose(falling.loss, np.log(least_squares.loss), atol=np.log(1.1))


@pytest.mark.slow
def test_a_minimizer_finds_what_least_squares_find(objective, least_squares):
    """From gains that are ten per cent smaller."""
    away = jax.tree.map(lambda x: x - 0.1, least_squares.raw)
    result = tune(Logarithm(objective), away, optimizer="l-bfgs", steps=80)
    np.testing.assert_allclose(result.loss, np.log(least_squares.loss), atol=np.log(1.05))
