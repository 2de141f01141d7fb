"""Certificates of the ready models: one of them here, all of them by the script."""

import pytest


@pytest.mark.slow
def test_a_ready_model_is_certified_and_one_whose_steps_are_too_long_is_not(experiment):
    script = experiment("certified_models")
    # By fixed steps of which Dopri8 errs by round-off, as nothing here is faster than 1/s.
    good = script.certified("pendulum", "dt=0.01", {"dt": 0.01}, backends=False)
    assert good.passed, good
    assert good.evaluations <= 12
    # Three steps make this motion, and let perturbations of its constraint grow.
    bad = script.certified("appell-hamel", "default", {}, backends=False)
    assert (bad.passed, bad.fault) == (False, "tolerance")
    assert set(script.ADVISED) >= {"appell-hamel"}


def test_claims_are_held_against_the_numbers(experiment):
    script = experiment("certified_models")
    row = script.Row("pendulum", "default", True, "", 6.0, "", 0.5, 11, 1.0)
    assert all(x.holds for x in script.claims([row]))
    failed = row._replace(passed=False, fault="tolerance", evaluations=13)
    assert not any(x.holds for x in script.claims([row, failed]))
    assert script.claims([failed, row])[0].holds
