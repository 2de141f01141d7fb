"""The mirror's contest: claims are held against the numbers."""

from types import SimpleNamespace

import numpy as np
import pytest


@pytest.fixture
def results(experiment):
    """Numbers of a run that bears its claims out."""
    Row = experiment("contest").Row
    costs = {
        "LQR": 1.0, "LQR, weights tuned": 0.6, "LQR + network": 0.5, "servo-constraint": 100.0,
        "servo-constraint, tuned": 0.8,
    }  # fmt: skip
    rows = {name: Row(name, 3, {}, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    swing, rest = np.sin(np.arange(4000.0)), np.zeros(4000)
    runs = {
        "LQR + network": SimpleNamespace(u=swing), "LQR, weights tuned": SimpleNamespace(u=rest)
    }  # fmt: skip
    return {"rows": rows, "runs": runs, "course": SimpleNamespace(error=1e-9)}


def holding(experiment, results):
    return [x.holds for x in experiment("mirror_tuning").claims(results)]


def test_claims_hold_for_such_numbers(experiment, results):
    assert holding(experiment, results) == [True, True, True, True]


def test_a_lost_plant_contradicts_the_second_claim(experiment, results):
    row = results["rows"]["LQR"]
    results["rows"]["LQR"] = row._replace(held_out=np.append(np.ones(19), np.nan))
    assert holding(experiment, results) == [True, False, True, True]


def test_a_servo_that_tuning_does_not_help_contradicts_the_third(experiment, results):
    row = results["rows"]["servo-constraint, tuned"]
    results["rows"]["servo-constraint, tuned"] = row._replace(held_out=np.full(20, 101.0))
    assert holding(experiment, results) == [True, True, False, True]


def test_a_network_at_rest_contradicts_the_fourth(experiment, results):
    results["runs"]["LQR + network"].u = np.zeros(4000)
    assert holding(experiment, results) == [True, True, True, False]
