"""Validation of gains: the sums of another program, and what fails is counted."""

import dataclasses

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.commands.validation import stacked, ValidationRuns
from jaxdae.models.studies import studies
from jaxdae.models.study import Check
from jaxdae.tuning import Conditions, perturbed_states, resolve, SimulationObjective


@pytest.fixture(scope="module")
def study():
    (found,) = studies("pendulum")
    checks = (Check("some", count=3), Check("half", count=2, dt=0.5))
    return dataclasses.replace(found, t1=0.1, checks=checks)


@pytest.fixture(scope="module")
def sets(study):
    """First gains, and others that are unstable at long steps."""
    first = resolve(study.params)
    return {"first": first, "theory": study.by_theory(diffrax.Heun())}


@pytest.fixture(scope="module")
def validation(study):
    return ValidationRuns(study, diffrax.Heun(), 2)


@pytest.mark.slow
def test_summaries_are_the_means_of_objectives(study, sets, validation):
    """Two programs for the same sums: members that are filled up must not count."""
    key = jax.random.key(3)
    for check in study.checks:
        compared = validation.under(check, sets, study.start, key)
        states = perturbed_states(study.start, key, check.count, study.deviation, study.deviation)
        objective = SimulationObjective(
            study.goal.cost,
            states,
            build=study.build,
            t1=study.t1,
            conditions=Conditions(dt=study.dt * check.dt),
            solver=diffrax.Heun(),
        )
        for name, gains in sets.items():
            wanted = float(jnp.mean(objective.costs(gains)))
            found = compared.summaries[name]
            assert found.cost == pytest.approx(wanted, rel=1e-9)  # sums in another order
            parts = found.parts["|phi|^2"] + 0.02**2 * found.parts["|phi_dot|^2"]
            assert parts == pytest.approx(wanted, rel=1e-9)
            assert found.failed == 0
            # The rows of the run alone, not those that fill up the batch.
            rows = round(study.t1 / (study.dt * check.dt)) + 1
            assert len(compared.runs[name].ts) == rows
            assert compared.runs[name].ts[-1] == study.t1


@pytest.mark.slow
def test_costs_of_many_runs_are_those_of_each(study, sets, validation):
    """More runs than the program has members, at steps of their own."""
    states = perturbed_states(study.start, jax.random.key(4), 10, 1e-3, 1e-3)
    steps = np.array([0.5, 1.0] * 5)
    many = validation.costs(stacked([sets["first"]], 10), states, steps)
    again = [
        validation.costs(
            stacked([sets["first"]]), jax.tree.map(lambda x, i=i: x[i : i + 1], states), steps[[i]]
        )[0]
        for i in (0, 7, 9)
    ]
    np.testing.assert_array_equal(many[[0, 7, 9]], again)


def test_theory_has_the_shape_of_the_first_gains(study, sets):
    """Heun's zeros: K_D h = 2, K_P h^2 = 2; and a servo has none."""
    gains = sets["theory"].stabilization
    np.testing.assert_allclose(gains.K_D, [2 / study.dt])
    np.testing.assert_allclose(gains.K_P, [2 / study.dt**2])
    assert gains.Gamma is None
    assert studies("mirror")[0].by_theory(diffrax.Heun()) is None
