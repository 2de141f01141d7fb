"""Lengths and gains together: one gradient in three ways, and what contradicts the claims."""

import numpy as np
import pytest


@pytest.mark.slow
def test_forward_reverse_and_differences_give_one_gradient_by_lengths_and_gains(experiment):
    slopes = experiment("five_bar_design").gradients((0.5,))
    size = np.abs(slopes["forward"]).max()
    assert np.count_nonzero(slopes["forward"]) == 8
    np.testing.assert_allclose(slopes["reverse"], slopes["forward"], atol=1e-10 * size)
    # Fourth order with steps of 1e-3 in the logarithms.
    np.testing.assert_allclose(slopes["differences"], slopes["forward"], atol=1e-7 * size)


def test_claims_are_held_against_the_numbers(experiment):
    design = experiment("five_bar_design")

    def results(both, sine=0.2):
        parts = {"first": 8.0, "gains": 7.0, "lengths": 5.0, "both": both}
        return {
            "rows": {
                name: {"parts": np.full((10, 2), x / 2), "sine": sine if i else 0.9}
                for i, (name, x) in enumerate(parts.items())
            },
            "gradients": {name: np.ones(3) for name in ("forward", "reverse", "differences")},
        }

    assert [x.holds for x in design.claims(results(3.0))] == [True, True, True]
    assert [x.holds for x in design.claims(results(6.0))] == [True, False, True]
    assert [x.holds for x in design.claims(results(3.0, 0.95))] == [True, True, False]
    spoilt = results(3.0)
    spoilt["gradients"]["reverse"] = np.ones(3) + 1e-6
    assert [x.holds for x in design.claims(spoilt)] == [False, True, True]
