"""The ball and beam's contest in small; its claims are tested with those of other contests."""

import numpy as np
import pytest

from jaxdae.models.ball_beam import BallBeam, linear_regulator


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
