"""The site says what is true: its code runs and prints what pages show, every name has an entry."""

import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "scripts"
# As the other tests, the process lowers its programs in one context.
AS_PRINTED = """
import json
from helpers.lowering import share_contexts
share_contexts()
import blocks
for block, printed in blocks.executed():
    print(json.dumps([block.page.name, block.printed, printed]))
"""
SEARCHED = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(SCRIPTS)])


@pytest.fixture(scope="module")
def scripts():
    """The modules that make the site."""
    sys.path.insert(0, str(SCRIPTS))
    import blocks
    import measured
    import names
    import reference

    yield blocks, names, reference, measured
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """What each block of the pages says and prints, all of them in one process."""
    folder = tmp_path_factory.mktemp("pages")
    # Most programs run for milliseconds: as the other tests, without optimization.
    environment = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "PYTHONPATH": SEARCHED}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", AS_PRINTED], cwd=folder,
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_the_code_of_the_pages_runs_and_prints_what_they_show(executed, scripts):
    folder, rows = executed
    assert [x for x in rows if x[1] is not None and not scripts[0].same(x[1], x[2])] == []
    assert (folder / "results" / "pendulum.png").exists()
    # Each page with a claim in words checks it: what is shown is not only that it runs.
    assert len([x for x in rows if x[1] is not None]) >= 12


def test_the_code_of_the_readme_is_that_of_pages(scripts):
    """Hence executed with them; the README shows no more."""
    pages = {x.code for page in scripts[0].executed_pages() for x in scripts[0].blocks(page)}
    printed = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(printed) == 3
    assert set(printed) <= pages


def test_a_number_that_is_not_printed_is_found(scripts):
    same = scripts[0].same
    assert same("error: 7.0e-08", "first\nerror: 6.2e-08\n")  # round-off
    assert not same("error: 7.0e-08", "error: 2.2e-08\n")
    assert same("speed: 1.99", "speed: 1.9989\n")
    assert not same("speed: 1.99", "speed: 2.9989\n")
    assert not same("speed: 1.99", "pace: 1.99\n")
    assert not same("found: True", "found: False\n")


def test_every_public_name_has_an_entry(scripts):
    """From the export lists, which the package itself loads from: nothing is listed by hand."""
    import jaxdae

    _, names, reference, _ = scripts
    rooms = {room.name: set(room.names) for room in names.rooms()}
    modules = {x.removeprefix("jaxdae.") for x in rooms}
    assert rooms["jaxdae"] == {x for x in dir(jaxdae) if x not in modules and x[0] != "_"}
    for name, exported in rooms.items():
        module = importlib.import_module(name)
        assert all(hasattr(module, x) for x in exported), name
    pages = dict(reference.pages())
    for room in names.rooms():
        index = pages[f"api/{reference.slug(room)}/index.md"]
        for name in room.names:
            home = reference.homes()[f"{room.name}.{name}"]
            assert f"::: {home}\n" in pages[reference.page_of(home)]
            assert f"| [`{name}`](" in index
    assert len({x.lower() for x in pages}) == len(pages)  # also where disks ignore case


def test_a_name_of_the_index_has_the_first_line_of_its_docstring(scripts):
    summary = scripts[2].summary
    assert summary("jaxdae", "simulate") == "Simulate a constrained system."
    assert summary("jaxdae.formulations", "Baumgarte") == "Generalized Baumgarte stabilization."


LINK = re.compile(r"\[[^\]]*\]\((?!https?:)([^)#\s]+)(#[^)]*)?\)")
MADE = (
    "api/",
    "tutorials/",
    "gallery.md",
    "references.md",
    "changelog.md",
    "contributing.md",
    "security.md",
)


def pages_and_readmes():
    yield from (ROOT / x for x in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", list(pages_and_readmes()), ids=lambda x: x.stem)
def test_links_lead_to_files(page):
    """The build of the site checks them as well, and those to the pages that it makes."""
    for target, _ in LINK.findall(page.read_text()):
        path = (page.parent / target).resolve()
        made = path.is_relative_to(ROOT / "docs") and path.relative_to(ROOT / "docs")
        assert path.exists() or str(made).startswith(MADE), f"{page.name}: {target}"


def test_every_page_is_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = set(re.findall(r"[\w/.-]+\.md", nav))
    written = {x.relative_to(ROOT / "docs").as_posix() for x in (ROOT / "docs").rglob("*.md")}
    assert written <= listed
    assert {x.stem for x in (ROOT / "notebooks").glob("[0-9]*.py")} == {
        Path(x).stem for x in listed if x.startswith("tutorials/")
    }


def test_the_readme_fits_on_three_screens():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_recipe_of_conda_has_the_dependencies_and_the_version_of_the_project():
    """As far as it can be checked without conda: its names and bounds, and that it is YAML."""
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    run = text.partition("  run:\n")[2].partition("\ntest:")[0]
    listed = [x.removeprefix("    - ") for x in run.splitlines() if x.strip()]
    wanted = {
        x.replace(">=", " >=").replace("matplotlib ", "matplotlib-base ")
        for x in ["python" + project["requires-python"], *project["dependencies"]]
    }
    assert set(listed) == wanted
    assert f'version = "{project["version"]}"' in text
    assert f"jaxdae = {project['scripts']['jaxdae']}" in text
    assert f"summary: {project['description']}" in text


@pytest.mark.parametrize("page", ["papers.md", "benchmarks.md", "howto/gains.md"])
def test_numbers_of_committed_runs_stand_in_their_places(page, scripts):
    measured = scripts[3]
    text = (ROOT / "docs" / page).read_text()
    filled = measured.filled(text)
    assert "{{" in text
    assert "{{" not in filled


def test_a_claim_that_a_run_contradicts_is_shown_as_such(scripts):
    measured = scripts[3]
    claims = [x for one in measured.read("claims.json")["scripts"].values() for x in one["claims"]]
    page = measured.filled("{{ claims }}")
    assert page.count("\n| yes | ") == sum(x["holds"] for x in claims)
    assert page.count("\n| **not in this run** | ") == sum(not x["holds"] for x in claims)
