"""Every notebook runs from clean, its assertions hold, and it leaves nothing behind."""

import os
from pathlib import Path

import jax
import jupytext
import nbclient
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))


def executed(path: Path, folder: Path):
    """The notebook of a text source, run in a folder of its own by a fresh kernel."""
    notebook = jupytext.read(path)
    folder.mkdir()
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(notebook, timeout=300, resources=resources)
    cache = str(jax.config.jax_compilation_cache_dir)  # pyright: ignore[reportAttributeAccessIssue]
    settings = {
        # The tests' own cache of compiled programs: the kernel is another process.
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        # Of a program that another process is just writing; it is compiled then.
        "PYTHONWARNINGS": "ignore:Error reading persistent compilation cache entry:UserWarning",
        "IPYTHONDIR": str(folder.parent / "ipython"),
    }
    return client.execute(env=os.environ | settings)


def outputs(notebook) -> list:
    return [out for cell in notebook.cells for out in cell.get("outputs", [])]


def test_one_starts_from_zero_and_one_belongs_to_each_paper():
    names = ["00_from_zero", "01_redundant", "02_shulgin", "03_hamilton", "04_servo"]
    assert [path.stem for path in SOURCES] == [*names, "05_realization"]


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_runs_from_clean(path, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    # A cell that raises, an assertion that fails among them, raises here.
    notebook = executed(path, tmp_path / "folder")
    errors = [out.text for out in outputs(notebook) if out.get("name") == "stderr"]
    assert errors == []
    pictures = [out for out in outputs(notebook) if "image/png" in out.get("data", {})]
    assert len(pictures) >= 2
    assert list((tmp_path / "folder").iterdir()) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_begins_with_a_heading_and_checks_what_it_says(path):
    notebook = jupytext.read(path)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.cells[0].source.startswith("# ")
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert sum("assert " in source for source in code) >= 3
