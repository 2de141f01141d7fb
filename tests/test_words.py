"""The words of the field: what the package, its messages and the README do not say."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each with the word in its place, as in docs/glossary.md.
FORBIDDEN = {
    r"carriers?|carries out|carried out": "backend; runs, computes",
    r"landings?": "result",
    r"truths?|truth values?": "boolean",
    r"whole": "all, full, integer, or what is meant",
    r"alike": "both, the same",
    r"taken apart": "split, traced",
    r"looked (at|into)": "read, checked",
    r"led|told": "what is meant",
    r"grown": "larger",
    r"settled?": "ended, converged",
    r"readings": "derived quantities, predictions, measurements",
    r"passages?": "near-singular position",
    r"watche[ds]|watching": "monitored",
    r"judge[ds]?|judging": "examined, analyzed, validated",
    r"shield(ed|s)?|parted|noted|tapes?": "what is meant",
}
RX = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b", re.IGNORECASE)
# Of a vector register; elsewhere a batch has members.
LANE = re.compile(r"\blanes?\b(?! of a vector)", re.IGNORECASE)


def texts():
    """Docstrings and messages by file, the README and the pages of the site."""
    for path in sorted((ROOT / "jaxdae").rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text()))
        strings = (x.value for x in nodes if isinstance(x, ast.Constant))
        yield path.relative_to(ROOT).as_posix(), "\n".join(x for x in strings if isinstance(x, str))
    names = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
    for path in (*(ROOT / x for x in names), *sorted((ROOT / "docs").rglob("*.md"))):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def places(pattern: re.Pattern, text: str) -> list[str]:
    return [text[max(x.start() - 30, 0) : x.end() + 20] for x in pattern.finditer(text)]


def test_docstrings_messages_and_readme_keep_to_the_words_of_the_field():
    assert [(name, x) for name, text in texts() for x in places(RX, text)] == []


def test_a_lane_is_one_of_a_vector_register():
    elsewhere = ((name, text) for name, text in texts() if not name.startswith("jaxdae/kernels/"))
    assert [(name, x) for name, text in elsewhere for x in places(LANE, text)] == []


@pytest.mark.parametrize("word", ["batch member", "backend", "fixed step", "boolean"])
def test_the_glossary_has_the_words_in_their_place(word):
    rows = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    assert any(word in row.split("|")[1] for row in rows if row.startswith("|"))
