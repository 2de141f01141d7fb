"""Lengths and gains together: a rerun, and what contradicts the claims."""

import numpy as np
import pytest


@pytest.mark.slow
def test_a_rerun_finds_lengths_that_cost_less_on_plants_held_out(experiment):
    design, size = experiment("five_bar_design"), experiment("contest").Size(2, 3)
    found = design.study(5, size, (design.FIRST, design.BOTH), brief=True)
    first, both = (found["rows"][x] for x in (design.FIRST, design.BOTH))
    assert both.lost == 0
    assert both.mean < 0.8 * first.mean
    assert 0 < found["sines"][design.BOTH] < found["sines"][design.FIRST]


def test_claims_are_held_against_the_numbers(experiment):
    design, Row = experiment("five_bar_design"), experiment("contest").Row

    def results(both, sine=0.2):
        means = {
            "LQR, first lengths": 9.0, design.FIRST: 8.0, "gains": 7.0, "lengths": 5.0,
            design.BOTH: both,
        }  # fmt: skip
        return {
            "rows": {x: Row(x, 1, {}, np.ones(2), np.full(5, mean)) for x, mean in means.items()},
            "sines": {design.FIRST: 0.9, design.BOTH: sine},
            "gradients": {name: np.ones(3) for name in ("forward", "reverse", "differences")},
        }

    assert [x.holds for x in design.claims(results(3.0))] == [True, True, True]
    assert [x.holds for x in design.claims(results(6.0))] == [True, False, True]
    assert [x.holds for x in design.claims(results(3.0, 0.95))] == [True, True, False]
    spoilt = results(3.0)
    spoilt["gradients"]["reverse"] = np.ones(3) + 1e-6
    assert [x.holds for x in design.claims(spoilt)] == [False, True, True]
    lost = results(3.0)
    lost["rows"][design.FIRST].held_out[0] = np.nan
    assert [x.holds for x in design.claims(lost)] == [True, False, True]
