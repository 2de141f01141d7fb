"""The ball and beam's contest: claims are held against the numbers."""

import numpy as np
import pytest

from jaxdae.models.ball_beam import BallBeam, linear_regulator


@pytest.fixture
def results(experiment):
    """Numbers of a run that bears its claims out."""
    contest, Row = experiment("ball_beam_controllers"), experiment("contest").Row
    joint = contest.WEIGHTS + contest.AND_RIG
    costs = {"LQR": 1.0, "PD": 1.0, contest.WEIGHTS: 0.99, contest.NETWORK: 0.95, joint: 0.7}
    costs |= {contest.FOR_WORST: 0.69}
    params = {"lever": 0.03, "ratio": 50.0}
    rows = {name: Row(name, 3, params, np.full(20, x), np.full(20, x)) for name, x in costs.items()}
    return {"rows": rows, "own": {"LQR": np.ones(5), "LQR + network": np.full(5, 0.97)}}


def holding(experiment, results):
    return [x.holds for x in experiment("ball_beam_controllers").claims(results)]


def test_claims_hold_for_such_numbers(experiment, results):
    assert holding(experiment, results) == [True] * 5


@pytest.mark.parametrize(
    ("name", "change", "claim"),
    [
        ("PD", {"held_out": np.append(np.ones(19), np.nan)}, 0),
        # The mean alone is less, one plant costs more.
        ("LQR, weights tuned, rig too", {"held_out": np.append(np.full(19, 0.7), 1.1)}, 2),
    ],
)
def test_a_spoilt_number_contradicts_its_claim(experiment, results, name, change, claim):
    results["rows"][name] = results["rows"][name]._replace(**change)
    assert holding(experiment, results) == [i != claim for i in range(5)]


@pytest.mark.slow
def test_a_rerun_with_the_rig_costs_less_than_the_regulator_on_plants_held_out(experiment):
    contest, size = experiment("ball_beam_controllers"), experiment("contest").Size(2, 3)
    joint = contest.WEIGHTS + contest.AND_RIG
    rows = contest.study(6, size, ("LQR", joint), brief=True)["rows"]
    assert [x.lost for x in rows.values()] == [0, 0]
    assert rows[joint].mean < 0.9 * rows["LQR"].mean


@pytest.mark.slow
def test_the_regulator_of_a_rig_is_the_librarys(experiment):
    """By derivatives at its rest, here of another lever and gear."""
    contest = experiment("ball_beam_controllers")
    rig = contest.Design(0.03, 50.0).rig
    known = linear_regulator(rig)
    found = contest.regulator(rig, known.Q, known.R)
    # Two ways to the same Riccati equation.
    np.testing.assert_allclose(found.K, known.feedback.K, rtol=1e-9)
    np.testing.assert_allclose(found.u, known.feedback.u, rtol=1e-12)
    np.testing.assert_allclose(
        contest.Design(0.0254, 70.0).rig.wheel_inertia, BallBeam().wheel_inertia
    )
