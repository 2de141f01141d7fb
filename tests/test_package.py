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


@pytest.mark.parametrize("words", [["list"], ["simulate", "--help"]])
def test_what_needs_no_computation_does_not_load_jax(words):
    """The wait before a command that only prints is that for Python itself."""
    code = (
        "import contextlib, sys\nfrom jaxdae.cli import main\n"
        f"with contextlib.suppress(SystemExit):\n    main({words!r})\n"
        "print('loaded:', sorted({'jax', 'numpy', 'diffrax', 'equinox'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


IMPORTED = """
import os, sys
environment = dict(os.environ)
sys.modules["llvmlite"] = None
import jaxdae
assert not {"jax", "jaxdae.models"} & {*sys.modules}
import jax
settings = dict(jax.config.values)
import jaxdae.runs as module  # which is no name of the package
for name in ("System", "Multipliers", "consistent_state", "simulate"):
    getattr(jaxdae, name)
assert dict(jax.config.values) == settings
assert dict(os.environ) == environment
print(jaxdae.simulate.__module__, *{*sys.modules} - {"llvmlite"})
jaxdae.models.get_model, jaxdae.stability.step_gains, jaxdae.tune
assert "matplotlib" not in sys.modules
"""


@pytest.mark.slow
def test_importing_changes_no_setting_and_loads_only_what_is_used():
    """Neither precision nor flags nor a cache; also without llvmlite. Rooms come when asked for."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], check=True, stdout=-1, text=True)
    first, *loaded = done.stdout.split()
    assert first == "jaxdae.runs"
    assert not set(LATER) & set(loaded)


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


def test_names_that_come_later_are_modules_that_there_are():
    """So that a module that is renamed does not pass by never being loaded."""
    for name in LATER:
        assert find_spec(name) is not None, name


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert jaxdae.__version__ == version("jaxdae")


def test_platforms_say_what_every_extra_brings():
    """All but those for the machines of the project, and one that is empty."""
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    page = (root / "docs" / "platforms.md").read_text()
    assert {x for x in project["optional-dependencies"] if f"| `{x}` |" not in page} <= {
        "native",
        "gpu-test",
    }
