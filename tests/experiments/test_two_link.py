"""The paper's runs, shortened: past the singular configuration and out of reach, and two folds."""

import dataclasses
import json

import pytest

import jaxdae

# Near the gains that tuning finds, all of one shape with the paper's.
TUNED = {
    "studies": [
        {
            "method": "multipliers",
            "gains": {"range": {"K_D": [350.0, 344.0], "K_P": [3.9e4, 3.8e4]}},
        },
        {
            "method": "penalty",
            "gains": {"range": {"K_D": [356.0, 345.0], "K_P": [4.0e4, 3.9e4], "alpha": 300.0}},
        },
    ]
}
ENDS = {"paper's target": 3.0, "reachable target": 9.0}


@pytest.fixture(scope="module")
def two_link(experiment):
    return experiment("two_link")


@pytest.fixture(scope="module")
def formulations(two_link, tmp_path_factory):
    path = tmp_path_factory.mktemp("tuned") / "result.json"
    path.write_text(json.dumps(TUNED))
    return two_link.tuned_formulations(path)


@pytest.fixture(scope="module")
def results(two_link, formulations):
    cases = two_link.cases(formulations)
    return [two_link.run(case, ENDS[case.target]) for case in cases]


# As the experiment counted them; the middle two solve for singular positions.
PASSED = [
    {"gains": x, "solve": "", "passed": n, "folds": 128, "smooth": n, "runs": 32, "ended": ended}
    for x, n, ended in (
        ("Fig. 2", 5, 0),
        ("Fig. 2", 128, 32),
        ("tuned", 74, 10),
        ("tuned", 128, 32),
    )
]


@pytest.mark.slow
def test_every_claim_of_the_report_holds(two_link, formulations, results):
    stops = [("Dopri8", 1e-8, 2.8503), ("Dopri8", 1e-10, 0.4933)]
    sentences = two_link.claims(results, stops, PASSED)
    assert [x.text for x in sentences if not x.holds] == []
    text = two_link.report(results, formulations, (stops, PASSED), sentences)
    assert "with 1 of 2 solvers and tolerances they do" in " ".join(text.split())


@pytest.mark.slow
def test_a_claim_fails_with_its_numbers(two_link, results):
    never = [("Dopri8", 1e-8, 2.8503)]
    (failed,) = [x for x in two_link.claims(results, never, PASSED) if not x.holds]
    assert "with 0 the run ends there" in failed.text


def test_a_large_constraint_mass_harms_out_of_reach_and_helps_within(two_link):
    """All 20 s of the paper: the numbers its remark rests on."""
    rows = two_link.large_alphas()
    claim = two_link.alpha_claim(rows, two_link.END)
    assert claim.holds
    assert [1e3 < rows[0]["steps in all"] < 2e3, rows[-1]["steps in all"] > 2e5] == [
        True,
        True,
    ]
    assert 5 < rows[-1]["velocity in all"] / rows[0]["velocity in all"] < 7
    assert not two_link.alpha_claim(rows[:1] * 2, two_link.END).holds


@pytest.mark.slow
def test_the_solve_for_singular_positions_passes_the_fold_from_every_start(
    experiment, formulations
):
    """And leaves it on the smooth branch, with the tuned gains, which magnify residuals most."""
    runs = experiment("two_link_runs")
    robust = dataclasses.replace(formulations["multipliers"], solve=jaxdae.SingularityRobust())
    row = runs.passage(robust, end=4.0)
    assert row["runs"] == row["folds"] == row["passed"] == row["smooth"] == row["ended"] == 32


def test_the_claim_on_folds_fails_where_a_run_leaves_the_smooth_branch(two_link):
    assert two_link.fold_claim(PASSED).holds
    lost = [*PASSED[:3], PASSED[3] | {"smooth": 127}]
    assert not two_link.fold_claim(lost).holds
    assert not two_link.fold_claim([PASSED[2], PASSED[1], PASSED[0], PASSED[3]]).holds
