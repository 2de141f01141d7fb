"""What the tests of kernels share: programs evaluated by NumPy, without compiling anything."""

import numpy as np
import pytest

from jaxdae.kernels.graph.expressions import CONSTANT, INPUT
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.llvm import machine_code


def _evaluated(program, *arguments) -> list[np.ndarray]:
    entries = np.concatenate([np.ravel(x) for x in arguments])
    held: dict[int, object] = {}
    with np.errstate(all="ignore"):
        for node in program.graph.needed(program.outputs):
            operation, operands = program.graph.nodes[node]
            if operation == INPUT:
                held[node] = entries[operands[0]]
            elif operation == CONSTANT:
                (value,) = operands
                held[node] = value if isinstance(value, bool) else entries.dtype.type(value)
            else:
                held[node] = OPERATIONS[operation].evaluate(*(held[x] for x in operands))
    flat = np.array([held[int(x)] for x in program.outputs])
    ends = np.cumsum([np.prod(x.shape, dtype=int) for x in program.results])[:-1]
    parts = zip(np.split(flat, ends), program.results, strict=True)
    return [part.reshape(x.shape).astype(x.dtype) for part, x in parts]


@pytest.fixture(scope="session")
def in_numpy():
    """The function `in_numpy(program, *arguments)`: results of a scalar program."""
    return _evaluated


def _levels_of(quick: bool):
    return lambda: machine_code._LEVELS[quick]


@pytest.fixture(autouse=True, scope="module")
def _optimized_machine_code(request):
    """As users get it; in the other tests it is made as quickly as JAX's programs are."""
    with pytest.MonkeyPatch.context() as patch:
        quick = request.node.get_closest_marker("quick") is not None
        patch.setattr(machine_code, "_levels", _levels_of(quick))
        yield


@pytest.fixture(autouse=True)
def _quick_machine_code(request, monkeypatch):
    """For a test of what kernels say, not of how LLVM optimizes it."""
    if request.node.get_closest_marker("quick"):
        monkeypatch.setattr(machine_code, "_levels", _levels_of(True))
