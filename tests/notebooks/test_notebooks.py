"""Every notebook runs from clean, its assertions hold, and it leaves nothing behind."""

import atexit
import os
import sys
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import nbclient
import pytest
import traitlets
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("*.py"))
by_name = {"argvalues": SOURCES, "ids": lambda path: path.stem}


class Results(DisplayHook):
    """Values of cells are shown as Jupyter does it."""

    def write_format_data(self, format_dict, md_dict=None):
        assert self.shell is not None
        self.shell.display_pub.publish(format_dict, md_dict)


class Shell(InteractiveShell):
    """What a kernel executes cells with, in this process."""

    displayhook_class = traitlets.Type(Results)
    display_pub_class = traitlets.Type(CapturingDisplayPublisher)

    def enable_gui(self, gui=None):
        """There are no windows."""


@pytest.fixture(scope="module")
def one_shell(tmp_path_factory):
    """For all: the pictures of a second one would not be shown."""
    backend = plt.get_backend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        # A shell makes a module of its own to execute in.
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        patch.setattr(sys, "path", [*sys.path])
        made = Shell.instance()
        yield made
        made.atexit_operations()
        atexit.unregister(made.atexit_operations)
        Shell.clear_instance()
    plt.close("all")
    plt.switch_backend(backend)


@pytest.fixture
def shell(one_shell, tmp_path, monkeypatch):
    """It without anything executed yet, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    one_shell.reset()
    one_shell.display_pub.outputs.clear()
    return one_shell


def code(path: Path) -> list[str]:
    return [cell.source for cell in jupytext.read(path).cells if cell.cell_type == "code"]


def test_one_starts_from_zero_and_each_paper_has_one_or_two():
    names = ["00_from_zero", "01_redundant", "01_redundant_two_link", "02_shulgin"]
    names += ["02_shulgin_ball_beam", "03_hamilton", "04_servo", "05_realization"]
    names += [
        "05_realization_bounded",
        "06_choosing_gains",
        "07_identification",
        "08_measured_motions",
    ]
    assert [path.stem for path in SOURCES] == names


@pytest.mark.slow
@pytest.mark.parametrize("path", **by_name)
def test_it_runs_from_clean(path, shell, capsys):
    """In one process: a kernel for each would import and compile the same over and over."""
    for source in code(path):
        # A cell that raises, an assertion that fails among them, raises here.
        shell.run_cell(source, store_history=True).raise_error()
    assert capsys.readouterr().err == ""
    assert len([x for x in shell.display_pub.outputs if "image/png" in x["data"]]) >= 2
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.slow
def test_a_kernel_of_jupyter_runs_them(tmp_path, monkeypatch):
    """Imports and declaration of the first one in a process of its own.

    What a kernel draws and prints is tested with the pages that are made of notebooks.
    """
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = jupytext.read(SOURCES[0])
    (declared,) = (i for i, x in enumerate(notebook.cells) if "class Pendulum(" in x.source)
    notebook.cells = notebook.cells[: declared + 1]
    client = nbclient.NotebookClient(notebook, timeout=300)
    cells = client.execute(env=os.environ | {"IPYTHONDIR": str(tmp_path / "ipython")}).cells
    assert [x.execution_count for x in cells if x.cell_type == "code"] == [1, 2]
    outputs = [x for cell in cells for x in cell.get("outputs", [])]
    assert [x.text for x in outputs if x.get("name") == "stderr"] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", **by_name)
def test_it_begins_with_a_heading_and_checks_what_it_says(path):
    first = jupytext.read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert sum("assert " in source for source in code(path)) >= 3
