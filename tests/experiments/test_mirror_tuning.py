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
        "servo-constraint, tuned": 0.8, "LQR, weights tuned, arm too": 0.3,
        "LQR + network, arm too": 0.25,
    }  # fmt: skip
    params = {"length": np.array(0.21)}
    rows = {name: Row(name, 3, params, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    swing, rest = np.sin(np.arange(4000.0)), np.zeros(4000)
    runs = {
        "LQR + network": SimpleNamespace(u=swing), "LQR, weights tuned": SimpleNamespace(u=rest)
    }  # fmt: skip
    return {"rows": rows, "runs": runs, "course": SimpleNamespace(error=1e-9)}


def holding(experiment, results):
    return [x.holds for x in experiment("mirror_tuning").claims(results)]


def test_claims_hold_for_such_numbers(experiment, results):
    assert holding(experiment, results) == [True] * 5


@pytest.mark.parametrize(
    ("name", "held_out", "claim"),
    [
        ("LQR", np.append(np.ones(19), np.nan), 1),
        ("LQR + network, arm too", np.full(20, 0.4), 3),
    ],
)
def test_a_spoilt_number_contradicts_its_claim(experiment, results, name, held_out, claim):
    results["rows"][name] = results["rows"][name]._replace(held_out=held_out)
    if claim == 3:
        worse = results["rows"]["LQR, weights tuned, arm too"]
        results["rows"]["LQR, weights tuned, arm too"] = worse._replace(held_out=held_out)
    assert holding(experiment, results) == [i != claim for i in range(5)]


@pytest.mark.slow
def test_a_rerun_beats_the_regulator_on_plants_held_out(experiment):
    mirror, size = experiment("mirror_tuning"), experiment("contest").Size(2, 4)
    rows = mirror.study(8, size, ("LQR", mirror.WEIGHTS), brief=True)["rows"]
    assert [x.lost for x in rows.values()] == [0, 0]
    assert rows[mirror.WEIGHTS].mean < 0.8 * rows["LQR"].mean
