"""Dense output of many states, gone through in a loop, is that of few ones."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.kernels.integration import initial_value
from jaxdae.models.chain import Chain


@pytest.mark.parametrize(
    "solver",
    [pytest.param(diffrax.Dopri8(), marks=pytest.mark.slow), jaxdae.solvers.RK4()],
    ids=["Dopri8", "RK4"],
)
def test_rows_between_steps_are_those_of_the_plain_program(solver, monkeypatch):
    monkeypatch.setattr(initial_value, "_LOOPED", 8)
    chain = Chain.uniform(2)
    start = jaxdae.State(*chain.straight(0.5))
    ts = jnp.linspace(0.0, 0.1, 7)
    rows = [
        jaxdae.simulate(
            chain, jaxdae.Multipliers(), start, t1=0.1, dt=0.025, solver=solver, backend=backend,
            saveat=diffrax.SaveAt(ts=ts),
        ).q
        for backend in ("native", "plain")
    ]  # fmt: skip
    # Round-off of some thousand operations.
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-11, atol=1e-12)
