"""A law tuned by gradient beats the regulator at the regulator's own cost."""

import numpy as np
import pytest


@pytest.fixture(scope="module")
def tuning(experiment):
    return experiment("ball_beam_tuning")


@pytest.mark.slow
def test_every_claim_of_the_report_holds(tuning):
    """On starts, a horizon, a step and an inductance that the law was not tuned on."""
    found = tuning.study(20, tuning.Size(spreads=(1.0, 1.8)), progress=False)
    assert [x.text for x in tuning.claims(found) if not x.holds] == []
    ((before, place), (after, tuned_place)) = found["judged"][1.8]
    assert np.isfinite([before, after]).all()
    # A linear law asks for more than the crank can give, which costs most where it is farthest off.
    assert after.mean() < 0.9 * before.mean()
    assert after.max() < 0.6 * before.max()
    # Rows at 50 a second, start and end among them; same starts, other motions.
    assert place.shape == tuned_place.shape == (16, 501)
    np.testing.assert_array_equal(place[:, 0], tuned_place[:, 0])


def test_the_claims_are_what_the_judgement_says(tuning, tmp_path):
    class Tuned:
        loss, initial_loss = np.log(0.5), 0.0

    places = np.full((4, 3), 0.2)

    def judged(costs):
        return (np.array(costs), places)

    regulator = judged([1.0, 1.0, 1.0, 9.0])
    better = judged([1.0, 1.01, 0.99, 3.0])
    found = {"tuned": Tuned, "judged": {1.0: [regulator, regulator], 1.8: [regulator, better]}}
    found["end"] = 0.04
    assert [x.holds for x in tuning.claims(found)] == [True, True, True]
    assert "the mean is 0.50, the worst start 0.33" in tuning.claims(found)[1].text
    found["judged"][1.8][1] = judged([1.0, 1.0, 1.0, np.nan])
    # The start that only the tuned law loses counts against it.
    assert [x.holds for x in tuning.claims(found)] == [True, False, True]
    tuning.draw(found, tmp_path / "worst.png")
    assert (tmp_path / "worst.png").exists()
