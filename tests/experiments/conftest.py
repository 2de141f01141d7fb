"""Experiments are scripts, not a package: how tests get at their functions."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="session")
def experiment():
    """The module of an experiment by its name, as it is when the script itself runs."""
    sys.path.insert(0, str(FOLDER))
    yield importlib.import_module
    sys.path.remove(str(FOLDER))
