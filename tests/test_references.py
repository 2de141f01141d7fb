"""Citations: what docstrings cite is in the bibliography, and the other way round."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import jaxdae
from jaxdae.references import AUTHOR, entries, TITLE

ROOT = Path(__file__).parents[1]
# A key has at least four letters, so that units and shapes in brackets are none.
CITED = re.compile(r"(?<![\w\]`])\[([A-Z][A-Za-z]{3,}[^\[\]`]*)\]")
PLACE = re.compile(
    r"\w+(, (eqs?\. [\d.]+(-[\d.]+|(, [\d.]+)+)?|section [IVX\d.]+|table [\d.]+|chapter [IVX\d]+"
    r"|(theorem|remark|proposition|footnote) \d|example( \d)?))?"
)


def docstrings():
    for path in sorted((ROOT / "jaxdae").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield path.name, ast.get_docstring(node) or ""


def citations():
    """Every citation of a docstring, its lines joined."""
    for name, text in docstrings():
        for x in CITED.finditer(" ".join(text.split())):
            yield from ((name, one) for one in x[1].split("; "))


def test_docstrings_cite_references_and_each_reference_is_cited():
    found = list(citations())
    unknown = [x for x in found if re.split(r"\W", x[1])[0] not in entries()]
    assert unknown == []
    assert {re.split(r"\W", x)[0] for _, x in found} == entries().keys()


def test_places_are_cited_in_one_form():
    assert [x for x in citations() if not PLACE.fullmatch(x[1])] == []


def test_docstrings_name_no_year_in_their_own_words():
    """A year beside a name is a citation, which has a key."""
    year = re.compile(r"[A-Z][a-z]+,? \(?(1[89]|20)\d\d\b")
    assert [(name, x[0]) for name, text in docstrings() for x in year.finditer(text)] == []


def test_entries_are_complete():
    """Keys in order, each with title and year where one is known, and closed."""
    assert list(entries()) == sorted(entries())
    for key, text in entries().items():
        assert "  title = {" in text
        assert text.count("{") == text.count("}")
        year = re.search(r"\d{4}$", key)
        assert year is None or f"  year = {{{year[0]}}}," in text


def test_citation_of_a_reference_and_of_the_library():
    assert jaxdae.citation("Baumgarte1972").startswith("@article{Baumgarte1972,\n  author =")
    assert f"version = {{{jaxdae.__version__}}}" in jaxdae.citation()
    with pytest.raises(KeyError, match="has the key 'Nobody'; there are AizermanGantmacher"):
        jaxdae.citation("Nobody")


def test_citation_file_and_project_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    fields = dict(
        re.findall(r"^ *(?:- )?(\w+): \"?(.+?)\"?$", (ROOT / "CITATION.cff").read_text(), re.M)
    )
    assert fields["version"] == project["version"]
    assert fields["license"] == project["license"]
    assert fields["title"] == f"{project['name']}: {project['description']}" == f"jaxdae: {TITLE}"
    assert [{"name": fields["name"]}] == project["authors"] == [{"name": AUTHOR}]
