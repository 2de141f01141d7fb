"""The blocks of both kinds of constraints, on a sleigh whose motion is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae


@pytest.fixture(scope="module")
def hamilton_blocks(experiment):
    return experiment("hamilton_blocks")


@pytest.mark.slow
def test_every_claim_holds_and_fails_with_its_numbers(hamilton_blocks):
    found = hamilton_blocks.study(end=1.0)
    assert [x.text for x in hamilton_blocks.claims(found) if not x.holds] == []
    printed = found["differences"] | {"Z1 as printed": 0.0}
    (failed,) = [x for x in hamilton_blocks.claims(found | {"differences": printed}) if not x.holds]
    assert "lacks" in failed.text


def test_blocks_of_a_system_that_depends_on_time_are_those_of_evaluate(hamilton_blocks, everything):
    """Every term of Z1 and Z2 is there, time derivatives among them."""
    t, q, v = 0.7, jnp.array([1.1, -0.8, 0.3]), jnp.array([0.5, 0.9, -1.2])
    b = jax.jit(lambda t, q, v: hamilton_blocks.blocks(everything, t, q, v))(t, q, v)
    d = jaxdae.evaluate(everything, t, q, v, jnp.array([0.2]))
    response = d.jac @ np.linalg.solve(d.mass, d.jac.T)
    np.testing.assert_allclose(np.block([[b.A1, b.A2], [b.A3, b.A4]]), response, rtol=1e-12)
    np.testing.assert_allclose(jnp.concatenate([b.Z1, b.Z2]), d.gamma, rtol=1e-12)
    assert np.abs(b.Z1 - b.Z1_printed).max() > 1.0
