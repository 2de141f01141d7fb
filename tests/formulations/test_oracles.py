"""Six mechanisms move as SciPy says, on equations that were derived by hand in other variables."""

import numpy as np
import pytest

from helpers.agreement import FORMULATIONS
from helpers.oracle_models import ORACLE_MODELS
from jaxdae import simulate

# In turn, two for each mechanism besides the multipliers. Penalties and realizing forces are
# approximations; the matrix of agreement has them.
EXACT = (
    "stabilized", "minimum norm", "singular mass", "Hamiltonian", "velocity elimination",
    "null space, stabilized", "null space", "quasi-velocities",
)  # fmt: skip
# On the plain backend one with time, one with an actuator, a nonholonomic one; its derivatives are
# compared on all, and its motions with those of kernels in the matrix.
PLAIN = ("two-link", "motor", "knife edge")
CASES = [
    *((system, "multipliers", "native") for system in ORACLE_MODELS),
    *(pytest.param(x, "multipliers", "plain", marks=pytest.mark.slow) for x in PLAIN),
    *(
        pytest.param(system, EXACT[(i + j) % len(EXACT)], "native", marks=pytest.mark.slow)
        for i, system in enumerate(ORACLE_MODELS)
        for j in (0, 4)
    ),
]


@pytest.mark.parametrize(("system", "name", "backend"), CASES)
def test_motion_and_multipliers_are_those_of_scipy(system, name, backend):
    case = ORACLE_MODELS[system]
    model, state = case.start()
    dt = case.t1 / case.steps
    run = simulate(model, FORMULATIONS[name], state, t1=case.t1, dt=dt, backend=backend)
    expected = case.oracle.motion(np.asarray(run.ts))
    for quantity in ("q", "v", "w"):
        # The truncation of the steps; SciPy's own is a hundredth of it.
        np.testing.assert_allclose(
            getattr(run, quantity), getattr(expected, quantity), rtol=1e-9, atol=1e-10
        )
    size = np.abs(expected.lam).max()
    assert size > 0.01
    np.testing.assert_allclose(run.multipliers, expected.lam, rtol=0, atol=1e-8 * size)
    if backend == "native":
        assert (run.backend, run.why_not_native) == ("native", None)
