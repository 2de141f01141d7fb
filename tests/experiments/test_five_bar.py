"""The five-bar's contest in small; its claims are tested with those of other contests."""

import pytest


@pytest.mark.slow
def test_a_rerun_beats_the_regulator_on_plants_held_out(experiment):
    size = experiment("contest").Size(4, 6)
    law = "PD, inverse dynamics"
    rows = experiment("five_bar").study(6, size, ("LQR", law), brief=True)["rows"]
    assert [x.lost for x in rows.values()] == [0, 0]
    assert rows[law].mean < 0.95 * rows["LQR"].mean
    assert rows[law].worst < rows["LQR"].worst
