"""The site says what is true: its code runs and prints what pages show, every name has an entry."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jaxdae

ROOT = Path(__file__).parents[1]
SCRIPTS = ROOT / "docs" / "scripts"
# As the other tests, the process lowers its programs in one context.
AS_PRINTED = """
import json
import gc
from helpers.lowering import share_contexts
share_contexts()
gc.set_threshold(200_000, 20, 100)
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


def test_the_readme_begins_as_the_site_and_is_executed_too(scripts):
    """Its first minute is that of the site, to the letter; what follows is executed as a page."""
    blocks = scripts[0]
    shown, followed = blocks.blocks(blocks.README), blocks.to_execute(blocks.README)
    assert len(shown) == 3
    assert [x[1:] for x in shown[:2]] == [x[1:] for x in blocks.blocks(blocks.FIRST)]
    assert followed == shown[2:]
    assert "tune(" in followed[0].code
    assert blocks.README in blocks.executed_pages()


# What a run measures: round-off, percentages, ratios, times. Not what code prints, nor code.
NOT_PROSE = re.compile(
    r"^ *```.*?^ *```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$", re.MULTILINE | re.DOTALL
)
MEASURED = re.compile(r"\d[\d.]*(?:e-?\d+| ?%|-fold| (?:times|ms|µs|s|minutes|hours)\b)")
# Settings, which the next test or the page's own script hold against the code.
SETTINGS = {
    "benchmarks.md": {"1e-6", "1e-9"},
    "options.md": {"1000 times", "201 times"},
    "solver.md": {"1e-8", "1e4", "1e6", "20 s", "1000 s"},
    "warnings.md": {"0.1 %", "5 %"},
}


def test_no_measured_number_stands_in_prose():
    """Blocks print them, or files of `docs/data/` fill them in."""
    for page in pages_and_readmes():
        prose = NOT_PROSE.sub("", page.read_text())
        assert set(MEASURED.findall(prose)) <= SETTINGS.get(page.name, set()), page.name
    assert MEASURED.findall("an error of 2e-6, 3 % in 0.19 ms, 9440-fold") == [
        "2e-6", "3 %", "0.19 ms", "9440-fold",
    ]  # fmt: skip


def test_settings_on_the_pages_are_those_of_the_code():
    from inspect import signature

    from jaxdae.diagnosis import diagnose, singularities
    from jaxdae.kernels.cuda import ptx
    from jaxdae.simulation import problem

    page = {x: (ROOT / "docs" / x).read_text() for x in ("options.md", "gpu.md")}
    warnings = (ROOT / "docs/howto/warnings.md").read_text()
    defaults = {x: y.default for x, y in signature(jaxdae.simulate).parameters.items()}
    for name, said in (
        ("max_steps", "65536"),
        ("max_events", "100"),
        ("start_tolerance", "`1e-4`"),
    ):
        assert f"| `{name}` | {said} |" in page["options.md"]
        assert float(said.strip("`")) == defaults[name]
    iterations = signature(jaxdae.AugmentedLagrangian).parameters["iterations"].default
    assert f"`iterations` | {iterations} |" in page["options.md"]
    assert f"{problem.DEFAULT_TIMES} times |" in page["options.md"]
    assert [problem.default_tolerance(x) for x in ("float64", "float32")] == [1e-8, 1e-5]
    assert "tolerance `1e-8` (`1e-5` in single precision)" in page["options.md"]
    assert "at a tolerance of 1e-8" in (ROOT / "docs/howto/solver.md").read_text()
    assert (diagnose._PRECISE, diagnose._COARSE, singularities.NEAR) == (0.001, 0.05, 0.01)
    assert "by more than 0.1 % of" in warnings
    assert "(5 % for fixed" in warnings
    assert "less than a hundredth of" in warnings
    assert ptx._SCRATCH_BYTES == 2**30
    assert "about a gibibyte" in page["gpu.md"]


def test_every_public_name_has_an_entry(scripts):
    """From the export lists, which the package itself loads from: nothing is listed by hand."""

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


@pytest.mark.parametrize(
    "page",
    [
        "papers.md",
        "benchmarks.md",
        "howto/gains.md",
        "howto/control.md",
        "howto/solver.md",
        "howto/geometry.md",
        "trials.md",
    ],
)
def test_numbers_of_committed_runs_stand_in_their_places(page, scripts):
    measured = scripts[3]
    text = (ROOT / "docs" / page).read_text()
    filled = measured.filled(text)
    assert "{{" in text
    assert "{{" not in filled


def test_a_claim_that_a_run_contradicts_is_shown_as_such(scripts, monkeypatch):
    measured = scripts[3]
    known = measured.read("claims.json")
    claims = [x for one in known["scripts"].values() for x in one["claims"]]
    page = measured.filled("{{ claims }}").splitlines()
    assert all(x["holds"] for x in claims)
    assert {" ".join(x["text"].split()) for x in claims} <= {x.removeprefix("- ") for x in page}
    assert page[0].startswith(f"Of {len(claims)} sentences of the reports all agree with ")
    claims[0]["holds"] = False
    monkeypatch.setattr(measured, "read", lambda _: known)
    page = measured.filled("{{ claims }}").splitlines()
    assert f" {len(claims) - 1} agree, 1 do not agree with " in page[0]
    assert [x for x in page if x.startswith("- **Not in this run:** *Generalized Baumgarte")]


def test_the_page_of_papers_says_of_their_claims_what_the_notebooks_say(scripts):
    """That a sentence of ours agrees with a run does not say that a paper's claim holds."""
    measured = scripts[3]
    page = measured.filled("{{ claims }}")
    for part in re.split(r"\n## ", page)[1:]:
        assert re.search(r"\n\[.*\]\(tutorials/0\d_\w+\.md\):\n\n- \*\*Holds\*\*", part), part[:60]
    ends = [
        x.read_text().partition(measured.VERDICTS)[2] for x in measured.ROOT.glob("notebooks/*.py")
    ]
    assert (
        page.count("- **Does not hold**") == sum(x.count("# - **Does not hold**") for x in ends) > 0
    )
