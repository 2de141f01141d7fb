"""Realizing forces: the report's numbers in a run with fewer systems, starts and steps."""

import numpy as np
import pytest

# These runs are stiff on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:stability and not accuracy")


@pytest.fixture(scope="module")
def realization(experiment):
    return experiment("realization")


@pytest.fixture(scope="module")
def found(realization):
    _, disk, _, robot = realization.systems()
    return realization.study(
        [robot],
        [(disk, realization.disk_estimate)],
        [robot],
        ks=np.array([1e2, 1e3, 1e4]),
        starts=4,
        steps=(2e-4, 5e-5),
        widths=(0.03,),
    )


@pytest.mark.slow
def test_every_claim_of_the_report_holds(realization, found):
    assert [x.text for x in realization.claims(found) if not x.holds] == []
    assert "NOT IN THIS RUN" not in realization.report(found)


@pytest.mark.slow
def test_errors_of_linear_forces_fall_as_one_over_k(found):
    for slopes in found["slopes"].values():
        np.testing.assert_allclose(slopes, -1.0, atol=0.1)


@pytest.mark.slow
def test_means_of_sign_forces_are_the_reaction_to_a_thousandth(found):
    """In newtons and of the reaction's size; the largest reaction of all systems."""
    (robot,) = found["means"]
    coarse, fine = robot["rows"]
    assert fine["error"] < 1e-3
    assert fine["relative"] < 1e-3
    # The law switches as finely as the steps allow: what is left is of the order of the step.
    assert 2.0 < coarse["error"] / fine["error"] < 6.0
    # It really chatters: the force is never near the mean.
    assert fine["force"] > robot["size"] + 0.9


@pytest.mark.slow
def test_reaching_times_stay_below_their_estimates(found):
    (runs,) = found["reaching"].values()
    promised = [row for row in runs if np.isfinite(row["estimate"])]
    assert promised
    for row in promised:
        # Some time constants of the layer, 1e-4 s, and the rows are 1 ms apart.
        assert row["reached"] <= row["estimate"] + 2e-3
        assert row["afterwards"] < 1e-5


@pytest.mark.slow
def test_a_claim_fails_with_its_numbers(realization, found):
    slower = {name: [-0.5, -1.0, -1.0] for name in found["slopes"]}
    (failed,) = [x for x in realization.claims(found | {"slopes": slower}) if not x.holds]
    assert "slopes -1.000 to -0.500" in failed.text
    # Of forces that decay where theorem 1 has its threshold, and of a delay that does not matter.
    (below, above) = found["threshold"]["rows"]
    stable = found["threshold"] | {"rows": [below | {"rate": 0.1}, above]}
    lasting = found["memory"] | {"late": [1e-4, 1e-4]}
    changed = found | {"threshold": stable, "memory": lasting}
    first, second = [x for x in realization.claims(changed) if not x.holds]
    assert "`K = 0.750` N s/m" in first.text
    assert "1.00 times less at 1/4 of the delay" in second.text


@pytest.mark.slow
def test_the_figure_of_the_paths_shows_every_law_in_the_plane(realization, tmp_path):
    robot = realization.systems()[3]
    paths = realization.motions(robot, ks=(25.0,))
    constrained = paths["constrained"]
    # A circle of radius v / w about (0, that).
    radius = robot.model.speed / robot.model.turn_rate
    np.testing.assert_allclose(np.hypot(*(constrained - [0.0, radius]).T), radius, rtol=1e-12)
    # The equivalent force keeps it, to the tolerance of the integration; linear forces do not.
    np.testing.assert_allclose(paths["sign"], constrained, atol=1e-6)
    assert np.abs(paths["linear, k = 25 N s/m"] - constrained).max() > 1e-2
    realization.draw_motions(dict.fromkeys("abcd", paths), tmp_path)
    assert (tmp_path / "paths.png").stat().st_size > 10_000
