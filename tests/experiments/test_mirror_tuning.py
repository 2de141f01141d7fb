"""The mirror's contest in small; its claims are tested with those of other contests."""

import pytest


@pytest.mark.slow
def test_a_rerun_beats_the_regulator_on_plants_held_out(experiment):
    mirror, size = experiment("mirror_tuning"), experiment("contest").Size(2, 4)
    rows = mirror.study(8, size, ("LQR", mirror.WEIGHTS), brief=True)["rows"]
    assert [x.lost for x in rows.values()] == [0, 0]
    assert rows[mirror.WEIGHTS].mean < 0.8 * rows["LQR"].mean
