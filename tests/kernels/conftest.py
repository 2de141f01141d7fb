"""What the tests of kernels share: programs evaluated by NumPy, without compiling anything."""

import numpy as np
import pytest

from jaxdae.kernels import machine_code
from jaxdae.kernels.graph import CONSTANT, INPUT
from jaxdae.kernels.operations import OPERATIONS


def _evaluated(program, *arguments) -> list[np.ndarray]:
    entries = np.concatenate([np.ravel(x) for x in arguments])
    held: dict[int, object] = {}
    with np.errstate(all="ignore"):
        for node in program.graph.needed(program.outputs):
            operation, own = program.graph.nodes[node]
            if operation == INPUT:
                held[node] = entries[own[0]]
            elif operation == CONSTANT:
                held[node] = own[0] if isinstance(own[0], bool) else entries.dtype.type(own[0])
            else:
                held[node] = OPERATIONS[operation].evaluate(*(held[x] for x in own))
    flat = np.array([held[int(x)] for x in program.outputs])
    ends = np.cumsum([np.prod(x.shape, dtype=int) for x in program.results])[:-1]
    parts = zip(np.split(flat, ends), program.results, strict=True)
    return [part.reshape(x.shape).astype(x.dtype) for part, x in parts]


@pytest.fixture(scope="session")
def in_numpy():
    """The function `in_numpy(program, *arguments)`: results of a scalar program."""
    return _evaluated


@pytest.fixture(autouse=True, scope="module")
def _optimized_machine_code():
    """As users get it; in the other tests it is made as quickly as JAX's programs are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_code, "_levels", lambda: machine_code._LEVELS[False])
        yield
