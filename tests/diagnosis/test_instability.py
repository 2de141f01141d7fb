"""Fixed steps that are too long to be stable are pointed out before they end in NaN."""

import warnings
from typing import Any

import diffrax
import jax.numpy as jnp
import pytest

import jaxdae
from helpers.stiff import ElasticRod
from jaxdae.formulations import Baumgarte, Multipliers
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import AdamsBashforth, Projected, RK4

UNSTABLE = r"too long for {} to be stable.* is stable up to .*; errors grow by .*Rodas5P"
ON_ROD = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
EXPLICIT = [diffrax.Euler(), diffrax.Heun(), diffrax.Dopri8(), RK4(), AdamsBashforth()]


def run(system, state, **settings):
    """A run of 25 fixed steps, which is too short for its numbers to overflow."""
    given: dict[str, Any] = {"t1": 0.05, "dt": 2e-3} | settings
    return jaxdae.simulate(system, given.pop("formulation", Multipliers()), state, **given)


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param(x, id=type(x).__name__, marks=() if i == 1 else pytest.mark.slow)
        for i, x in enumerate(EXPLICIT)
    ],
)
def test_unstable_steps_are_pointed_out_for_every_explicit_method(solver):
    with pytest.warns(RuntimeWarning, match=UNSTABLE.format(type(solver).__name__)):
        found = run(ElasticRod(), ON_ROD, solver=solver)
    # All is finite, so that nothing else tells.
    assert bool(found.success)
    assert float(jnp.abs(found.q).max()) > 1e6


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"solver": Projected(diffrax.Heun()), "saveat": diffrax.SaveAt(t1=True)},
        {"solver": diffrax.Heun(), "t1": -0.05, "dt": -2e-3, "backend": "plain"},
    ],
    ids=["projected, only the end", "backward, plain"],
)
def test_however_they_are_made(settings):
    # Backward in time damping makes the motion grow: what vibrates alone is judged.
    system = ElasticRod(damping=0.0)
    with pytest.warns(RuntimeWarning, match=UNSTABLE.format("Heun")):
        run(system, ON_ROD, **settings)


@pytest.mark.slow
def test_motions_that_grow_by_themselves_are_not():
    upright = jaxdae.State(jnp.array([1e-6, (1 - 1e-12) ** 0.5]), jnp.zeros(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = run(CartesianPendulum(), upright, t1=4.0, dt=1e-2, solver=diffrax.Heun())
        # Steps of half the limit.
        run(ElasticRod(), ON_ROD, solver=diffrax.Heun(), dt=1e-4)
    energies = 0.5 * jnp.sum(found.v**2, axis=1)
    assert energies[-1] > 1e4 * energies[len(energies) // 2]


@pytest.mark.slow
def test_gains_too_large_for_the_steps_are_said_before_the_run_as_well():
    # The gains' own warning comes before; the numbers are those of a run that means nothing.
    law = Multipliers(Baumgarte.critical(3e3))
    off = jaxdae.State(ON_ROD.q * (1 + 1e-6), jnp.zeros(2))
    with pytest.warns(RuntimeWarning) as said:
        run(CartesianPendulum(), off, formulation=law, solver=diffrax.Heun())
    assert any("too long for Heun to be stable" in str(x.message) for x in said)
