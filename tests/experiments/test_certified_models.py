"""Certificates of the ready models: one of them here, all of them by the script."""

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("model", ["pendulum", "appell-hamel"])
def test_a_ready_model_is_certified(experiment, model):
    """Three steps make the motion of the second, and would let perturbations of it grow."""
    found = experiment("certified_models").certified(model, backends=False)
    assert found.passed, found
    assert found.evaluations <= 12


def test_claims_are_held_against_the_numbers(experiment):
    script = experiment("certified_models")
    row = script.Row("pendulum", True, "", 6.0, "", 0.5, 11, 1.0)
    assert all(x.holds for x in script.claims([row]))
    failed = row._replace(passed=False, fault="tolerance", evaluations=13)
    assert not any(x.holds for x in script.claims([row, failed]))
