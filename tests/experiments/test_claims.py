"""A report says what its run bears out, and a run that contradicts it ends in an error."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"
# Those that are run, not those that they share.
SCRIPTS = sorted(x for x in FOLDER.glob("*.py") if 'if __name__ == "__main__"' in x.read_text())


def test_a_claim_that_the_run_contradicts_says_so_and_ends_in_an_error(
    experiment, tmp_path, capsys
):
    module = experiment("claims")
    good, bad = module.Claim("One is less than two.", 1 < 2), module.Claim("Two is one.", 2 == 1)
    text = module.listed([good, bad])
    assert text == "- One is less than two.\n- **NOT IN THIS RUN:** Two is one."
    module.finish(tmp_path / "good", "report", {"x": 1.0}, [good])
    assert json.loads((tmp_path / "good" / "result.json").read_text()) == {"x": 1.0}
    assert json.loads((tmp_path / "good" / "claims.json").read_text()) == {
        "claims": [{"text": "One is less than two.", "holds": True}]
    }
    assert capsys.readouterr().out == "report\n"
    with pytest.raises(SystemExit, match=r"1 claims do not hold in this run:\n.*Two is one"):
        module.finish(tmp_path / "bad", "report", {}, [good, bad])
    assert (tmp_path / "bad" / "report.md").read_text() == "report\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_every_experiment_is_run_by_a_test_and_holds_its_claims_against_its_numbers(path):
    assert Path(__file__).with_name(f"test_{path.stem}.py").exists()
    source = path.read_text()
    assert "def claims(" in source
    # By itself, or by the contest that it is.
    assert "finish(" in source or "from contest import" in source
