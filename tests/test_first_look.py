"""The first screen of the README and the site: its pictures, of the committed numbers."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPTS = DOCS / "scripts"


@pytest.fixture(scope="module")
def first_look():
    """The module that draws the charts."""
    sys.path.insert(0, str(SCRIPTS))
    import first_look

    yield first_look
    sys.path.remove(str(SCRIPTS))


def test_the_charts_are_those_of_the_committed_numbers(first_look):
    """Else: python docs/scripts/first_look.py."""
    for name, content in first_look.charts().items():
        assert (first_look.FOLDER / name).read_text() == content, name


def test_a_chart_has_a_point_where_runs_succeed_and_a_cross_where_they_fail(first_look):
    study = json.loads((DOCS / "data" / "two_link.json").read_text())
    checks = [study["checks"][step][x] for step in first_look.STEPS for x in first_look.GAINS]
    failed = [x for x in checks if x["cost"] is None or x["failed"]]
    chart = first_look.gains(study)
    assert 0 < len(failed) < len(checks)
    assert chart.count("<circle ") == len(checks) - len(failed)
    assert chart.count(">✕<") == len(failed)


def test_a_chart_ranks_codes_by_their_times_whoever_is_the_fastest(first_look):
    row = lambda code, error, *seconds: {  # noqa: E731
        "problem": "two-link", "code": code, "error": error, "seconds": list(seconds),
    }  # fmt: skip
    rows = [
        row("jaxdae, native", 1e-7, 3e-5, 2e-5),
        row("jaxdae, native", 1e-3, 1e-6),  # does not reach the error
        row("heyoka", 1e-8, 1e-5),
        row("SciPy DOP853", 1e-7, 5e-6),
    ]
    chart = first_look.others(rows)
    assert re.findall(r"SciPy|heyoka|jaxdae|MuJoCo", chart) == ["SciPy", "heyoka", "jaxdae"]
    assert "20 µs" in chart
    assert chart.count("<rect ") == 4  # the ground, too


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=lambda x: x.stem)
def test_the_first_screen_has_a_film_and_both_charts(page, first_look):
    head = page.read_text().partition("\n## ")[0]
    pictures = re.findall(r'<img src="([^"]+)"[^>]* alt="[^"]+"', head)
    assert [Path(x).name for x in pictures] == ["jansen.gif", *first_look.charts()]
    assert all((page.parent / x).is_file() for x in pictures)


def test_paths_lead_from_what_a_reader_has():
    paths = re.findall(r"^- \*(I .*?)\*: \[", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert paths == [
        "I have equations", "I have a robot file", "I have data", "I want gains", "I have a GPU",
    ]  # fmt: skip
