"""The ball and beam's contest: claims are held against the numbers."""

import numpy as np
import pytest


@pytest.fixture
def results(experiment):
    """Numbers of a run that bears its claims out."""
    Row = experiment("contest").Row
    weights = experiment("ball_beam_controllers").WEIGHTS
    costs = {"LQR": 1.0, "PD": 1.0, weights: 0.99, "LQR + network": 0.95}
    rows = {name: Row(name, 3, {}, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    return {"rows": rows, "own": {"LQR": np.ones(5), "LQR + network": np.full(5, 0.97)}}


def holding(experiment, results):
    return [x.holds for x in experiment("ball_beam_controllers").claims(results)]


def test_claims_hold_for_such_numbers(experiment, results):
    assert holding(experiment, results) == [True, True, True]


def test_a_lost_plant_contradicts_the_first_claim(experiment, results):
    held_out = np.append(np.full(19, 1.0), np.nan)
    results["rows"]["PD"] = results["rows"]["PD"]._replace(held_out=held_out)
    assert holding(experiment, results) == [False, True, True]


def test_a_network_no_better_than_weights_contradicts_the_second(experiment, results):
    row = results["rows"]["LQR + network"]
    results["rows"]["LQR + network"] = row._replace(held_out=np.full(20, 0.995))
    assert holding(experiment, results) == [True, False, True]


def test_a_rig_on_which_it_is_worse_contradicts_the_third(experiment, results):
    results["own"]["LQR + network"] = np.full(5, 1.01)
    assert holding(experiment, results) == [True, True, False]
