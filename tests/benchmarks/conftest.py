"""Benchmarks are scripts, not a package: how tests get at their functions."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="session")
def benchmark():
    """A module of the benchmarks by its name, as it is when a script itself runs."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
