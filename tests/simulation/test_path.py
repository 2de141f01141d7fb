"""The path of one run, as the page on structure has it, is the one that a run takes."""

import re
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.models import CartesianPendulum
from jaxdae.systems import dynamics

ROOT = Path(__file__).parents[2]
PATH = re.findall(
    r"^    ((?:\w+/)*\w+\.py)  ", (ROOT / "docs" / "structure.md").read_text(), re.MULTILINE
)
# From the call to the backend: the frames in which a reader has to find his way.
MOST_FRAMES = 4


@pytest.fixture
def stacks(monkeypatch) -> list[list[str]]:
    """Files from the outermost call to each evaluation of the dynamics, as in a new process."""
    jax.clear_caches()
    found, evaluated = [], dynamics._evaluate

    def recorded(*arguments, **named):
        found.append([x.filename for x in traceback.extract_stack()])
        return evaluated(*arguments, **named)

    monkeypatch.setattr(dynamics, "_evaluate", recorded)
    return found


def frames(backend: str, stacks) -> list[str]:
    """Files from the call to the dynamics, while a run is integrated."""
    start = State(jnp.array([0.6, 0.8]), jnp.zeros(2))
    law = Multipliers(Baumgarte(2.0, 1.0))
    simulate(CartesianPendulum(), law, start, t1=0.1, dt=0.1, backend=backend)  # pyright: ignore[reportArgumentType]
    inner = {"plain": "simulation/plain.py", "native": "kernels/tracing/trace.py"}[backend]
    for stack in stacks:
        files = [x.rpartition("/jaxdae/")[2] for x in stack if "/jaxdae/" in x]
        # `jax.jit` in our words, which makes a program within the memory of those that it has.
        files = re.sub(r"compiled.py (memory.py )*", "", " ".join(files)).split()
        if inner in files and "runs.py" in files:
            return files[files.index("runs.py") :]
    raise AssertionError("the dynamics were not evaluated in the run")


def test_every_file_of_the_path_is_there():
    assert len(PATH) == 9
    assert [x for x in PATH if not (ROOT / "jaxdae" / x).is_file()] == []


@pytest.mark.parametrize("backend", ["plain", "native"])
def test_a_run_goes_through_them_in_this_order(backend, stacks):
    files = frames(backend, stacks)
    passed = dict.fromkeys(files)
    other = {"plain": "simulation/native.py", "native": "simulation/plain.py"}[backend]
    # Arguments are checked before, and results read after, what is traced here.
    around = ("trajectory.py", "diagnose.py")
    wanted = [x for x in PATH if not x.endswith(around) and x != other]
    assert [x for x in passed if x in wanted] == wanted
    assert files.index(f"simulation/{backend}.py") < MOST_FRAMES


def test_the_result_knows_no_backend():
    """It is given the one that reads it; nothing that it imports leads to one."""
    text = (ROOT / "jaxdae/results/trajectory.py").read_text()
    text += (ROOT / "jaxdae/results/derived_quantities.py").read_text()
    assert not re.search(r"import .*(backends|native|plain|kernels)", text)
    assert "jaxdae.kernels" not in text
