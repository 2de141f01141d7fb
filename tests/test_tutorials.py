"""Pages of the notebooks: text and code as they are, with the outputs that belong to them."""

import io
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPTS = Path(__file__).parents[1] / "docs" / "scripts"


@pytest.fixture(scope="module")
def tutorials():
    """The module that makes the pages."""
    sys.path.insert(0, str(SCRIPTS))
    import tutorials

    yield tutorials
    sys.path.remove(str(SCRIPTS))


def test_outputs_belong_to_the_code_of_the_notebooks(tutorials):
    stale = tutorials.stale()
    assert stale == [], f"{tutorials.REMEDY} {' '.join(stale)}"


def test_outputs_are_small_and_none_is_left_over(tutorials):
    files = {x for x in tutorials.KEPT.rglob("*") if x.is_file()}
    assert sum(x.stat().st_size for x in files) < 2_500_000
    wanted = {tutorials.KEPT / f"{x}.json" for x in tutorials.names()}
    for name in tutorials.names():
        cells = json.loads((tutorials.KEPT / f"{name}.json").read_text())["outputs"]
        pictures = [x["picture"] for cell in cells for x in cell if "picture" in x]
        assert len(pictures) >= 2
        wanted |= {tutorials.KEPT / name / x for x in pictures}
    assert files == wanted


def test_every_page_has_its_pictures_and_what_its_cells_print(tutorials):
    for name in tutorials.names():
        *pictures, (uri, text) = tutorials.page(name, tutorials.kept(name))
        assert uri == f"tutorials/{name}.md"
        for path, data in pictures:
            assert text.count(f"]({path.removeprefix('tutorials/')})") == 1
            with Image.open(io.BytesIO(data)) as image:
                assert max(image.size) > 600
        assert "![](" not in text  # every picture is described
        assert text.count(".output") >= 2
        for cell in tutorials.read(name).cells:
            assert cell.source in text
        # Neither bars of progress nor what only one machine says.
        assert not {
            x for x in ("\r", "\x1b", "it/s]", "Warning", "/tmp/", "object at 0x") if x in text
        }


def test_a_notebook_with_other_code_is_stale_and_is_said_to_be(tutorials, tmp_path, monkeypatch):
    """Other text is not: a page has the text of today."""
    for name in ("0_a", "1_b"):
        (tmp_path / f"{name}.py").write_text("# %% [markdown]\n# # A\n\n# %%\nprint(1)\n")
    monkeypatch.setattr(tutorials, "SOURCES", tmp_path)
    monkeypatch.setattr(tutorials, "KEPT", tmp_path / "kept")
    monkeypatch.delenv("JAXDAE_EXECUTE", raising=False)
    warned = []
    monkeypatch.setattr(tutorials.LOG, "warning", lambda text, *args: warned.append(text % args))
    assert tutorials.stale() == ["0_a", "1_b"]
    picture = io.BytesIO()
    Image.new("RGB", (2000, 1000)).save(picture, "png")
    small = tutorials._small(picture.getvalue())
    for name in ("0_a", "1_b"):
        tutorials.keep(name, [[tutorials.Output(text="1\n"), tutorials.Output(picture=small)]])
    assert tutorials.stale() == []
    pages = dict(tutorials.pages())
    assert pages["tutorials/1_b/0.png"] == small
    assert "![A](0_a/0.png)" in pages["tutorials/0_a.md"]
    assert warned == []

    (tmp_path / "0_a.py").write_text("# %% [markdown]\n# # B\n\n# %%\nprint(1)\n")
    (tmp_path / "1_b.py").write_text("# %% [markdown]\n# # A\n\n# %%\nprint(2)\n")
    assert tutorials.stale() == ["1_b"]
    pages = dict(tutorials.pages())
    assert "![B](0_a/0.png)" in pages["tutorials/0_a.md"]
    assert ".output" not in pages["tutorials/1_b.md"]
    (said,) = warned
    assert said.endswith("python docs/scripts/tutorials.py 1_b")


@pytest.mark.slow
def test_an_execution_returns_what_is_printed_and_drawn(tutorials, tmp_path, monkeypatch):
    """And none that says something on the error stream: bars of progress, warnings."""
    monkeypatch.setattr(tutorials, "SOURCES", tmp_path)
    text = (
        "# %%\nimport matplotlib.pyplot as plt\n%matplotlib inline\nprint(6 * 7)\n'last'\n"
        "# %%\nplt.plot([0, 1]);\n# %%\n"
    )
    (tmp_path / "0_a.py").write_text(text + "1 + 1\n")
    (tmp_path / "1_b.py").write_text(text + "import sys\nprint('bar', file=sys.stderr)\n")
    first, second, third = tutorials.executed("0_a")
    assert [x.text for x in first] == ["42\n", "'last'"]
    (picture,) = second
    assert picture.picture.startswith(b"\x89PNG")
    assert [x.text for x in third] == ["2"]
    with pytest.raises(RuntimeError, match=r"1_b: .*error stream.*\n.*\n.*\n---\nbar"):
        tutorials.executed("1_b")
