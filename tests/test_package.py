"""The package as a whole: what it exports, and what importing it leaves alone."""

import subprocess
import sys
from importlib.util import find_spec

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
    subprocess.run([sys.executable, "-c", code], check=True)


# What `import jaxdae` leaves to those who use it. Together it takes longer than all the rest.
LATER = {
    "matplotlib": "figures are drawn after a run, often in another process",
    "scipy": "only certificates, roots and step limits need it, on the host",
    "optax": "only `tune` needs it",
    "tqdm": "only a loop that shows its progress needs it",
    "llvmlite": "only machine code needs it",
    "jaxdae.cli": "the command, which belongs to no program that imports the package",
    "jaxdae.commands": "the same",
    "jaxdae.models": "the ready systems; users have their own",
    "jaxdae.plotting": "needs matplotlib",
}


def test_importing_loads_nothing_that_only_some_programs_use():
    """Names of modules and not times: a time depends on the machine."""
    code = "import sys, jaxdae; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=-1, text=True)
    assert not set(LATER) & set(done.stdout.split())


def test_names_that_come_later_are_modules_that_there_are():
    """So that a module that is renamed does not pass by never being loaded."""
    for name in LATER:
        assert find_spec(name) is not None, name


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert jaxdae.__version__ == version("jaxdae")
