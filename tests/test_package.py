"""The package as a whole: what it exports, and what importing it leaves alone."""

import ast
import inspect
import pydoc
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import jaxdae

CONTRACT = [
    "AugmentedLagrangian",
    "Baumgarte",
    "LinearStabilization",
    "Multipliers",
    "Penalty",
    "State",
    "System",
    "consistent_state",
    "evaluate",
    "simulate",
    "tune",
    "TuningResult",
]


@pytest.mark.parametrize("name", CONTRACT)
def test_public_names_are_there_and_documented(name):
    assert getattr(jaxdae, name).__doc__


@pytest.mark.slow
def test_importing_changes_no_global_setting():
    """Neither precision nor flags nor a cache: those belong to the user, or to the command."""
    code = """
import os
before = dict(os.environ)
import jax
settings = dict(jax.config.values)
import jaxdae
assert dict(jax.config.values) == settings
assert dict(os.environ) == before
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# What declaring and simulating leave to those who use it. Together it takes longer than the rest.
LATER = {
    "matplotlib": "figures are drawn after a run, often in another process",
    "scipy": "only certificates, roots and step limits need it, on the host",
    "optax": "only `tune` needs it",
    "tqdm": "only a loop that shows its progress needs it",
    "llvmlite": "only machine code needs it",
    "jaxdae.kernels.cuda": "only programs for GPUs need it",
    "jaxdae.cli": "the command, which belongs to no program that imports the package",
    "jaxdae.commands": "the same",
    "jaxdae.models": "the ready systems; users have their own",
    "jaxdae.plotting": "needs matplotlib",
}


@pytest.mark.parametrize("words", [["--help"], ["list"], ["simulate", "--help"]])
def test_what_needs_no_computation_does_not_load_jax(words):
    """The wait before a command that only prints is that for Python itself."""
    code = (
        "import contextlib, sys\nfrom jaxdae.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({words!r})\n"
        "print('loaded:', sorted({'jax', 'numpy', 'diffrax', 'equinox'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.slow
def test_a_name_is_a_function_whatever_module_was_loaded_before():
    """Of modules that have the name of their function, or of their room."""
    code = "import jaxdae.runs as module, jaxdae; print(jaxdae.simulate.__module__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert done.stdout.strip() == "jaxdae.runs"


def test_every_name_that_is_exported_is_there():
    assert {"simulate", "tune", "models", "plotting"} <= set(dir(jaxdae))
    for name in dir(jaxdae):
        assert getattr(jaxdae, name) is not None


PACKAGES = sorted(x for x in dir(jaxdae) if isinstance(getattr(jaxdae, x), ModuleType))


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_export_their_names_and_nothing_else(package):
    room = getattr(jaxdae, package)
    stub = Path(room.__file__).with_suffix(".pyi")
    source = (stub if stub.exists() else Path(room.__file__)).read_text()
    nodes = [x for x in ast.parse(source).body if isinstance(x, ast.ImportFrom)]
    names = {x.asname for node in nodes for x in node.names if not f"{x.asname}".startswith("_")}
    assert set(room.__all__) == names - {None}


def test_help_begins_with_every_public_name_and_its_summary():
    """Of long summaries the beginning."""
    lines = [x.split(maxsplit=1) for x in (jaxdae.__doc__ or "").splitlines() if x[:4] == " " * 4]
    said = {name: text.rstrip(".") for name, text in lines}
    assert {*said} == {*vars(jaxdae)["__all__"]} - {"__version__"}
    for name, text in said.items():
        assert (inspect.getdoc(getattr(jaxdae, name)) or "").startswith(text), name
    shown = pydoc.plain(pydoc.render_doc(jaxdae))
    assert shown.index("PACKAGE CONTENTS") > shown.index("Minimize an objective")


@pytest.mark.slow
def test_packages_are_attributes_that_are_loaded_when_they_are_used():
    code = (
        "import sys, jaxdae\nbefore = {*sys.modules}\n"
        "jaxdae.models.get_model, jaxdae.stability.step_gains\nmiddle = {*sys.modules}\n"
        "jaxdae.plotting.plot_histories\n"
        "print('jax' in before, 'jaxdae.models' in before, 'matplotlib' in middle)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert done.stdout.split() == ["False"] * 3


@pytest.mark.slow
def test_importing_loads_nothing_that_only_some_programs_use():
    """Names of modules and not times: a time depends on the machine."""
    names = ("System", "Multipliers", "consistent_state", "simulate")
    code = f"import sys, jaxdae\nfor x in {names}: getattr(jaxdae, x)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert not set(LATER) & set(done.stdout.split())


def test_names_that_come_later_are_modules_that_there_are():
    """So that a module that is renamed does not pass by never being loaded."""
    for name in LATER:
        assert find_spec(name) is not None, name


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert jaxdae.__version__ == version("jaxdae")


@pytest.mark.slow
def test_without_llvmlite_the_package_loads():
    names = ("System", "Multipliers", "consistent_state", "simulate", "tune", "models")
    code = "import sys\nsys.modules['llvmlite'] = None\nimport jaxdae\n"
    code += f"for x in {names}: getattr(jaxdae, x)\n"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_platforms_say_what_every_extra_brings():
    """All but those for the machines of the project, and one that is empty."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    page = (root / "docs" / "platforms.md").read_text()
    assert {x for x in project["optional-dependencies"] if f"| `{x}` |" not in page} <= {
        "native",
        "gpu-test",
    }
