"""The recipe of conda, as far as it can be checked without conda: rendered, and read."""

import importlib
import tomllib
from pathlib import Path

import pytest
import yaml
from jinja2 import Environment, StrictUndefined

ROOT = Path(__file__).parents[1]
# Sections that conda-build knows, of those that a pure Python package needs.
SECTIONS = ["package", "source", "build", "requirements", "test", "about", "extra"]
ELSEWHERE = {"matplotlib": "matplotlib-base"}  # Without a window system.


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def recipe():
    """Rendered as conda-build does it: an unknown name is an error."""
    text = (ROOT / "recipe" / "meta.yaml").read_text()
    rendered = Environment(undefined=StrictUndefined).from_string(text).render(PYTHON="python")
    return yaml.safe_load(rendered)


def pins(requirements: list[str]) -> set[str]:
    return {ELSEWHERE.get(x.partition(">=")[0], x.partition(">=")[0]) + " >=" + x.partition(">=")[2]
            for x in requirements}  # fmt: skip


def test_it_has_the_sections_of_a_recipe_and_the_names_of_the_project(recipe, project):
    assert list(recipe) == SECTIONS
    about = project["project"]
    assert recipe["package"] == {"name": about["name"], "version": about["version"]}
    assert recipe["about"]["summary"] == about["description"]
    assert recipe["about"]["license"] == about["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    assert (ROOT / "recipe" / recipe["source"]["path"] / "pyproject.toml").is_file()


def test_it_needs_what_the_project_needs(recipe, project):
    least = project["project"]["requires-python"].removeprefix(">=")
    needs = recipe["requirements"]
    assert set(needs["run"]) == {f"python >={least}", *pins(project["project"]["dependencies"])}
    assert set(needs["host"]) == {
        f"python {least}",
        "pip",
        *pins(project["build-system"]["requires"]),
    }
    assert f"python {least}" in recipe["test"]["requires"]


def test_it_installs_without_a_network_and_for_every_platform(recipe):
    build = recipe["build"]
    assert build["noarch"] == "python"
    assert {"--no-deps", "--no-build-isolation"} <= {*build["script"].split()}


def test_its_entry_points_are_those_of_the_project_and_are_there(recipe, project):
    scripts = project["project"]["scripts"]
    assert recipe["build"]["entry_points"] == [f"{x} = {y}" for x, y in scripts.items()]
    for entry in scripts.values():
        module, _, function = entry.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_its_commands_are_those_that_the_tests_of_the_package_run(recipe):
    """`test_package.py`: without loading JAX."""
    assert recipe["test"]["commands"] == ["pip check", "jaxdae --help", "jaxdae list"]
    assert recipe["test"]["imports"] == ["jaxdae"]
