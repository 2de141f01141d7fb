"""Derivatives of runs are the differences of motions by SciPy, on equations derived by hand."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.oracle_models import ORACLE_MODELS
from jaxdae import Multipliers, simulate


def end(case, backend, adjoint):
    """The last row of a run, flat, as a function of the parameters."""

    def of(parameters):
        model, state = case.make(*parameters)
        dt = case.t1 / case.steps
        how: dict[str, Any] = {"dt": dt, "backend": backend, "adjoint": adjoint}
        run = simulate(model, Multipliers(), state, t1=case.t1, **how)
        return jnp.concatenate([run.q[-1], run.v[-1], run.w[-1], run.multipliers[-1]])

    return of


@pytest.fixture(scope="module")
def slopes():
    """Of each mechanism, columns by parameter."""
    found = {}

    def of(system):
        if system not in found:
            case = ORACLE_MODELS[system]
            ts = np.array([0.0, case.t1])
            columns = [case.oracle.sensitivity(x, ts) for x in case.parameters]
            found[system] = np.stack([np.concatenate([x[-1] for x in c]) for c in columns], 1)
        return found[system]

    return of


# Natively all have reverse mode, and every other one forward mode, which is compared with it for
# the kernels. The plain backend, which compiles longest, has each of its modes once with either
# kind of constraints, and an actuator.
EVERY = [
    *((system, "native", "reverse") for system in ORACLE_MODELS),
    *((system, "native", "forward") for system in list(ORACLE_MODELS)[::2]),
    ("pendulum", "plain", "forward"),
    ("motor", "plain", "forward"),
    ("knife edge", "plain", "reverse"),
]


def is_quick(system, backend, mode):
    """What takes about a second, and each mode once."""
    native = system in ("pendulum", "chain", "knife edge") and mode == "reverse"
    return backend == "native" and (native or (system, mode) == ("pendulum", "forward"))


CASES = [x if is_quick(*x) else pytest.param(*x, marks=pytest.mark.slow) for x in EVERY]


@pytest.mark.parametrize(("system", "backend", "mode"), CASES)
def test_gradients_are_the_differences_of_scipy(system, backend, mode, slopes):
    case = ORACLE_MODELS[system]
    parameters = jnp.array([getattr(case.oracle, x) for x in case.parameters])
    forward = mode == "forward"
    adjoint = diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint()
    jacobian = jax.jacfwd if forward else jax.jacrev
    found = jax.jit(jacobian(end(case, backend, adjoint)))(parameters)
    expected = slopes(system)
    size = 1 + np.abs(expected).max(1, keepdims=True)
    # Of the differences, 1e-9 over parameters that are a hundredth; of the steps, less.
    np.testing.assert_allclose(found / size, expected / size, rtol=0, atol=1e-7)
