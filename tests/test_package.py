"""The package as a whole: what it exports, and what importing it leaves alone."""

import subprocess
import sys

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


def test_importing_does_not_load_the_plots():
    code = "import sys, jaxdae; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert jaxdae.__version__ == version("jaxdae")
